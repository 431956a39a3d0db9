// Rows of a table chosen by integers.

#include <string>
#include <string_view>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

constexpr std::string_view kPadding = "padding_idx";  ///< an id whose row gets no gradient

/// weight [v, d], ids of any shape → ids' shape with d appended.
Result<Types> infer_embedding(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(
      check_attributes(attributes, {{kPadding, AttributeKind::kInteger, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, 1));
  if (inputs[0].rank() != 2) {
    return invalid_input("the weight is " + ir::to_string(inputs[0]) + ", 2 dimensions expected");
  }
  ir::TensorType result{inputs[0].dtype, inputs[1].shape};
  result.shape.push_back(inputs[0].shape[1]);
  return Types{result};
}

/// A shard of the rows gives zeros for ids outside it: a partial sum.
AxisMap axes_embedding(const OpView& op) {
  const std::string ids = axis_names("b", op.inputs[1].shape.size());
  return make_axis_map("?v d, " + ids + " -> " + ids + " d", op.inputs, op.results);
}

void gradient_embedding(GradientBuilder& b) {
  ir::Attributes attributes = b.attributes();
  attributes.set("rows", dim_size(b.type(b.input(0)), 0));
  b.set_input_gradient(
      0, b.emit("embedding_backward", {b.output_gradient(0), b.input(1)}, std::move(attributes)));
}

/// g of ids' shape with d appended, ids → [rows, d].
Result<Types> infer_embedding_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"rows", AttributeKind::kInteger}, {kPadding, AttributeKind::kInteger, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, 1));
  ir::Shape expected = inputs[1].shape;
  expected.push_back(inputs[0].shape.empty() ? 1 : inputs[0].shape.back());
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, 0, expected, "the gradient"));
  return Types{ir::TensorType{inputs[0].dtype, {attributes.integer("rows"), expected.back()}}};
}

/// Each shard of the rows collects the ids that fall into it; sums over all ids.
AxisMap axes_embedding_backward(const OpView& op) {
  const std::string ids = axis_names("b", op.inputs[1].shape.size());
  return make_axis_map(ids + " d, " + ids + " -> @v d", op.inputs, op.results, {{{0}, {0}}});
}

/// The rows go back to where they came from, but none to ids that are skipped.
void gradient_embedding_backward(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  ir::ValueId rows = b.emit("embedding", {g, b.input(1)});
  if (b.attributes().has(kPadding)) {
    const double padding = static_cast<double>(b.attributes().integer(kPadding));
    ir::ValueId kept = b.emit("ne_scalar", {b.input(1)}, {{"value", padding}});
    kept = cast_like(b, kept, g);
    ir::IntList shape = b.type(b.input(1)).shape;
    shape.push_back(1);
    rows = b.emit("mul", {rows, b.emit("reshape", {kept}, {{"shape", shape}})});
  }
  b.set_input_gradient(0, rows);
}

/// One addition for every element of the gradient.
Flops flops_embedding_backward(const OpView& op) {
  return static_cast<Flops>(op.inputs[0].numel());
}

}  // namespace

std::vector<OpDef> embedding_ops() {
  return {
      {.name = "embedding",
       .summary = "rows of a table by integer ids",
       .infer = infer_embedding,
       .axes = axes_embedding,
       .gradient = gradient_embedding},
      {.name = "embedding_backward",
       .summary = "gradient of the table: each row sums the gradients of its uses",
       .infer = infer_embedding_backward,
       .axes = axes_embedding_backward,
       .flops = flops_embedding_backward,
       .gradient = gradient_embedding_backward},
  };
}

}  // namespace shardplan::ops
