// Elementwise ops of operands that broadcast against each other: arithmetic, comparisons,
// selection. Where an operand was stretched, its gradient is summed back to its shape.

#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

// Inference ---------------------------------------------------------------------------------------

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

// Axis maps ---------------------------------------------------------------------------------------

/// a + b: a partial sum plus a whole value would count the value once for each shard, so both or
/// neither are partial.
AxisMap axes_sum(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0, 1}, {0}}});
}

/// a · b: linear in each operand while the other is whole.
AxisMap axes_product(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}, {{1}, {0}}});
}

// Gradients ---------------------------------------------------------------------------------------

void gradient_add(GradientBuilder& b) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      b.set_input_gradient(i, b.sum_to(b.output_gradient(0), b.input(i)));
    }
  }
}

void gradient_sub(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(g, b.input(0)));
  }
  if (b.needed(1)) {
    b.set_input_gradient(1, b.emit("neg", {b.sum_to(g, b.input(1))}));
  }
}

void gradient_mul(GradientBuilder& b) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      const ir::ValueId product = b.emit("mul", {b.output_gradient(0), b.input(1 - i)});
      b.set_input_gradient(i, b.sum_to(product, b.input(i)));
    }
  }
}

void gradient_div(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId quotient = b.emit("div", {g, b.input(1)});
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(quotient, b.input(0)));
  }
  if (b.needed(1)) {
    const ir::ValueId product = b.emit("mul", {quotient, b.output(0)});
    b.set_input_gradient(1, b.emit("neg", {b.sum_to(product, b.input(1))}));
  }
}

/// Operand 0 and 1 get g where they won the comparison `wins`, g / 2 where they tie.
void gradient_extremum(GradientBuilder& b, const char* wins) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId zero = zero_like(b, g);
  const ir::ValueId tie = b.emit("eq", {b.input(0), b.input(1)});
  const ir::ValueId shared = b.emit("where", {tie, scaled(b, g, 0.5), zero});
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      const ir::ValueId won = b.emit(wins, {b.input(i), b.input(1 - i)});
      const ir::ValueId gradient = b.emit("where", {won, g, shared});
      b.set_input_gradient(i, b.sum_to(gradient, b.input(i)));
    }
  }
}

void gradient_maximum(GradientBuilder& b) {
  gradient_extremum(b, "gt");
}

void gradient_minimum(GradientBuilder& b) {
  gradient_extremum(b, "lt");
}

void gradient_where(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId zero = zero_like(b, g);
  if (b.needed(1)) {
    b.set_input_gradient(1, b.sum_to(b.emit("where", {b.input(0), g, zero}), b.input(1)));
  }
  if (b.needed(2)) {
    b.set_input_gradient(2, b.sum_to(b.emit("where", {b.input(0), zero, g}), b.input(2)));
  }
}

}  // namespace

std::vector<OpDef> binary_ops() {
  return {
      elementwise_row("add", "a + b", infer_binary, axes_sum, gradient_add),
      elementwise_row("sub", "a - b", infer_binary, axes_sum, gradient_sub),
      elementwise_row("mul", "a · b", infer_binary, axes_product, gradient_mul),
      elementwise_row("div", "a / b", infer_div, axes_linear, gradient_div),
      elementwise_row(
          "maximum", "the larger of a and b", infer_binary, axes_elementwise, gradient_maximum),
      elementwise_row(
          "minimum", "the smaller of a and b", infer_binary, axes_elementwise, gradient_minimum),
      elementwise_row(
          "where", "a where c holds, else b", infer_where, axes_elementwise, gradient_where),
      elementwise_row("eq", "a = b", infer_compare, axes_elementwise),
      elementwise_row("ne", "a ≠ b", infer_compare, axes_elementwise),
      elementwise_row("lt", "a < b", infer_compare, axes_elementwise),
      elementwise_row("le", "a ≤ b", infer_compare, axes_elementwise),
      elementwise_row("gt", "a > b", infer_compare, axes_elementwise),
      elementwise_row("ge", "a ≥ b", infer_compare, axes_elementwise),
      elementwise_row("logical_and", "a and b", infer_compare, axes_elementwise),
      elementwise_row("logical_or", "a or b", infer_compare, axes_elementwise),
  };
}

}  // namespace shardplan::ops
