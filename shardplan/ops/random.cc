// Ops that draw random numbers: from a counter, so that a result does not depend on the layout.

#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

Result<Types> infer_dropout(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"p", AttributeKind::kNumber}, {"seed", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  const double p = attributes.number("p");
  if (!(p >= 0.0 && p < 1.0)) {
    return invalid_input("p is " + std::to_string(p) + ", 0 <= p < 1 expected");
  }
  return Types{inputs[0]};
}

/// The mask is a function of the global index alone, so it is the same for every partial sum.
AxisMap axes_dropout(const OpView& op) {
  AxisMap map = elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}});
  for (Axis& axis : map.axes) {
    axis.positional = true;
  }
  return map;
}

/// The same attributes draw the same mask.
void gradient_dropout(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("dropout", {b.output_gradient(0)}, b.attributes()));
}

}  // namespace

std::vector<OpDef> random_ops() {
  return {{.name = "dropout",
           .summary = "each element 0 with probability p, else divided by 1 - p",
           .infer = infer_dropout,
           .axes = axes_dropout,
           .flops = result_elements,
           .gradient = gradient_dropout}};
}

}  // namespace shardplan::ops
