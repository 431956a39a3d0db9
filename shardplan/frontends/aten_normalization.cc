// Softmax, layer norm, RMS norm.

#include <limits>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::IntList;
using ir::TensorType;
using ir::ValueId;

void map_softmax(AtenCall& c) {
  const TensorType type = c.result_type();
  const ValueId x = c.tensor_as("self", type.dtype);
  const auto dim = static_cast<std::int64_t>(c.dim("dim", -1, type.rank()));
  if (c.ours() == "softmax") {
    c.result(c.builder().emit("softmax", {x}, {{"dim", dim}}));
    return;
  }
  const ValueId y = c.builder().emit("log_softmax", {x}, {{"dim", dim}});
  if (dim + 1 == type.rank()) {
    c.state().log_softmax_operand[y] = x;
  }
  c.result(y);
}

void map_layer_norm(AtenCall& c) {
  const ValueId x = c.tensor("input");
  std::vector<ValueId> operands{x};
  const ValueId weight = c.tensor_if_given("weight");
  const ValueId bias = c.tensor_if_given("bias");
  for (const ValueId operand : {weight, bias}) {
    if (operand.valid()) {
      operands.push_back(operand);
    }
  }
  const auto dims = static_cast<std::int64_t>(c.integers("normalized_shape").size());
  c.result(c.builder().emit("layer_norm",
                            operands,
                            {{"dims", dims},
                             {"eps", c.real("eps", 1e-5)},
                             {"weight", weight.valid()},
                             {"bias", bias.valid()}}));
}

/// x / sqrt(mean(x²) + eps) · weight over the trailing dimensions.
void map_rms_norm(AtenCall& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor("input");
  const ValueId weight = c.tensor_if_given("weight");
  const TensorType type = c.type_of("input");
  const auto count = static_cast<std::int64_t>(c.integers("normalized_shape").size());
  if (!c.ok() || count > type.rank()) {
    c.invalid("the argument 'normalized_shape' does not fit its operand");
    return;
  }
  IntList dims;
  double elements = 1;
  for (std::int64_t d = type.rank() - count; d < type.rank(); ++d) {
    dims.push_back(d);
    elements *= static_cast<double>(type.shape[static_cast<std::size_t>(d)]);
  }
  const double default_eps = type.dtype == DType::kFloat64
                                 ? std::numeric_limits<double>::epsilon()
                                 : static_cast<double>(std::numeric_limits<float>::epsilon());
  const ValueId sum = b.emit("sum", {b.emit("mul", {x, x})}, {{"dims", dims}, {"keepdim", true}});
  const ValueId mean = b.emit("scale", {sum}, {{"factor", 1.0 / elements}});
  const ValueId shifted = b.emit("add_scalar", {mean}, {{"value", c.real("eps", default_eps)}});
  const ValueId y = b.emit("mul", {x, b.emit("rsqrt", {shifted})});
  c.result(weight.valid() ? b.emit("mul", {y, weight}) : y);
}

}  // namespace

std::vector<AtenOp> aten_normalization() {
  return {{"aten.softmax.int", map_softmax, "softmax"},
          {"aten._softmax.default", map_softmax, "softmax"},
          {"aten.log_softmax.int", map_softmax, "log_softmax"},
          {"aten._log_softmax.default", map_softmax, "log_softmax"},
          {"aten.layer_norm.default", map_layer_norm},
          {"aten.native_layer_norm.default", map_layer_norm},
          {"aten.rms_norm.default", map_rms_norm}};
}

}  // namespace shardplan::frontends
