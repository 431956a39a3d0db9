#include "shardplan/ops/elementwise.h"

#include <string>

#include "shardplan/ops/checks.h"

namespace shardplan::ops {

AxisMap axes_elementwise(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results);
}

AxisMap axes_linear(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}});
}

OpDef elementwise_row(
    std::string_view name, std::string_view summary, Infer infer, Axes axes, Gradient gradient) {
  OpDef def{.name = name, .summary = summary, .infer = infer, .axes = axes};
  def.flops = result_elements;
  def.gradient = gradient;
  def.elementwise = true;
  return def;
}

ir::ValueId scaled(GradientBuilder& b, ir::ValueId value, double factor) {
  return b.emit("scale", {value}, {{"factor", factor}});
}

ir::ValueId zero_like(GradientBuilder& b, ir::ValueId like) {
  const std::string dtype(ir::dtype_name(b.type(like).dtype));
  return b.emit("full", {}, {{"shape", ir::IntList{}}, {"value", 0.0}, {"dtype", dtype}});
}

ir::ValueId cast_like(GradientBuilder& b, ir::ValueId value, ir::ValueId like) {
  return b.emit("cast", {value}, {{"dtype", std::string(ir::dtype_name(b.type(like).dtype))}});
}

}  // namespace shardplan::ops
