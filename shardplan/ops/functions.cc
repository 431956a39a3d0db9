// Functions of one element, of two that broadcast, and activations with backward ops of their own.
//
// Gradients follow PyTorch: functions that are flat almost everywhere pass none.

#include <numbers>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

Result<Types> infer_real(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return Types{inputs[0]};
}

// Functions of one element ------------------------------------------------------------------------

ir::ValueId shifted(GradientBuilder& b, ir::ValueId x, double value) {
  return b.emit("add_scalar", {x}, {{"value", value}});
}

ir::ValueId squared(GradientBuilder& b, ir::ValueId x) {
  return b.emit("mul", {x, x});
}

void set_product(GradientBuilder& b, ir::ValueId slope) {
  b.set_input_gradient(0, b.emit("mul", {b.output_gradient(0), slope}));
}

void set_quotient(GradientBuilder& b, ir::ValueId divisor) {
  b.set_input_gradient(0, b.emit("div", {b.output_gradient(0), divisor}));
}

void gradient_erf(GradientBuilder& b) {
  const ir::ValueId bell = b.emit("exp", {b.emit("neg", {squared(b, b.input(0))})});
  set_product(b, scaled(b, bell, 2.0 * std::numbers::inv_sqrtpi));
}

void gradient_tan(GradientBuilder& b) {
  set_product(b, shifted(b, squared(b, b.output(0)), 1.0));
}

ir::ValueId one_minus_square(GradientBuilder& b) {
  return shifted(b, b.emit("neg", {squared(b, b.input(0))}), 1.0);
}

void gradient_asin(GradientBuilder& b) {
  set_product(b, b.emit("rsqrt", {one_minus_square(b)}));
}

void gradient_acos(GradientBuilder& b) {
  set_product(b, b.emit("neg", {b.emit("rsqrt", {one_minus_square(b)})}));
}

void gradient_atan(GradientBuilder& b) {
  set_quotient(b, shifted(b, squared(b, b.input(0)), 1.0));
}

void gradient_sinh(GradientBuilder& b) {
  set_product(b, b.emit("cosh", {b.input(0)}));
}

void gradient_cosh(GradientBuilder& b) {
  set_product(b, b.emit("sinh", {b.input(0)}));
}

void gradient_expm1(GradientBuilder& b) {
  set_product(b, shifted(b, b.output(0), 1.0));
}

void gradient_log1p(GradientBuilder& b) {
  set_quotient(b, shifted(b, b.input(0), 1.0));
}

void gradient_none(GradientBuilder& /*b*/) {}

std::vector<OpDef> real_functions() {
  const auto row = [](const char* name, const char* summary, Gradient gradient) {
    return elementwise_row(name, summary, infer_real, axes_elementwise, gradient);
  };
  return {
      row("erf", "error function", gradient_erf),
      row("tan", "tangent", gradient_tan),
      row("asin", "arc sine", gradient_asin),
      row("acos", "arc cosine", gradient_acos),
      row("atan", "arc tangent", gradient_atan),
      row("sinh", "hyperbolic sine", gradient_sinh),
      row("cosh", "hyperbolic cosine", gradient_cosh),
      row("expm1", "e^x - 1", gradient_expm1),
      row("log1p", "log(1 + x)", gradient_log1p),
      row("sign", "-1, 0 or 1", gradient_none),
      row("floor", "the largest whole number not above x", gradient_none),
      row("ceil", "the smallest whole number not below x", gradient_none),
      row("round", "the nearest whole number, the even one of two", gradient_none),
      row("trunc", "x without its fraction", gradient_none),
  };
}

// Functions of two --------------------------------------------------------------------------------

Result<Types> infer_pair(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Shape shape, broadcast_shapes(inputs));
  if (inputs[0].dtype == ir::DType::kBool) {
    return invalid_input("the operands are bool, numbers were expected");
  }
  return Types{ir::TensorType{inputs[0].dtype, std::move(shape)}};
}

Result<Types> infer_real_pair(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_ASSIGN_OR_RETURN(Types types, infer_pair(inputs, attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return types;
}

/// d(a^b) is b a^(b-1) da + a^b log(a) db, where 0^b with b ≥ 0 is flat in b, and a^0 in a.
void gradient_pow(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId base = b.input(0);
  const ir::ValueId exponent = b.input(1);
  const ir::ValueId zero = zero_like(b, g);
  if (b.needed(0)) {
    const ir::ValueId power = b.emit("pow", {base, shifted(b, exponent, -1.0)});
    const ir::ValueId slope = b.emit("mul", {exponent, power});
    const ir::ValueId flat = b.emit("eq_scalar", {exponent}, {{"value", 0.0}});
    const ir::ValueId whole = b.emit("where", {flat, zero, b.emit("mul", {g, slope})});
    b.set_input_gradient(0, b.sum_to(whole, base));
  }
  if (b.needed(1)) {
    const ir::ValueId slope = b.emit("mul", {b.output(0), b.emit("log", {base})});
    const ir::ValueId at_zero = b.emit("eq_scalar", {base}, {{"value", 0.0}});
    const ir::ValueId rises = b.emit("ge_scalar", {exponent}, {{"value", 0.0}});
    const ir::ValueId flat = b.emit("logical_and", {at_zero, rises});
    const ir::ValueId whole = b.emit("where", {flat, zero, b.emit("mul", {g, slope})});
    b.set_input_gradient(1, b.sum_to(whole, exponent));
  }
}

void gradient_atan2(GradientBuilder& b) {
  const ir::ValueId y = b.input(0);
  const ir::ValueId x = b.input(1);
  const ir::ValueId norm = b.emit("add", {squared(b, y), squared(b, x)});
  const ir::ValueId part = b.emit("div", {b.output_gradient(0), norm});
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(b.emit("mul", {part, x}), y));
  }
  if (b.needed(1)) {
    b.set_input_gradient(1, b.sum_to(b.emit("neg", {b.emit("mul", {part, y})}), x));
  }
}

/// a - floor(a / b) · b.
void gradient_remainder(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(g, b.input(0)));
  }
  if (b.needed(1)) {
    const ir::ValueId quotient = b.emit("floor_div", {b.input(0), b.input(1)});
    const ir::ValueId slope = b.emit("neg", {quotient});
    b.set_input_gradient(1, b.sum_to(b.emit("mul", {g, slope}), b.input(1)));
  }
}

std::vector<OpDef> pair_functions() {
  return {
      elementwise_row("pow", "a^b", infer_real_pair, axes_elementwise, gradient_pow),
      elementwise_row(
          "atan2", "angle of the point (b, a)", infer_real_pair, axes_elementwise, gradient_atan2),
      elementwise_row(
          "remainder", "a - floor(a / b) · b", infer_pair, axes_elementwise, gradient_remainder),
      elementwise_row("floor_div", "floor(a / b)", infer_pair, axes_elementwise, gradient_none),
  };
}

// Activations -------------------------------------------------------------------------------------

using Numbers = std::initializer_list<AttributeRule>;

/// x, or g and x, of one floating type; the attributes are numbers.
Result<Types> infer_activation(Inputs inputs,
                               const ir::Attributes& attributes,
                               Numbers numbers,
                               bool backward) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, backward ? 2 : 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, numbers));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  if (backward) {
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 1, inputs[0], "the operand"));
  }
  return Types{inputs[0]};
}

template <bool kBackward>
Result<Types> infer_plain(Inputs inputs, const ir::Attributes& attributes) {
  return infer_activation(inputs, attributes, {}, kBackward);
}
template <bool kBackward>
Result<Types> infer_leaky_relu(Inputs inputs, const ir::Attributes& attributes) {
  return infer_activation(inputs, attributes, {{"slope", AttributeKind::kNumber}}, kBackward);
}
template <bool kBackward>
Result<Types> infer_elu(Inputs inputs, const ir::Attributes& attributes) {
  return infer_activation(inputs,
                          attributes,
                          {{"alpha", AttributeKind::kNumber},
                           {"scale", AttributeKind::kNumber},
                           {"input_scale", AttributeKind::kNumber}},
                          kBackward);
}
template <bool kBackward>
Result<Types> infer_softplus(Inputs inputs, const ir::Attributes& attributes) {
  return infer_activation(inputs,
                          attributes,
                          {{"beta", AttributeKind::kNumber}, {"threshold", AttributeKind::kNumber}},
                          kBackward);
}
template <bool kBackward>
Result<Types> infer_hardtanh(Inputs inputs, const ir::Attributes& attributes) {
  return infer_activation(inputs,
                          attributes,
                          {{"low", AttributeKind::kNumber}, {"high", AttributeKind::kNumber}},
                          kBackward);
}

/// The backward op reads x and has the same attributes.
void gradient_by(GradientBuilder& b, const char* backward) {
  b.set_input_gradient(0, b.emit(backward, {b.output_gradient(0), b.input(0)}, b.attributes()));
}

std::vector<OpDef> activations() {
  return {
      elementwise_row("leaky_relu",
                      "x where x > 0, else slope · x",
                      infer_leaky_relu<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "leaky_relu_backward"); }),
      elementwise_row("elu",
                      "scale · x where x > 0, else scale · alpha · (e^(input_scale · x) - 1)",
                      infer_elu<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "elu_backward"); }),
      elementwise_row("softplus",
                      "log(1 + e^(beta · x)) / beta, x where beta · x > threshold",
                      infer_softplus<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "softplus_backward"); }),
      elementwise_row("hardtanh",
                      "x held between low and high",
                      infer_hardtanh<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "hardtanh_backward"); }),
      elementwise_row("hardswish",
                      "x · min(max(x + 3, 0), 6) / 6",
                      infer_plain<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "hardswish_backward"); }),
      elementwise_row("hardsigmoid",
                      "min(max(x + 3, 0), 6) / 6",
                      infer_plain<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "hardsigmoid_backward"); }),
      elementwise_row("mish",
                      "x · tanh(softplus(x))",
                      infer_plain<false>,
                      axes_elementwise,
                      [](GradientBuilder& b) { gradient_by(b, "mish_backward"); }),
  };
}

// binary_cross_entropy ----------------------------------------------------------------------------

/// x and the target, after g in the backward op: all of one floating type.
template <std::size_t kCount>
Result<Types> infer_binary_cross_entropy(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, kCount));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  for (std::size_t i = 1; i < kCount; ++i) {
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, i, inputs[0], "each operand"));
  }
  return Types{inputs[0]};
}

void gradient_binary_cross_entropy(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(0, b.emit("binary_cross_entropy_backward", {g, b.input(0), b.input(1)}));
  }
  if (b.needed(1)) {  // the slope is log(1 - x) - log(x)
    const ir::ValueId x = b.input(0);
    const ir::ValueId other = b.emit("log1p", {b.emit("neg", {x})});
    const ir::ValueId slope = b.emit("sub", {other, b.emit("log", {x})});
    b.set_input_gradient(1, b.emit("mul", {g, slope}));
  }
}

std::vector<OpDef> activation_gradients() {
  const auto row = [](const char* name, const char* summary, Infer infer) {
    return elementwise_row(name, summary, infer, axes_linear);
  };
  return {
      row("leaky_relu_backward", "g · leaky_relu'(x)", infer_leaky_relu<true>),
      row("elu_backward", "g · elu'(x)", infer_elu<true>),
      row("softplus_backward", "g · softplus'(x)", infer_softplus<true>),
      row("hardtanh_backward", "g where low < x < high, else 0", infer_hardtanh<true>),
      row("hardswish_backward", "g · hardswish'(x)", infer_plain<true>),
      row("hardsigmoid_backward", "g · hardsigmoid'(x)", infer_plain<true>),
      row("mish_backward", "g · mish'(x)", infer_plain<true>),
      elementwise_row("binary_cross_entropy",
                      "-t log(x) - (1 - t) log(1 - x), logarithms at least -100",
                      infer_binary_cross_entropy<2>,
                      axes_elementwise,
                      gradient_binary_cross_entropy),
      row("binary_cross_entropy_backward",
          "g · (x - t) / (x · (1 - x))",
          infer_binary_cross_entropy<3>),
  };
}

}  // namespace

std::vector<OpDef> function_ops() {
  std::vector<OpDef> table;
  for (const auto part : {real_functions, pair_functions, activations, activation_gradients}) {
    const std::vector<OpDef> rows = part();
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

}  // namespace shardplan::ops
