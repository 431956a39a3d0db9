// Gathering and scattering along several dimensions.

#include <algorithm>
#include <numeric>
#include <string>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

std::int64_t product(const Shape& shape, std::size_t from, std::size_t to) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(from),
                         shape.begin() + static_cast<std::ptrdiff_t>(to),
                         std::int64_t{1},
                         std::multiplies<>());
}

void map_gather_elements(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const Shape shape = c.type(1).shape;
  const std::size_t dim = c.dim(c.integer("axis", 0), type.rank());
  if (!c.ok() || shape.size() != type.shape.size()) {
    c.invalid("its indices have not the rank of its operand");
    return;
  }
  const ValueId index = wrapped(b, cast_to(b, c.tensor(1), DType::kInt64), type.shape[dim]);
  c.result(b.emit("gather", {x, index}, {{"dim", static_cast<std::int64_t>(dim)}}));
}

/// The attribute `reduction` in PyTorch's words; empty for none.
std::string reduction_of(Call& c) {
  const std::string name = c.text("reduction", "none");
  if (name == "none") {
    return "";
  }
  if (name == "add" || name == "mul") {
    return name == "add" ? "sum" : "prod";
  }
  if (name != "max" && name != "min") {
    c.invalid("the attribute 'reduction' is none of none, add, mul, max and min");
  }
  return "a" + name;
}

void map_scatter_elements(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const ValueId updates = c.tensor(2);
  const TensorType type = c.type(0);
  const std::size_t dim = c.dim(c.integer("axis", 0), type.rank());
  const std::string reduction = reduction_of(c);
  if (!c.ok() || c.type(1).shape != c.type(2).shape || c.rank(1) != type.rank()) {
    c.invalid("its indices and updates do not fit its operand");
    return;
  }
  const ValueId index = wrapped(b, cast_to(b, c.tensor(1), DType::kInt64), type.shape[dim]);
  const auto number = static_cast<std::int64_t>(dim);
  if (reduction.empty()) {
    c.result(OperatorCall(b, "aten.scatter.src")
                 .tensor("self", x)
                 .integer("dim", number)
                 .tensor("index", index)
                 .tensor("src", updates)
                 .result(type));
    return;
  }
  if (reduction == "sum") {
    const ValueId sums =
        b.emit("scatter_sum", {updates, index}, {{"dim", number}, {"shape", IntList(type.shape)}});
    c.result(b.emit("add", {x, sums}));
    return;
  }
  c.result(OperatorCall(b, "aten.scatter_reduce.two")
               .tensor("self", x)
               .integer("dim", number)
               .tensor("index", index)
               .tensor("src", updates)
               .text("reduce", reduction)
               .flag("include_self", true)
               .result(type));
}

/// The row numbers that tuples of `count` indices name in x, whose dimensions from `first` on they
/// index: [n], negative indices counted from the end.
ValueId row_numbers(
    Builder& b, ValueId tuples, const Shape& x, std::size_t first, std::size_t count) {
  const Shape shape = b.type(tuples).shape;
  ValueId rows;
  for (std::size_t k = 0; k < count && b.ok(); ++k) {
    const auto at = static_cast<std::int64_t>(k);
    const ValueId one = sliced(b, tuples, shape.size() - 1, at, at + 1);
    const std::int64_t stride = product(x, first + k + 1, first + count);
    const ValueId offset =
        b.emit("scale", {wrapped(b, one, x[first + k])}, {{"factor", static_cast<double>(stride)}});
    rows = rows.valid() ? b.emit("add", {rows, offset}) : offset;
  }
  return rows;
}

void map_gather_nd(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const Shape shape = c.type(0).shape;
  const Shape indices = c.type(1).shape;
  const std::int64_t batches = c.integer("batch_dims", 0);
  if (!c.ok() || indices.empty() || batches < 0 ||
      batches >= static_cast<std::int64_t>(indices.size()) ||
      indices.back() + batches > c.rank(0) || indices.back() < 1) {
    c.invalid("its indices do not fit its operand");
    return;
  }
  const auto batch = static_cast<std::size_t>(batches);
  const auto count = static_cast<std::size_t>(indices.back());
  const std::int64_t groups = product(shape, 0, batch);
  const std::int64_t rows = product(shape, batch, batch + count);
  const std::int64_t rest = product(shape, batch + count, shape.size());
  if (!std::equal(shape.begin(), shape.begin() + batches, indices.begin())) {
    c.invalid("the batches of its indices are not those of its operand");
    return;
  }
  ValueId numbers = row_numbers(b, cast_to(b, c.tensor(1), DType::kInt64), shape, batch, count);
  const std::int64_t tuples = product(indices, batch, indices.size() - 1);
  numbers = reshape_to(b, numbers, {groups, tuples});
  if (groups > 1) {
    const ValueId group = b.emit(
        "iota",
        {},
        {{"shape", IntList{groups, 1}}, {"dim", std::int64_t{0}}, {"dtype", std::string("i64")}});
    const ValueId start = b.emit("scale", {group}, {{"factor", static_cast<double>(rows)}});
    numbers = b.emit("add", {numbers, start});
  }
  const ValueId table = reshape_to(b, x, {groups * rows, rest});
  Shape result(indices.begin(), indices.end() - 1);
  result.insert(result.end(), shape.begin() + batches + indices.back(), shape.end());
  c.result(reshape_to(b, b.emit("embedding", {table, numbers}), result));
}

void map_scatter_nd(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const Shape indices = c.type(1).shape;
  const std::string reduction = reduction_of(c);
  if (!c.ok() || indices.empty() || indices.back() < 1 || indices.back() > type.rank()) {
    c.invalid("its indices do not fit its operand");
    return;
  }
  const auto count = static_cast<std::size_t>(indices.back());
  const std::int64_t rows = product(type.shape, 0, count);
  const std::int64_t rest = product(type.shape, count, type.shape.size());
  const std::int64_t tuples = product(indices, 0, indices.size() - 1);
  if (c.type(2).numel() != tuples * rest) {
    c.invalid("its updates do not fit its indices");
    return;
  }
  const ValueId numbers = reshape_to(
      b, row_numbers(b, cast_to(b, c.tensor(1), DType::kInt64), type.shape, 0, count), {tuples});
  const ValueId table = reshape_to(b, x, {rows, rest});
  const ValueId updates = reshape_to(b, c.tensor(2), {tuples, rest});
  const TensorType flat{type.dtype, {rows, rest}};
  const std::string target = reduction.empty()    ? "aten.index_copy.default"
                             : reduction == "sum" ? "aten.index_add.default"
                                                  : "aten.index_reduce.default";
  OperatorCall call(b, target);
  call.tensor("self", table).integer("dim", 0).tensor("index", numbers).tensor("source", updates);
  if (target == "aten.index_reduce.default") {
    call.text("reduce", reduction).flag("include_self", true);
  }
  c.result(reshape_to(b, call.result(flat), type.shape));
}

}  // namespace

std::vector<Row> scatter_rows() {
  return {{"GatherElements", map_gather_elements},
          {"GatherND", map_gather_nd},
          {"Scatter", map_scatter_elements},
          {"ScatterElements", map_scatter_elements},
          {"ScatterND", map_scatter_nd}};
}

}  // namespace shardplan::frontends::onnx
