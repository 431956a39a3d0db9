// Elementwise ops: one or more operands broadcast together, one result. How to read this file: the
// table at the end has a row an op; above it the inference rules, the axis maps (which differ only
// in their partial rules) and the gradients.

#include <cmath>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise_gradients.h"
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

Result<Types> infer_binary(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Shape shape, broadcast_shapes(inputs));
  return Types{ir::TensorType{inputs[0].dtype, std::move(shape)}};
}

Result<Types> infer_div(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_ASSIGN_OR_RETURN(Types types, infer_binary(inputs, attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return types;
}

Result<Types> infer_compare(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_ASSIGN_OR_RETURN(Types types, infer_binary(inputs, attributes));
  types[0].dtype = ir::DType::kBool;
  return types;
}

Result<Types> infer_where(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  if (inputs[0].dtype != ir::DType::kBool) {
    return invalid_input("the condition is " + ir::to_string(inputs[0]) + ", bool was expected");
  }
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 1, 2));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Shape shape, broadcast_shapes(inputs));
  return Types{ir::TensorType{inputs[1].dtype, std::move(shape)}};
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

// Axis maps ---------------------------------------------------------------------------------------

/// Not linear: no partial sum passes.
AxisMap axes_plain(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results);
}

/// Linear in operand 0 alone (the others are constants of the map).
AxisMap axes_linear(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}});
}

/// a + b: a partial sum plus a whole value would count the value once for each shard, so both or
/// neither are partial.
AxisMap axes_sum(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0, 1}, {0}}});
}

/// a · b: linear in each operand while the other is whole.
AxisMap axes_product(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}, {{1}, {0}}});
}

/// Rounding to fewer bits shard by shard is not rounding the sum; widening loses nothing.
AxisMap axes_cast(const OpView& op) {
  const ir::DType from = op.inputs[0].dtype;
  const ir::DType to = op.results[0].dtype;
  const bool widens = ir::is_floating(from) && ir::is_floating(to) &&
                      (from == to || ir::element_bytes(to) > ir::element_bytes(from));
  return widens ? axes_linear(op) : axes_plain(op);
}

// Rows --------------------------------------------------------------------------------------------

using Infer = Result<Types> (*)(Inputs, const ir::Attributes&);
using Axes = AxisMap (*)(const OpView&);
using Gradient = void (*)(GradientBuilder&);

OpDef row(std::string_view name,
          std::string_view summary,
          Infer infer,
          Axes axes,
          Gradient gradient = nullptr) {
  OpDef def{.name = name, .summary = summary, .infer = infer, .axes = axes};
  def.flops = result_elements;
  def.gradient = gradient;
  def.elementwise = true;
  return def;
}

OpDef identity_row() {
  OpDef def = row("identity", "x", infer_same, axes_linear, gradient_pass);
  def.flops = nullptr;
  def.view = true;
  def.elementwise = false;
  return def;
}

std::vector<OpDef> unary_ops() {
  return {
      identity_row(),
      row("neg", "-x", infer_same, axes_linear, gradient_neg),
      row("abs", "|x|", infer_same, axes_plain, gradient_abs),
      row("exp", "e^x", infer_floating, axes_plain, gradient_exp),
      row("log", "natural logarithm", infer_floating, axes_plain, gradient_log),
      row("sqrt", "square root", infer_floating, axes_plain, gradient_sqrt),
      row("rsqrt", "1 / sqrt(x)", infer_floating, axes_plain, gradient_rsqrt),
      row("reciprocal", "1 / x", infer_floating, axes_plain, gradient_reciprocal),
      row("sin", "sine", infer_floating, axes_plain, gradient_sin),
      row("cos", "cosine", infer_floating, axes_plain, gradient_cos),
      row("tanh", "hyperbolic tangent", infer_floating, axes_plain, gradient_tanh),
      row("sigmoid", "1 / (1 + e^-x)", infer_floating, axes_plain, gradient_sigmoid),
      row("relu", "max(x, 0)", infer_floating, axes_plain, gradient_relu),
      row("silu", "x · sigmoid(x)", infer_floating, axes_plain, gradient_silu),
      row("gelu", "x · Phi(x), exact or by tanh", infer_gelu, axes_plain, gradient_gelu),
      row("logical_not", "x is zero", infer_logical_not, axes_plain),
      row("cast", "x in another element type", infer_cast, axes_cast, gradient_cast),
      row("scale", "x · factor", infer_scale, axes_linear, gradient_scale),
      row("add_scalar", "x + value", infer_value_scalar, axes_plain, gradient_pass),
      row("pow_scalar", "x^exponent", infer_pow_scalar, axes_plain, gradient_pow_scalar),
      row("maximum_scalar",
          "max(x, value)",
          infer_value_scalar,
          axes_plain,
          gradient_maximum_scalar),
  };
}

std::vector<OpDef> comparison_ops() {
  return {
      row("eq", "a = b", infer_compare, axes_plain),
      row("ne", "a ≠ b", infer_compare, axes_plain),
      row("lt", "a < b", infer_compare, axes_plain),
      row("le", "a ≤ b", infer_compare, axes_plain),
      row("gt", "a > b", infer_compare, axes_plain),
      row("ge", "a ≥ b", infer_compare, axes_plain),
      row("logical_and", "a and b", infer_compare, axes_plain),
      row("logical_or", "a or b", infer_compare, axes_plain),
      row("eq_scalar", "x = value", infer_compare_scalar, axes_plain),
      row("ne_scalar", "x ≠ value", infer_compare_scalar, axes_plain),
      row("lt_scalar", "x < value", infer_compare_scalar, axes_plain),
      row("le_scalar", "x ≤ value", infer_compare_scalar, axes_plain),
      row("gt_scalar", "x > value", infer_compare_scalar, axes_plain),
      row("ge_scalar", "x ≥ value", infer_compare_scalar, axes_plain),
  };
}

std::vector<OpDef> arithmetic_ops() {
  return {
      row("add", "a + b", infer_binary, axes_sum, gradient_add),
      row("sub", "a - b", infer_binary, axes_sum, gradient_sub),
      row("mul", "a · b", infer_binary, axes_product, gradient_mul),
      row("div", "a / b", infer_div, axes_linear, gradient_div),
      row("maximum", "the larger of a and b", infer_binary, axes_plain, gradient_maximum),
      row("minimum", "the smaller of a and b", infer_binary, axes_plain, gradient_minimum),
      row("where", "a where c holds, else b", infer_where, axes_plain, gradient_where),
  };
}

std::vector<OpDef> activation_backward_ops() {
  return {
      row("tanh_backward", "g · (1 - y²)", infer_activation_backward, axes_linear),
      row("sigmoid_backward", "g · y · (1 - y)", infer_activation_backward, axes_linear),
      row("relu_backward", "g where y > 0, else 0", infer_activation_backward, axes_linear),
      row("silu_backward", "g · silu'(x)", infer_activation_backward, axes_linear),
      row("gelu_backward", "g · gelu'(x)", infer_gelu_backward, axes_linear),
  };
}

}  // namespace

std::vector<OpDef> elementwise_ops() {
  std::vector<OpDef> table;
  for (const auto part : {unary_ops, comparison_ops, arithmetic_ops, activation_backward_ops}) {
    const std::vector<OpDef> rows = part();
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

}  // namespace shardplan::ops
