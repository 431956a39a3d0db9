// Comparisons, logic, selection and casts.

#include <cmath>
#include <limits>

#include "shardplan/frontends/const_fold.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/dtypes.h"
#include "shardplan/frontends/onnx/shapes.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::TensorType;
using ir::ValueId;

bool fold_binary(Call& c,
                 std::optional<ConstTensor> (*function)(
                     std::string_view, const TensorType&, const ConstTensor&, const ConstTensor&)) {
  const ConstTensor* const x = c.constant(0);
  const ConstTensor* const y = c.constant(1);
  if (x == nullptr || y == nullptr || stands_at_axis(c)) {
    return false;
  }
  const std::optional<ir::Shape> shape = broadcast_shape(x->shape(), y->shape());
  std::optional<ConstTensor> folded =
      shape.has_value() ? function(c.ours(), {DType::kBool, *shape}, *x, *y) : std::nullopt;
  if (!folded.has_value()) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

bool fold_compared(Call& c) {
  return fold_binary(c, fold_comparison);
}

bool fold_combined(Call& c) {
  return fold_binary(c, fold_logical);
}

void map_comparison(Call& c) {
  Builder& b = c.builder();
  const std::string op(c.ours());
  const std::optional<double> value = c.uniform(1);
  const ir::Shape shape = c.type(0).shape;
  if (value.has_value() && c.type(0).dtype != DType::kBool &&
      broadcast_shape(shape, c.type(1).shape) == shape) {
    const ValueId x = c.tensor(0);
    c.result(b.emit(op + "_scalar", {x}, {{"value", *value}}));
    return;
  }
  const ValueId x = c.tensor(0);
  const ValueId y = second_operand(c);
  c.result(b.emit(op, {x, y}));
}

void map_logical(Call& c) {
  const ValueId x = c.tensor(0);
  const ValueId y = second_operand(c);
  c.result(c.builder().emit(std::string(c.ours()), {x, y}));
}

void map_not(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(c.builder().emit("logical_not", {x}));
}

bool fold_not(Call& c) {
  const ConstTensor* const x = c.constant(0);
  if (x == nullptr || x->type().dtype != DType::kBool) {
    return false;
  }
  const std::vector<ConstTensor> operands{*x};
  std::optional<ConstTensor> folded =
      elementwise(x->type(), operands, [](std::span<const Number> v) {
        return Number::of(std::int64_t{v[0].i == 0});
      });
  if (!folded.has_value()) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

void map_is_nan(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(c.builder().emit("ne", {x, x}));
}

void map_is_inf(Call& c) {
  Builder& b = c.builder();
  const double infinity = std::numeric_limits<double>::infinity();
  const bool above = c.flag("detect_positive", true);
  const bool below = c.flag("detect_negative", true);
  const ValueId x = c.tensor(0);
  if (!above && !below) {
    c.constant_result(
        ConstTensor::full({DType::kBool, c.type(0).shape}, Number::of(std::int64_t{0})));
    return;
  }
  const ValueId size = above && below ? b.emit("abs", {x}) : above ? x : b.emit("neg", {x});
  c.result(b.emit("eq_scalar", {size}, {{"value", infinity}}));
}

/// A branch of a selection: a number as a scalar, or a tensor.
ValueId branch(Call& c, std::size_t index) {
  const ConstTensor* const known = c.constant(index);
  return known == nullptr ? c.tensor(index) : materialize_compact(c.builder(), *known);
}

void map_where(Call& c) {
  Builder& b = c.builder();
  const ir::Shape both = broadcast_shape(c.type(1).shape, c.type(2).shape).value_or(ir::Shape());
  const std::optional<ir::Shape> shape = broadcast_shape(c.type(0).shape, both);
  const ValueId condition = c.tensor(0);
  const ValueId x = branch(c, 1);
  const ValueId y = branch(c, 2);
  if (!c.ok() || !shape.has_value()) {
    c.invalid("its operands do not broadcast");
    return;
  }
  c.result(broadcast_to(b, b.emit("where", {condition, x, y}), *shape));
}

bool fold_where(Call& c) {
  const std::optional<std::vector<ConstTensor>> operands = c.constants();
  if (!operands.has_value() || operands->size() != 3) {
    return false;
  }
  const std::optional<TensorType> type = broadcast_type(*operands);
  if (!type.has_value()) {
    return false;
  }
  std::optional<ConstTensor> folded = elementwise(*type, *operands, [](std::span<const Number> v) {
    return v[0].as_double() != 0 ? v[1] : v[2];
  });
  if (!folded.has_value()) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

/// Type of the result of Cast or CastLike.
DType target_dtype(Call& c) {
  if (c.ours() == "like") {
    return c.type(1).dtype;
  }
  const std::int64_t number = c.integer("to", 0);
  const std::optional<DType> dtype = dtype_of_number(number);
  if (!dtype.has_value()) {
    c.unsupported("to " + type_name(number) + " is not supported");
  }
  return dtype.value_or(DType::kFloat32);
}

void map_cast(Call& c) {
  const DType dtype = target_dtype(c);
  const ValueId x = c.tensor(0);
  c.result(cast_to(c.builder(), x, dtype));
}

bool fold_cast(Call& c) {
  const ConstTensor* const x = c.constant(0);
  if (x == nullptr) {
    return false;
  }
  const TensorType type{target_dtype(c), x->shape()};
  const std::vector<ConstTensor> operands{*x};
  // Rounding to a narrow type is the kernel's; where a value overflows, libraries differ.
  const bool narrows = ir::is_floating(x->type().dtype) && !ir::is_floating(type.dtype) &&
                       type.dtype != DType::kInt64 && type.dtype != DType::kBool;
  if (narrows || is_narrow(x->type().dtype) || !c.ok()) {
    return false;
  }
  std::optional<ConstTensor> folded =
      elementwise(type, operands, [](std::span<const Number> v) { return v[0]; });
  if (!folded.has_value()) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

}  // namespace

std::vector<Row> logic_rows() {
  return {{"Equal", map_comparison, "eq", fold_compared},
          {"Less", map_comparison, "lt", fold_compared},
          {"LessOrEqual", map_comparison, "le", fold_compared},
          {"Greater", map_comparison, "gt", fold_compared},
          {"GreaterOrEqual", map_comparison, "ge", fold_compared},
          {"And", map_logical, "logical_and", fold_combined},
          {"Or", map_logical, "logical_or", fold_combined},
          {"Xor", map_logical, "ne"},
          {"Not", map_not, "logical_not", fold_not},
          {"IsNaN", map_is_nan},
          {"IsInf", map_is_inf},
          {"Where", map_where, "where", fold_where},
          {"Cast", map_cast, "cast", fold_cast},
          {"CastLike", map_cast, "like", fold_cast}};
}

}  // namespace shardplan::frontends::onnx
