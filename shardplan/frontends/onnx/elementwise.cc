// Arithmetic, element by element.

#include <array>
#include <cmath>

#include "shardplan/frontends/const_fold.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/shapes.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::TensorType;
using ir::ValueId;

// Folding -----------------------------------------------------------------------------------------

/// Integers divide towards zero; a divisor of zero is left to the kernel.
std::optional<Number> quotient(const Number& a, const Number& b) {
  if (a.real || b.real) {
    return arithmetic("div", a, b);
  }
  if (b.i == 0 || (b.i == -1 && a.i == std::numeric_limits<std::int64_t>::min())) {
    return std::nullopt;
  }
  return Number::of(a.i / b.i);
}

Number smaller_or_larger(std::string_view op, const Number& a, const Number& b) {
  const bool less = a.real ? a.d < b.d : a.i < b.i;
  return (op == "minimum") == less ? a : b;
}

bool fold_arithmetic(Call& c) {
  const std::optional<std::vector<ConstTensor>> operands = c.constants();
  if (!operands.has_value() || operands->size() != 2 || stands_at_axis(c)) {
    return false;
  }
  const std::optional<TensorType> type = broadcast_type(*operands);
  if (!type.has_value()) {
    return false;
  }
  bool exact = true;
  std::optional<ConstTensor> folded =
      elementwise(*type, *operands, [&](std::span<const Number> v) -> Number {
        if (c.ours() == "div") {
          const std::optional<Number> value = quotient(v[0], v[1]);
          exact = exact && value.has_value();
          return value.value_or(Number{});
        }
        const bool extremum = c.ours() == "minimum" || c.ours() == "maximum";
        return extremum ? smaller_or_larger(c.ours(), v[0], v[1])
                        : arithmetic(c.ours(), v[0], v[1]);
      });
  if (!folded.has_value() || !exact) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

/// The remainder of integers with the sign of the divisor.
bool fold_mod(Call& c) {
  const std::optional<std::vector<ConstTensor>> operands = c.constants();
  if (!operands.has_value() || operands->size() != 2 || c.flag("fmod", false)) {
    return false;
  }
  const std::optional<TensorType> type = broadcast_type(*operands);
  if (!type.has_value() || ir::is_floating(type->dtype)) {
    return false;
  }
  bool exact = true;
  std::optional<ConstTensor> folded = elementwise(*type, *operands, [&](std::span<const Number> v) {
    exact = exact && v[1].i != 0 && v[1].i != -1;
    const std::int64_t rest = exact ? v[0].i % v[1].i : 0;
    return Number::of(rest != 0 && (rest < 0) != (v[1].i < 0) ? rest + v[1].i : rest);
  });
  if (!folded.has_value() || !exact) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

/// Functions that round the same in every library.
bool fold_unary(Call& c) {
  const ConstTensor* const x = c.constant(0);
  if (x == nullptr) {
    return false;
  }
  const std::vector<ConstTensor> operands{*x};
  const Number zero = Number::of(std::int64_t{0});
  std::optional<ConstTensor> folded =
      elementwise(x->type(), operands, [&](std::span<const Number> v) {
        const Number& n = v[0];
        if (c.ours() == "floor" || c.ours() == "ceil") {
          return n.real ? Number::of(c.ours() == "floor" ? std::floor(n.d) : std::ceil(n.d)) : n;
        }
        if (c.ours() == "sqrt") {
          return Number::of(std::sqrt(n.as_double()));
        }
        const bool keep = c.ours() == "abs" && n.as_double() >= 0;
        return keep ? n : arithmetic("sub", zero, n);
      });
  if (!folded.has_value()) {
    return false;
  }
  c.constant_result(std::move(*folded));
  return true;
}

// Mapping -----------------------------------------------------------------------------------------

void map_unary(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(c.builder().emit(std::string(c.ours()), {x}));
}

/// The number that stands for operand `index` where the other's shape already covers it.
std::optional<double> scalar_beside(Call& c, std::size_t index) {
  const std::optional<double> value = c.uniform(index);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const ir::Shape own = c.type(index).shape;
  const ir::Shape other = c.type(1 - index).shape;
  const std::optional<ir::Shape> both = broadcast_shape(own, other);
  return both.has_value() && *both == other ? value : std::nullopt;
}

/// x op value, where our set has that; `reversed` says that the number stands first.
std::optional<ValueId> with_number(
    Builder& b, std::string_view op, ValueId x, double value, bool reversed) {
  if (op == "add" || (op == "sub" && !reversed)) {
    return b.emit("add_scalar", {x}, {{"value", op == "add" ? value : -value}});
  }
  if (op == "sub") {
    return b.emit("add_scalar", {b.emit("neg", {x})}, {{"value", value}});
  }
  if (op == "mul" || (op == "div" && !reversed)) {
    return b.emit("scale", {x}, {{"factor", op == "mul" ? value : 1.0 / value}});
  }
  if (op == "maximum" || op == "minimum") {
    return b.emit(std::string(op) + "_scalar", {x}, {{"value", value}});
  }
  return std::nullopt;
}

}  // namespace

bool stands_at_axis(Call& c) {
  return c.opset() < 7 && c.flag("broadcast", false) && c.has("axis");
}

ValueId second_operand(Call& c) {
  const ValueId y = c.tensor(1);
  if (!stands_at_axis(c) || !c.ok()) {
    return y;
  }
  const std::int64_t rank = c.rank(0);
  const std::size_t axis = c.dim(c.integer("axis", 0), rank);
  ir::Shape shape = c.type(1).shape;
  if (c.ok() && axis + shape.size() <= static_cast<std::size_t>(rank)) {
    shape.resize(static_cast<std::size_t>(rank) - axis, 1);
  }
  return reshape_to(c.builder(), y, shape);
}

namespace {

/// Integers divide towards zero.
ValueId integer_quotient(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const ValueId y = second_operand(c);
  const std::optional<ir::Shape> shape = broadcast_shape(b.type(x).shape, b.type(y).shape);
  if (!c.ok() || !shape.has_value() || b.type(x).dtype != b.type(y).dtype) {
    c.invalid("its operands do not broadcast, or differ in type");
    return {};
  }
  return OperatorCall(b, "aten.div.Tensor_mode")
      .tensor("self", x)
      .tensor("other", y)
      .text("rounding_mode", "trunc")
      .result({b.type(x).dtype, *shape});
}

void map_arithmetic(Call& c) {
  Builder& b = c.builder();
  const std::string op(c.ours());
  const TensorType type = c.type(0);
  const bool floating = ir::is_floating(type.dtype);
  if (op == "div" && c.ok() && !floating) {
    c.result(integer_quotient(c));
    return;
  }
  for (const std::size_t number : {std::size_t{1}, std::size_t{0}}) {
    const std::optional<double> value = scalar_beside(c, number);
    if (value.has_value() && c.constant(1 - number) == nullptr && type.dtype != DType::kBool &&
        (floating || std::abs(*value) < 9007199254740992.0)) {
      const ValueId x = c.tensor(1 - number);
      if (const auto y = with_number(b, op, x, *value, number == 0)) {
        c.result(*y);
        return;
      }
    }
  }
  const ValueId x = c.tensor(0);
  const ValueId y = second_operand(c);
  c.result(b.emit(op, {x, y}));
}

/// Sum, Mean, Max and Min of any number of operands.
void map_variadic(Call& c) {
  Builder& b = c.builder();
  const std::vector<ValueId> operands = c.tensors();
  if (operands.empty() || !c.ok()) {
    c.invalid("has no operands");
    return;
  }
  const std::string op(c.ours() == "mean" ? "add" : c.ours());
  ValueId y = operands.front();
  for (std::size_t i = 1; i < operands.size(); ++i) {
    y = b.emit(op, {y, operands[i]});
  }
  if (c.ours() == "mean") {
    y = b.emit("scale", {y}, {{"factor", 1.0 / static_cast<double>(operands.size())}});
  }
  c.result(y);
}

bool fold_variadic(Call& c) {
  return c.operand_count() == 2 && c.ours() != "mean" && fold_arithmetic(c);
}

/// Any power; bases and exponents of different types meet in the wider one.
void map_any_power(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  ValueId y = second_operand(c);
  const DType dtype = c.type(0).dtype;
  const DType other = c.type(1).dtype;
  if (other != dtype) {
    const DType wide = ir::is_floating(dtype) ? dtype : other;
    x = cast_to(b, x, wide);
    y = cast_to(b, y, wide);
  }
  const std::optional<ir::Shape> shape = broadcast_shape(b.type(x).shape, b.type(y).shape);
  if (!c.ok() || !shape.has_value()) {
    c.invalid("its operands do not broadcast");
    return;
  }
  const ValueId power = OperatorCall(b, "aten.pow.Tensor_Tensor")
                            .tensor("self", x)
                            .tensor("exponent", y)
                            .result({b.type(x).dtype, *shape});
  c.result(cast_to(b, power, dtype));
}

/// A power with a known exponent.
void map_pow(Call& c) {
  const std::optional<double> exponent = c.uniform(1);
  const TensorType type = c.type(0);
  const std::optional<ir::Shape> both = broadcast_shape(type.shape, c.type(1).shape);
  if (!c.ok() || !exponent.has_value() || !ir::is_floating(type.dtype) || both != type.shape) {
    map_any_power(c);
    return;
  }
  const ValueId x = c.tensor(0);
  c.result(*exponent == 1.0 ? x : c.builder().emit("pow_scalar", {x}, {{"exponent", *exponent}}));
}

/// Bounds are attributes in old operator sets, operands since 11.
void map_clip(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const std::array<std::string, 2> names{"min", "max"};
  const std::array<std::string, 2> ops{"maximum", "minimum"};
  for (std::size_t side = 0; side < 2; ++side) {
    std::optional<double> bound = c.uniform(side + 1);
    if (c.has(names[side])) {
      bound = c.real(names[side], 0);
    }
    if (bound.has_value()) {
      x = b.emit(ops[side] + "_scalar", {x}, {{"value", *bound}});
    } else if (c.given(side + 1)) {
      x = b.emit(ops[side], {x, c.tensor(side + 1)});
    }
  }
  c.result(x);
}

/// The sign of the remainder is that of the divisor, or, like in C, that of the dividend.
void map_mod(Call& c) {
  Builder& b = c.builder();
  const bool like_c = c.flag("fmod", false);
  const ValueId x = c.tensor(0);
  const ValueId y = c.tensor(1);
  const std::optional<ir::Shape> shape = broadcast_shape(c.type(0).shape, c.type(1).shape);
  if (!c.ok() || !shape.has_value() || c.type(0).dtype != c.type(1).dtype) {
    c.invalid("its operands do not broadcast, or differ in type");
    return;
  }
  c.result(OperatorCall(b, like_c ? "aten.fmod.Tensor" : "aten.remainder.Tensor")
               .tensor("self", x)
               .tensor("other", y)
               .result({c.type(0).dtype, *shape}));
}

/// A function of PyTorch's that keeps the type.
void map_called(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(OperatorCall(c.builder(), "aten." + std::string(c.ours()) + ".default")
               .tensor("self", x)
               .result(c.type(0)));
}

void map_sinh(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const ValueId up = b.emit("exp", {x});
  const ValueId down = b.emit("exp", {b.emit("neg", {x})});
  const ValueId both = b.emit(c.ours() == "sinh" ? "sub" : "add", {up, down});
  c.result(b.emit("scale", {both}, {{"factor", 0.5}}));
}

void map_tan(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(b.emit("div", {b.emit("sin", {x}), b.emit("cos", {x})}));
}

void map_sign(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const DType dtype = c.type(0).dtype;
  const ValueId above = cast_to(b, b.emit("gt_scalar", {x}, {{"value", 0.0}}), dtype);
  const ValueId below = cast_to(b, b.emit("lt_scalar", {x}, {{"value", 0.0}}), dtype);
  c.result(b.emit("sub", {above, below}));
}

}  // namespace

std::vector<Row> elementwise_rows() {
  return {{"Neg", map_unary, "neg", fold_unary},
          {"Abs", map_unary, "abs", fold_unary},
          {"Sqrt", map_unary, "sqrt", fold_unary},
          {"Floor", map_called, "floor", fold_unary},
          {"Ceil", map_called, "ceil", fold_unary},
          {"Exp", map_unary, "exp"},
          {"Log", map_unary, "log"},
          {"Reciprocal", map_unary, "reciprocal"},
          {"Sin", map_unary, "sin"},
          {"Cos", map_unary, "cos"},
          {"Tan", map_tan},
          {"Sinh", map_sinh, "sinh"},
          {"Cosh", map_sinh, "cosh"},
          {"Sign", map_sign},
          {"Add", map_arithmetic, "add", fold_arithmetic},
          {"Sub", map_arithmetic, "sub", fold_arithmetic},
          {"Mul", map_arithmetic, "mul", fold_arithmetic},
          {"Div", map_arithmetic, "div", fold_arithmetic},
          {"Mod", map_mod, "mod", fold_mod},
          {"Sum", map_variadic, "add", fold_variadic},
          {"Mean", map_variadic, "mean"},
          {"Max", map_variadic, "maximum", fold_variadic},
          {"Min", map_variadic, "minimum", fold_variadic},
          {"Pow", map_pow},
          {"Clip", map_clip}};
}

}  // namespace shardplan::frontends::onnx
