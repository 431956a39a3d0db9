// Reductions over dimensions, and running sums.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/index_space.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// The dimensions to reduce: those given, all when none are, or none at all when the node says so.
IntList reduced_dims(Call& c) {
  IntList given = c.axes(1).value_or(IntList());
  if (given.empty() && !c.flag("noop_with_empty_axes", false)) {
    given.resize(static_cast<std::size_t>(c.rank(0)));
    std::iota(given.begin(), given.end(), 0);
  }
  return c.dims(given, c.rank(0));
}

double elements_along(const TensorType& type, const IntList& dims) {
  double count = 1;
  for (const std::int64_t dim : dims) {
    count *= static_cast<double>(type.shape[static_cast<std::size_t>(dim)]);
  }
  return count;
}

/// Sums of integers are i64 in our graph; ONNX keeps the type.
ValueId summed(Builder& b, ValueId x, const IntList& dims, bool keepdim) {
  const DType dtype = b.type(x).dtype;
  if (dims.empty()) {
    return x;
  }
  return cast_to(b, b.emit("sum", {x}, {{"dims", dims}, {"keepdim", keepdim}}), dtype);
}

/// Of reals PyTorch's, which has a gradient.
ValueId largest(Builder& b, ValueId x, const IntList& dims, bool keepdim) {
  TensorType type = b.type(x);
  if (dims.empty() || !ir::is_floating(type.dtype)) {
    return dims.empty() ? x : b.emit("max", {x}, {{"dims", dims}, {"keepdim", keepdim}});
  }
  Shape kept;
  for (std::int64_t d = 0; d < type.rank(); ++d) {
    const bool reduced = std::binary_search(dims.begin(), dims.end(), d);
    type.shape[static_cast<std::size_t>(d)] = reduced ? 1 : type.shape[static_cast<std::size_t>(d)];
    if (!reduced || keepdim) {
      kept.push_back(type.shape[static_cast<std::size_t>(d)]);
    }
  }
  const ValueId y = OperatorCall(b, "aten.amax.default")
                        .tensor("self", x)
                        .integers("dim", dims)
                        .flag("keepdim", true)
                        .result(type);
  return reshape_to(b, y, kept);
}

/// -max(-x); of truth values the negation is another.
ValueId smallest(Builder& b, ValueId x, const IntList& dims, bool keepdim) {
  const bool logical = b.type(x).dtype == DType::kBool;
  const std::string negation = logical ? "logical_not" : "neg";
  return b.emit(negation, {largest(b, b.emit(negation, {x}), dims, keepdim)});
}

/// log Σ exp(x), the maximum taken out; where all are -inf, so is the result.
ValueId log_sum_exp_over(Builder& b, ValueId x, const IntList& dims, bool keepdim) {
  if (dims.empty()) {
    return x;
  }
  if (dims.size() == 1) {
    const ValueId y = log_sum_exp(b, x, dims[0]);
    Shape shape = b.type(y).shape;
    if (!keepdim && b.ok()) {
      shape.erase(shape.begin() + dims[0]);
    }
    return reshape_to(b, y, shape);
  }
  // The gradient through the maximum cancels.
  const ValueId top = b.emit("detach", {b.emit("max", {x}, {{"dims", dims}, {"keepdim", true}})});
  const ValueId sum = summed(b, b.emit("exp", {b.emit("sub", {x, top})}), dims, keepdim);
  const ValueId y = b.emit("log", {sum});
  return b.ok() ? b.emit("add", {y, reshape_to(b, top, b.type(y).shape)}) : y;
}

void map_reduction(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const IntList dims = reduced_dims(c);
  const bool keepdim = c.flag("keepdims", true);
  const std::string_view what = c.ours();
  const bool exact =
      what == "sum" || what == "max" || what == "min" || what == "l1" || what == "sum_square";
  if (!c.ok() || (!exact && !ir::is_floating(type.dtype))) {
    c.unsupported("of integers is not supported");
    return;
  }
  const auto square = [&] { return summed(b, b.emit("mul", {x, x}), dims, keepdim); };
  if (what == "sum") {
    c.result(summed(b, x, dims, keepdim));
  } else if (what == "mean") {
    c.result(b.emit(
        "scale", {summed(b, x, dims, keepdim)}, {{"factor", 1.0 / elements_along(type, dims)}}));
  } else if (what == "max") {
    c.result(largest(b, x, dims, keepdim));
  } else if (what == "min") {
    c.result(smallest(b, x, dims, keepdim));
  } else if (what == "l1") {
    c.result(summed(b, b.emit("abs", {x}), dims, keepdim));
  } else if (what == "l2") {
    c.result(b.emit("sqrt", {square()}));
  } else if (what == "sum_square") {
    c.result(square());
  } else if (what == "log_sum") {
    c.result(b.emit("log", {summed(b, x, dims, keepdim)}));
  } else {
    c.result(log_sum_exp_over(b, x, dims, keepdim));
  }
}

/// Products over dimensions, one after the other.
void map_product(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  TensorType type = c.type(0);
  const IntList dims = reduced_dims(c);
  const DType dtype = type.dtype;
  for (const std::int64_t dim : dims) {
    type.shape[static_cast<std::size_t>(dim)] = 1;
    const bool floating = ir::is_floating(dtype);
    x = OperatorCall(b, "aten.prod.dim_int")
            .tensor("self", x)
            .integer("dim", dim)
            .flag("keepdim", true)
            .result({floating ? dtype : DType::kInt64, type.shape});
  }
  if (!c.flag("keepdims", true)) {
    Shape kept;
    for (std::int64_t d = 0; d < type.rank(); ++d) {
      if (!std::binary_search(dims.begin(), dims.end(), d)) {
        kept.push_back(type.shape[static_cast<std::size_t>(d)]);
      }
    }
    x = reshape_to(b, x, kept);
  }
  c.result(cast_to(b, x, dtype));
}

/// Products and sums of known integers: element counts of shapes.
bool fold_reduction(Call& c) {
  const ConstTensor* const known = c.constant(0);
  const bool product = c.ours() == "prod";
  if (known == nullptr ||
      (!product && c.ours() != "sum" && c.ours() != "max" && c.ours() != "min") ||
      known->shape().size() > 1 || ir::is_floating(known->type().dtype)) {
    return false;
  }
  const IntList dims = reduced_dims(c);
  const std::optional<std::vector<Number>> elements =
      known->shape().empty() || dims.empty() ? std::nullopt
                                             : known->expand(known->shape()).compact_elements();
  if (!elements.has_value() || elements->empty() || !c.ok()) {
    return false;
  }
  // Compact elements stand once for all that are equal.
  const std::int64_t repeats = known->shape()[0] / static_cast<std::int64_t>(elements->size());
  std::int64_t total = product ? 1 : c.ours() == "sum" ? 0 : elements->front().i;
  if (repeats > 1 << 20) {
    return false;
  }
  for (const Number& element : *elements) {
    for (std::int64_t k = 0; k < repeats; ++k) {
      total = product             ? wrapping_product(total, element.i)
              : c.ours() == "sum" ? wrapping_sum(total, element.i)
              : c.ours() == "max" ? std::max(total, element.i)
                                  : std::min(total, element.i);
    }
  }
  const Shape shape = c.flag("keepdims", true) ? Shape{1} : Shape{};
  c.constant_result(ConstTensor::full({known->type().dtype, shape}, Number::of(total)));
  return true;
}

/// Exclusive sums leave the element itself out; reverse ones run from the end.
void map_cumsum(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const auto number = static_cast<std::int64_t>(c.known_number(1, "axis", 0));
  const auto dim = static_cast<std::int64_t>(c.dim(number, type.rank()));
  const bool exclusive = c.flag("exclusive", false);
  if (!c.ok()) {
    return;
  }
  const ValueId forward = cast_to(b, b.emit("cumsum", {x}, {{"dim", dim}}), type.dtype);
  if (!c.flag("reverse", false)) {
    c.result(exclusive ? b.emit("sub", {forward, x}) : forward);
    return;
  }
  const ValueId total = summed(b, x, {dim}, true);
  const ValueId after = b.emit("sub", {total, forward});
  c.result(exclusive ? after : b.emit("add", {after, x}));
}

bool fold_cumsum(Call& c) {
  const ConstTensor* const x = c.constant(0);
  if (x == nullptr || c.flag("exclusive", false) || c.flag("reverse", false)) {
    return false;
  }
  const auto number = static_cast<std::int64_t>(c.known_number(1, "axis", 0));
  const std::size_t dim = c.dim(number, c.rank(0));
  std::optional<ConstTensor> sums = c.ok() ? cumulative_sum(x->type(), *x, dim) : std::nullopt;
  if (!sums.has_value()) {
    return false;
  }
  c.constant_result(std::move(*sums));
  return true;
}

/// The mean over the plane of images.
void map_global_average(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  IntList dims;
  for (std::int64_t d = 2; d < type.rank(); ++d) {
    dims.push_back(d);
  }
  const ValueId x = c.tensor(0);
  if (!c.ok() || dims.empty()) {
    c.invalid("its operand has no plane");
    return;
  }
  const ValueId sum = summed(b, x, dims, true);
  c.result(b.emit("scale", {sum}, {{"factor", 1.0 / elements_along(type, dims)}}));
}

}  // namespace

std::vector<Row> reduction_rows() {
  return {{"ReduceSum", map_reduction, "sum", fold_reduction},
          {"ReduceMean", map_reduction, "mean"},
          {"ReduceMax", map_reduction, "max", fold_reduction},
          {"ReduceMin", map_reduction, "min", fold_reduction},
          {"ReduceProd", map_product, "prod", fold_reduction},
          {"ReduceL1", map_reduction, "l1"},
          {"ReduceL2", map_reduction, "l2"},
          {"ReduceSumSquare", map_reduction, "sum_square"},
          {"ReduceLogSum", map_reduction, "log_sum"},
          {"ReduceLogSumExp", map_reduction, "log_sum_exp"},
          {"GlobalAveragePool", map_global_average},
          {"CumSum", map_cumsum, "cumsum", fold_cumsum}};
}

}  // namespace shardplan::frontends::onnx
