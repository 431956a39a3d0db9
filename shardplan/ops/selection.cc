// The largest or smallest elements along one dimension, in order, and their places. The gradient
// goes to those places.

#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

Types with_places(ir::TensorType values) {
  ir::TensorType places{ir::DType::kInt64, values.shape};
  return Types{std::move(values), std::move(places)};
}

/// x → the largest (smallest) element along `dim`, which keeps size 1, and its place.
Result<Types> infer_max_index(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"dim", AttributeKind::kInteger}, {"smallest", AttributeKind::kFlag}}));
  const std::int64_t dim = attributes.integer("dim");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  ir::TensorType values = inputs[0];
  values.shape[static_cast<std::size_t>(dim)] = 1;
  return with_places(std::move(values));
}

Result<Types> infer_topk(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"dim", AttributeKind::kInteger},
                                              {"k", AttributeKind::kInteger},
                                              {"smallest", AttributeKind::kFlag}}));
  const std::int64_t dim = attributes.integer("dim");
  const std::int64_t k = attributes.integer("k");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  if (k < 1 || k > dim_size(inputs[0], dim)) {
    return invalid_input("k is " + std::to_string(k) + ", 1 to the size of dimension " +
                         std::to_string(dim) + " of " + ir::to_string(inputs[0]) + " expected");
  }
  ir::TensorType values = inputs[0];
  values.shape[static_cast<std::size_t>(dim)] = k;
  return with_places(std::move(values));
}

Result<Types> infer_sort(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"dim", AttributeKind::kInteger}, {"descending", AttributeKind::kFlag}}));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  return with_places(inputs[0]);
}

AxisMap axes_selection(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  return make_axis_map(names + " -> " + names + ", " + names, op.inputs, op.results);
}

void gradient_selection(GradientBuilder& b) {
  const ir::IntList shape = b.type(b.input(0)).shape;
  b.set_input_gradient(0,
                       b.emit("scatter_sum",
                              {b.output_gradient(0), b.output(1)},
                              {{"dim", b.attributes().integer("dim")}, {"shape", shape}}));
}

Flops flops_selection(const OpView& op) {
  return static_cast<Flops>(op.inputs[0].numel());
}

/// Places along one line.
Bytes workspace_sort(const OpView& op) {
  return dim_size(op.inputs[0], op.attributes.integer("dim")) *
         ir::element_bytes(ir::DType::kInt64);
}

}  // namespace

std::vector<OpDef> selection_ops() {
  const auto row = [](const char* name, const char* summary, auto infer) {
    OpDef def{.name = name, .summary = summary, .infer = infer, .axes = axes_selection};
    def.flops = flops_selection;
    def.gradient = gradient_selection;
    return def;
  };
  OpDef sort =
      row("sort",
          "the elements along one dimension in order, equal ones as they were, and their places",
          infer_sort);
  sort.workspace = workspace_sort;
  return {
      row("max_index",
          "the largest or smallest element along one dimension, and its place",
          infer_max_index),
      row("topk",
          "the k largest or smallest elements along one dimension in order, and their places",
          infer_topk),
      sort,
  };
}

}  // namespace shardplan::ops
