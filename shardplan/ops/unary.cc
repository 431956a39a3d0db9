// Elementwise ops of one operand, and the backward ops of activations. How to read this file: for
// each group its inference, axis maps and gradients, then its rows; the table is at the end.
//
// Gradients follow PyTorch at kinks: |x| has gradient 0 at 0, maximum_scalar and minimum_scalar
// pass it at equality.

#include <cmath>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

// Inference ---------------------------------------------------------------------------------------

Result<Types> infer_same(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  return Types{inputs[0]};
}

Result<Types> infer_floating(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return Types{inputs[0]};
}

Result<Types> infer_logical_not(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  return Types{ir::TensorType{ir::DType::kBool, inputs[0].shape}};
}

Status check_approximation(const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"approximate", AttributeKind::kText}}));
  const std::string& approximate = attributes.string("approximate");
  if (approximate != "none" && approximate != "tanh") {
    return invalid_input("approximate is \"" + approximate + "\", \"none\" or \"tanh\" expected");
  }
  return {};
}

Result<Types> infer_gelu(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_approximation(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return Types{inputs[0]};
}

Result<Types> infer_cast(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dtype", AttributeKind::kText}}));
  const auto dtype = ir::parse_dtype(attributes.string("dtype"));
  if (!dtype) {
    return invalid_input("dtype \"" + attributes.string("dtype") +
                         "\" is none of bool u8 i32 i64 bf16 f16 f32 f64");
  }
  return Types{ir::TensorType{*dtype, inputs[0].shape}};
}

/// The scalar of an op on integers must be a whole number: nothing is rounded silently.
Result<Types> infer_with_scalar(Inputs inputs,
                                const ir::Attributes& attributes,
                                std::string_view scalar) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{scalar, AttributeKind::kNumber}}));
  const double value = attributes.number(scalar);
  if (!ir::is_floating(inputs[0].dtype) && std::trunc(value) != value) {
    return invalid_input("the scalar " + std::to_string(value) + " is not a whole number, but " +
                         "operand 0 is " + ir::to_string(inputs[0]));
  }
  return Types{inputs[0]};
}

Result<Types> infer_scale(Inputs inputs, const ir::Attributes& attributes) {
  return infer_with_scalar(inputs, attributes, "factor");
}

Result<Types> infer_value_scalar(Inputs inputs, const ir::Attributes& attributes) {
  return infer_with_scalar(inputs, attributes, "value");
}

Result<Types> infer_pow_scalar(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_ASSIGN_OR_RETURN(Types types, infer_with_scalar(inputs, attributes, "exponent"));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return types;
}

Result<Types> infer_compare_scalar(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"value", AttributeKind::kNumber}}));
  return Types{ir::TensorType{ir::DType::kBool, inputs[0].shape}};
}

Status check_activation_gradient(Inputs inputs) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return check_type(inputs, 1, inputs[0], "the saved value");
}

Result<Types> infer_activation_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_activation_gradient(inputs));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  return Types{inputs[0]};
}

Result<Types> infer_gelu_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_activation_gradient(inputs));
  SHARDPLAN_RETURN_IF_ERROR(check_approximation(attributes));
  return Types{inputs[0]};
}

/// Rounding to fewer bits shard by shard is not rounding the sum; widening loses nothing.
AxisMap axes_cast(const OpView& op) {
  const ir::DType from = op.inputs[0].dtype;
  const ir::DType to = op.results[0].dtype;
  const bool widens = ir::is_floating(from) && ir::is_floating(to) &&
                      (from == to || ir::element_bytes(to) > ir::element_bytes(from));
  return widens ? axes_linear(op) : axes_elementwise(op);
}

// Gradients ---------------------------------------------------------------------------------------

void gradient_pass(GradientBuilder& b) {
  b.set_input_gradient(0, b.output_gradient(0));
}

void gradient_neg(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("neg", {b.output_gradient(0)}));
}

void gradient_abs(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId positive = b.emit("gt_scalar", {b.input(0)}, {{"value", 0.0}});
  const ir::ValueId negative = b.emit("lt_scalar", {b.input(0)}, {{"value", 0.0}});
  const ir::ValueId sign = b.emit("sub", {cast_like(b, positive, g), cast_like(b, negative, g)});
  b.set_input_gradient(0, b.emit("mul", {g, sign}));
}

void gradient_exp(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("mul", {b.output_gradient(0), b.output(0)}));
}

void gradient_log(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("div", {b.output_gradient(0), b.input(0)}));
}

void gradient_sqrt(GradientBuilder& b) {
  const ir::ValueId half = scaled(b, b.output_gradient(0), 0.5);
  b.set_input_gradient(0, b.emit("div", {half, b.output(0)}));
}

void gradient_rsqrt(GradientBuilder& b) {
  const ir::ValueId cube = b.emit("pow_scalar", {b.output(0)}, {{"exponent", 3.0}});
  b.set_input_gradient(0, scaled(b, b.emit("mul", {b.output_gradient(0), cube}), -0.5));
}

void gradient_reciprocal(GradientBuilder& b) {
  const ir::ValueId square = b.emit("mul", {b.output(0), b.output(0)});
  const ir::ValueId product = b.emit("mul", {b.output_gradient(0), square});
  b.set_input_gradient(0, b.emit("neg", {product}));
}

void gradient_sin(GradientBuilder& b) {
  const ir::ValueId slope = b.emit("cos", {b.input(0)});
  b.set_input_gradient(0, b.emit("mul", {b.output_gradient(0), slope}));
}

void gradient_cos(GradientBuilder& b) {
  const ir::ValueId slope = b.emit("sin", {b.input(0)});
  const ir::ValueId product = b.emit("mul", {b.output_gradient(0), slope});
  b.set_input_gradient(0, b.emit("neg", {product}));
}

void gradient_tanh(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("tanh_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_sigmoid(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("sigmoid_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_relu(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("relu_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_silu(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("silu_backward", {b.output_gradient(0), b.input(0)}));
}

void gradient_gelu(GradientBuilder& b) {
  b.set_input_gradient(0,
                       b.emit("gelu_backward", {b.output_gradient(0), b.input(0)}, b.attributes()));
}

void gradient_cast(GradientBuilder& b) {
  b.set_input_gradient(0, cast_like(b, b.output_gradient(0), b.input(0)));
}

void gradient_scale(GradientBuilder& b) {
  b.set_input_gradient(0, scaled(b, b.output_gradient(0), b.attributes().number("factor")));
}

void gradient_pow_scalar(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const double exponent = b.attributes().number("exponent");
  if (exponent == 0.0) {
    return;
  }
  if (exponent == 1.0) {
    b.set_input_gradient(0, g);
    return;
  }
  const ir::ValueId power =
      exponent == 2.0 ? b.input(0)
                      : b.emit("pow_scalar", {b.input(0)}, {{"exponent", exponent - 1.0}});
  b.set_input_gradient(0, b.emit("mul", {scaled(b, g, exponent), power}));
}

void gradient_maximum_scalar(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId above =
      b.emit("ge_scalar", {b.input(0)}, {{"value", b.attributes().number("value")}});
  b.set_input_gradient(0, b.emit("where", {above, g, zero_like(b, g)}));
}

void gradient_minimum_scalar(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId below =
      b.emit("le_scalar", {b.input(0)}, {{"value", b.attributes().number("value")}});
  b.set_input_gradient(0, b.emit("where", {below, g, zero_like(b, g)}));
}

// Rows --------------------------------------------------------------------------------------------

OpDef identity_row() {
  OpDef def = elementwise_row("identity", "x", infer_same, axes_linear, gradient_pass);
  def.flops = nullptr;
  def.view = true;
  def.elementwise = false;
  return def;
}

OpDef detach_row() {
  OpDef def = identity_row();
  def.name = "detach";
  def.summary = "x, through which no gradient passes";
  def.gradient = nullptr;
  def.stops_gradient = true;
  return def;
}

std::vector<OpDef> value_ops() {
  return {
      identity_row(),
      detach_row(),
      elementwise_row("neg", "-x", infer_same, axes_linear, gradient_neg),
      elementwise_row("abs", "|x|", infer_same, axes_elementwise, gradient_abs),
      elementwise_row("exp", "e^x", infer_floating, axes_elementwise, gradient_exp),
      elementwise_row("log", "natural logarithm", infer_floating, axes_elementwise, gradient_log),
      elementwise_row("sqrt", "square root", infer_floating, axes_elementwise, gradient_sqrt),
      elementwise_row("rsqrt", "1 / sqrt(x)", infer_floating, axes_elementwise, gradient_rsqrt),
      elementwise_row("reciprocal", "1 / x", infer_floating, axes_elementwise, gradient_reciprocal),
      elementwise_row("sin", "sine", infer_floating, axes_elementwise, gradient_sin),
      elementwise_row("cos", "cosine", infer_floating, axes_elementwise, gradient_cos),
      elementwise_row(
          "tanh", "hyperbolic tangent", infer_floating, axes_elementwise, gradient_tanh),
      elementwise_row(
          "sigmoid", "1 / (1 + e^-x)", infer_floating, axes_elementwise, gradient_sigmoid),
      elementwise_row("relu", "max(x, 0)", infer_floating, axes_elementwise, gradient_relu),
      elementwise_row("silu", "x · sigmoid(x)", infer_floating, axes_elementwise, gradient_silu),
      elementwise_row(
          "gelu", "x · Phi(x), exact or by tanh", infer_gelu, axes_elementwise, gradient_gelu),
      elementwise_row("logical_not", "x is zero", infer_logical_not, axes_elementwise),
      elementwise_row("cast", "x in another element type", infer_cast, axes_cast, gradient_cast),
      elementwise_row("scale", "x · factor", infer_scale, axes_linear, gradient_scale),
      elementwise_row(
          "add_scalar", "x + value", infer_value_scalar, axes_elementwise, gradient_pass),
      elementwise_row(
          "pow_scalar", "x^exponent", infer_pow_scalar, axes_elementwise, gradient_pow_scalar),
      elementwise_row("maximum_scalar",
                      "max(x, value)",
                      infer_value_scalar,
                      axes_elementwise,
                      gradient_maximum_scalar),
      elementwise_row("minimum_scalar",
                      "min(x, value)",
                      infer_value_scalar,
                      axes_elementwise,
                      gradient_minimum_scalar),
  };
}

std::vector<OpDef> scalar_comparison_ops() {
  return {
      elementwise_row("eq_scalar", "x = value", infer_compare_scalar, axes_elementwise),
      elementwise_row("ne_scalar", "x ≠ value", infer_compare_scalar, axes_elementwise),
      elementwise_row("lt_scalar", "x < value", infer_compare_scalar, axes_elementwise),
      elementwise_row("le_scalar", "x ≤ value", infer_compare_scalar, axes_elementwise),
      elementwise_row("gt_scalar", "x > value", infer_compare_scalar, axes_elementwise),
      elementwise_row("ge_scalar", "x ≥ value", infer_compare_scalar, axes_elementwise),
  };
}

std::vector<OpDef> activation_backward_ops() {
  return {
      elementwise_row("tanh_backward", "g · (1 - y²)", infer_activation_backward, axes_linear),
      elementwise_row(
          "sigmoid_backward", "g · y · (1 - y)", infer_activation_backward, axes_linear),
      elementwise_row(
          "relu_backward", "g where y > 0, else 0", infer_activation_backward, axes_linear),
      elementwise_row("silu_backward", "g · silu'(x)", infer_activation_backward, axes_linear),
      elementwise_row("gelu_backward", "g · gelu'(x)", infer_gelu_backward, axes_linear),
  };
}

}  // namespace

std::vector<OpDef> unary_ops() {
  std::vector<OpDef> table;
  for (const auto part : {value_ops, scalar_comparison_ops, activation_backward_ops}) {
    const std::vector<OpDef> rows = part();
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

}  // namespace shardplan::ops
