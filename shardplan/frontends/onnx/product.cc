// Matrix products of every rank: einsums.

#include <algorithm>
#include <string>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/onnx/call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::Shape;
using ir::ValueId;

void map_matmul(Call& c) {
  const ValueId a = c.tensor(0);
  const ValueId b = c.tensor(1);
  c.result(matmul(c.builder(), a, b));
}

ValueId scaled(Builder& b, ValueId x, double factor) {
  return factor == 1.0 ? x : b.emit("scale", {x}, {{"factor", factor}});
}

/// alpha · a' b' + beta · c, with a' and b' transposed where the node says so.
void map_gemm(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const ValueId y = c.tensor(1);
  const std::string left = c.flag("transA", false) ? "kb" : "bk";
  const std::string right = c.flag("transB", false) ? "nk" : "kn";
  const bool floating = ir::is_floating(c.type(0).dtype);
  if (!floating) {
    c.unsupported("of integers is not supported");
    return;
  }
  const ValueId product = b.emit("einsum", {x, y}, {{"equation", left + "," + right + "->bn"}});
  const ValueId result = scaled(b, product, c.real("alpha", 1.0));
  const double beta = c.real("beta", 1.0);
  const bool biased = c.given(2) && beta != 0;
  c.result(biased ? b.emit("add", {result, scaled(b, c.tensor(2), beta)}) : result);
}

void map_einsum(Call& c) {
  const std::string equation = c.text("equation", "");
  const std::vector<ValueId> operands = c.tensors();
  if (c.ok()) {
    c.result(einsum(c.builder(), equation, operands));
  }
}

}  // namespace

std::vector<Row> product_rows() {
  return {{"MatMul", map_matmul}, {"Gemm", map_gemm}, {"Einsum", map_einsum}};
}

}  // namespace shardplan::frontends::onnx
