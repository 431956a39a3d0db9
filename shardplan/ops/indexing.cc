// Elements chosen along one dimension by an integer tensor, and sums of elements into such places:
// each the gradient of the other.

#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

std::size_t at(std::int64_t dim) {
  return static_cast<std::size_t>(dim);
}

/// Operand 1 holds indices for operand 0, which may be longer in dimensions other than `dim`.
Status check_index(Inputs inputs, const ir::Shape& x, std::int64_t dim) {
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, 1));
  const ir::Shape& index = inputs[1].shape;
  bool fits = index.size() == x.size();
  for (std::size_t d = 0; fits && d < x.size(); ++d) {
    fits = d == at(dim) || index[d] <= x[d];
  }
  if (fits) {
    return {};
  }
  return invalid_input("the index " + ir::to_string(inputs[1]) + " is longer than " +
                       list_sizes(x) + " in another dimension than " + std::to_string(dim));
}

/// x, index → x's elements at the index along `dim`, in the shape of the index.
Result<Types> infer_gather(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dim", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  SHARDPLAN_RETURN_IF_ERROR(check_index(inputs, inputs[0].shape, attributes.integer("dim")));
  return Types{ir::TensorType{inputs[0].dtype, inputs[1].shape}};
}

/// src, index of equal shapes → zeros of `shape` to which src is added at the index along `dim`.
Result<Types> infer_scatter_sum(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"dim", AttributeKind::kInteger}, {"shape", AttributeKind::kInts}}));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, 1, inputs[0].shape, "the index"));
  const ir::TensorType result{inputs[0].dtype, attributes.ints("shape")};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result));
  SHARDPLAN_RETURN_IF_ERROR(check_index(inputs, result.shape, attributes.integer("dim")));
  if (result.dtype == ir::DType::kBool) {
    return invalid_input("operand 0 is bool, a type with sums was expected");
  }
  return Types{result};
}

/// The dimensions of the indexed tensor and of the index: equally long ones go together, others are
/// whole; `dim` is `indexed_name` for the former and k for the latter.
struct Places {
  std::string indexed;
  std::string index;
};

Places places_of(const ir::Shape& indexed,
                 const ir::Shape& index,
                 std::int64_t dim,
                 std::string_view indexed_name) {
  Places places;
  for (std::size_t d = 0; d < indexed.size(); ++d) {
    if (d == at(dim)) {
      places.indexed += " " + std::string(indexed_name);
      places.index += " k";
    } else {
      const std::string name = indexed[d] == index[d] ? " d" + std::to_string(d) : " *";
      places.indexed += name;
      places.index += name;
    }
  }
  return places;
}

/// A shard along `dim` gives zeros for indices outside it: a partial sum, which bools have not.
AxisMap axes_gather(const OpView& op) {
  const bool sums = op.inputs[0].dtype != ir::DType::kBool;
  const Places at = places_of(
      op.inputs[0].shape, op.inputs[1].shape, op.attributes.integer("dim"), sums ? "?v" : "*");
  std::vector<PartialRule> rules;
  if (sums) {
    rules.push_back({{0}, {0}});
  }
  return make_axis_map(
      at.indexed + ", " + at.index + " -> " + at.index, op.inputs, op.results, std::move(rules));
}

AxisMap axes_scatter_sum(const OpView& op) {
  const Places at =
      places_of(op.results[0].shape, op.inputs[0].shape, op.attributes.integer("dim"), "@v");
  return make_axis_map(
      at.index + ", " + at.index + " -> " + at.indexed, op.inputs, op.results, {{{0}, {0}}});
}

void gradient_gather(GradientBuilder& b) {
  const ir::IntList shape = b.type(b.input(0)).shape;
  b.set_input_gradient(0,
                       b.emit("scatter_sum",
                              {b.output_gradient(0), b.input(1)},
                              {{"dim", b.attributes().integer("dim")}, {"shape", shape}}));
}

void gradient_scatter_sum(GradientBuilder& b) {
  b.set_input_gradient(
      0,
      b.emit(
          "gather", {b.output_gradient(0), b.input(1)}, {{"dim", b.attributes().integer("dim")}}));
}

/// ATen adds up in f32 what is narrow.
Bytes workspace_scatter_sum(const OpView& op) {
  const ir::TensorType& type = op.results[0];
  const ir::DType wide = accumulation_dtype(type.dtype);
  const bool narrow = ir::is_floating(type.dtype) && wide != type.dtype;
  return narrow ? type.numel() * ir::element_bytes(wide) : 0;
}

Flops flops_scatter_sum(const OpView& op) {
  return static_cast<Flops>(op.inputs[0].numel());
}

}  // namespace

std::vector<OpDef> indexing_ops() {
  return {
      {.name = "gather",
       .summary = "elements chosen along one dimension by an index of the result's shape",
       .infer = infer_gather,
       .axes = axes_gather,
       .gradient = gradient_gather},
      {.name = "scatter_sum",
       .summary = "zeros to which elements are added along one dimension at an index",
       .infer = infer_scatter_sum,
       .axes = axes_scatter_sum,
       .flops = flops_scatter_sum,
       .workspace = workspace_scatter_sum,
       .gradient = gradient_scatter_sum},
  };
}

}  // namespace shardplan::ops
