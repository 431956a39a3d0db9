// Ops that move elements without changing them, and those that make tensors from nothing.

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

std::size_t at(std::int64_t dim) {
  return static_cast<std::size_t>(dim);
}

// reshape -----------------------------------------------------------------------------------------

Result<Types> infer_reshape(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"shape", AttributeKind::kInts}}));
  const ir::TensorType result{inputs[0].dtype, attributes.ints("shape")};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result));
  if (result.numel() != inputs[0].numel()) {
    return invalid_input(ir::to_string(inputs[0]) + " has " + std::to_string(inputs[0].numel()) +
                         " elements, the shape " + list_sizes(result.shape) + " has " +
                         std::to_string(result.numel()));
  }
  return Types{result};
}

AxisMap axes_reshape(const OpView& op) {
  return reshape_axis_map(op.inputs[0], op.results[0]);
}

void gradient_reshape(GradientBuilder& b) {
  const ir::IntList shape = b.type(b.input(0)).shape;
  b.set_input_gradient(0, b.emit("reshape", {b.output_gradient(0)}, {{"shape", shape}}));
}

// transpose ---------------------------------------------------------------------------------------

Result<Types> infer_transpose(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"permutation", AttributeKind::kInts}}));
  const ir::IntList& permutation = attributes.ints("permutation");
  ir::IntList sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  bool permutes = sorted.size() == inputs[0].shape.size();
  for (std::size_t d = 0; permutes && d < sorted.size(); ++d) {
    permutes = sorted[d] == static_cast<std::int64_t>(d);
  }
  if (!permutes) {
    return invalid_input(list_sizes(permutation) + " is not a permutation of the dimensions of " +
                         ir::to_string(inputs[0]));
  }
  ir::TensorType result{inputs[0].dtype, {}};
  for (const std::int64_t d : permutation) {
    result.shape.push_back(dim_size(inputs[0], d));
  }
  return Types{result};
}

AxisMap axes_transpose(const OpView& op) {
  std::string text = axis_names("d", op.inputs[0].shape.size()) + " ->";
  for (const std::int64_t d : op.attributes.ints("permutation")) {
    text += " d" + std::to_string(d);
  }
  return make_axis_map(text, op.inputs, op.results, {{{0}, {0}}});
}

void gradient_transpose(GradientBuilder& b) {
  const ir::IntList& permutation = b.attributes().ints("permutation");
  ir::IntList inverse(permutation.size());
  for (std::size_t d = 0; d < permutation.size(); ++d) {
    inverse[at(permutation[d])] = static_cast<std::int64_t>(d);
  }
  b.set_input_gradient(0, b.emit("transpose", {b.output_gradient(0)}, {{"permutation", inverse}}));
}

// broadcast ---------------------------------------------------------------------------------------

Result<Types> infer_broadcast(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"shape", AttributeKind::kInts}}));
  const ir::TensorType result{inputs[0].dtype, attributes.ints("shape")};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result));
  const Types both{inputs[0], result};
  const Result<ir::Shape> common = broadcast_shapes(both);
  if (!common || *common != result.shape) {
    return invalid_input(ir::to_string(inputs[0]) + " does not broadcast to the shape " +
                         list_sizes(result.shape));
  }
  return Types{result};
}

AxisMap axes_broadcast(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0}, {0}}});
}

void gradient_broadcast(GradientBuilder& b) {
  b.set_input_gradient(0, b.sum_to(b.output_gradient(0), b.input(0)));
}

// slice, pad, concat: the dimension along which they cut is needed whole
// ---------------------------

AxisMap axes_along_dim(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  return make_axis_map(names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
}

Result<Types> infer_slice(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"dim", AttributeKind::kInteger},
                                              {"start", AttributeKind::kInteger},
                                              {"end", AttributeKind::kInteger},
                                              {"step", AttributeKind::kInteger}}));
  const std::int64_t dim = attributes.integer("dim");
  const std::int64_t start = attributes.integer("start");
  const std::int64_t end = attributes.integer("end");
  const std::int64_t step = attributes.integer("step");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  if (start < 0 || end <= start || end > dim_size(inputs[0], dim) || step < 1) {
    return invalid_input("start " + std::to_string(start) + ", end " + std::to_string(end) +
                         ", step " + std::to_string(step) + " do not cut dimension " +
                         std::to_string(dim) + " of " + ir::to_string(inputs[0]) +
                         ": 0 <= start < end <= size and step >= 1 expected");
  }
  Types result{inputs[0]};
  result[0].shape[at(dim)] = (end - start - 1) / step + 1;
  return result;
}

/// The gradient of a slice with step s: each element is followed by s - 1 zeros, then the ends that
/// were cut off are zeros.
void gradient_slice(GradientBuilder& b) {
  const std::int64_t dim = b.attributes().integer("dim");
  const std::int64_t start = b.attributes().integer("start");
  const std::int64_t step = b.attributes().integer("step");
  const std::int64_t size = dim_size(b.type(b.input(0)), dim);
  ir::ValueId g = b.output_gradient(0);
  ir::Shape shape = b.type(g).shape;
  if (step > 1 && shape[at(dim)] > 1) {
    ir::IntList split = shape;
    split.insert(split.begin() + dim + 1, 1);
    g = b.emit("reshape", {g}, {{"shape", split}});
    g = b.emit(
        "pad",
        {g},
        {{"dim", dim + 1}, {"before", std::int64_t{0}}, {"after", step - 1}, {"value", 0.0}});
    shape[at(dim)] *= step;
    g = b.emit("reshape", {g}, {{"shape", shape}});
  }
  const std::int64_t room = size - start;
  if (shape[at(dim)] > room) {
    g = b.emit(
        "slice",
        {g},
        {{"dim", dim}, {"start", std::int64_t{0}}, {"end", room}, {"step", std::int64_t{1}}});
    shape[at(dim)] = room;
  }
  const std::int64_t after = room - shape[at(dim)];
  if (start > 0 || after > 0) {
    g = b.emit("pad", {g}, {{"dim", dim}, {"before", start}, {"after", after}, {"value", 0.0}});
  }
  b.set_input_gradient(0, g);
}

Result<Types> infer_pad(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"dim", AttributeKind::kInteger},
                                              {"before", AttributeKind::kInteger},
                                              {"after", AttributeKind::kInteger},
                                              {"value", AttributeKind::kNumber}}));
  const std::int64_t dim = attributes.integer("dim");
  const std::int64_t before = attributes.integer("before");
  const std::int64_t after = attributes.integer("after");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (before < 0 || after < 0 || before > kMost || after > kMost) {
    return invalid_input("before " + std::to_string(before) + " and after " +
                         std::to_string(after) + " must be 0 to 2^48");
  }
  Types result{inputs[0]};
  result[0].shape[at(dim)] += before + after;
  return result;
}

/// Padding with a value other than zero is not linear: each shard would add it.
AxisMap axes_pad(const OpView& op) {
  AxisMap map = axes_along_dim(op);
  if (op.attributes.number("value") != 0.0) {
    map.partials.clear();
  }
  return map;
}

void gradient_pad(GradientBuilder& b) {
  const std::int64_t dim = b.attributes().integer("dim");
  const std::int64_t before = b.attributes().integer("before");
  const std::int64_t size = dim_size(b.type(b.input(0)), dim);
  b.set_input_gradient(
      0,
      b.emit("slice",
             {b.output_gradient(0)},
             {{"dim", dim}, {"start", before}, {"end", before + size}, {"step", std::int64_t{1}}}));
}

Result<Types> infer_concat(Inputs inputs, const ir::Attributes& attributes) {
  if (inputs.empty()) {
    return invalid_input("no operands were given, at least 1 expected");
  }
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dim", AttributeKind::kInteger}}));
  const std::int64_t dim = attributes.integer("dim");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  ir::TensorType result = inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    ir::TensorType expected = inputs[0];
    if (inputs[i].rank() == expected.rank()) {
      expected.shape[at(dim)] = dim_size(inputs[i], dim);
    }
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, i, expected, "an operand joined to operand 0"));
    result.shape[at(dim)] += dim_size(inputs[i], dim);
  }
  return Types{result};
}

AxisMap axes_concat(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  std::string text = names;
  PartialRule all{{0}, {0}};
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    text += ", " + names;
    all.inputs.push_back(static_cast<int>(i));
  }
  return make_axis_map(text + " -> " + names, op.inputs, op.results, {all});
}

void gradient_concat(GradientBuilder& b) {
  const std::int64_t dim = b.attributes().integer("dim");
  std::int64_t start = 0;
  for (std::size_t i = 0; i < b.input_count(); ++i) {
    const std::int64_t end = start + dim_size(b.type(b.input(i)), dim);
    if (b.needed(i)) {
      b.set_input_gradient(
          i,
          b.emit("slice",
                 {b.output_gradient(0)},
                 {{"dim", dim}, {"start", start}, {"end", end}, {"step", std::int64_t{1}}}));
    }
    start = end;
  }
}

// iota, full --------------------------------------------------------------------------------------

Result<Types> infer_iota(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"shape", AttributeKind::kInts},
                                              {"dim", AttributeKind::kInteger},
                                              {"dtype", AttributeKind::kText}}));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::DType dtype, named_dtype(attributes));
  const Types result{ir::TensorType{dtype, attributes.ints("shape")}};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result[0]));
  const std::int64_t dim = attributes.integer("dim");
  if (dim < 0 || dim >= result[0].rank()) {
    return invalid_input("dimension " + std::to_string(dim) + " does not exist in the shape " +
                         list_sizes(result[0].shape));
  }
  return result;
}

AxisMap axes_iota(const OpView& op) {
  std::string text = "->";
  for (std::int64_t d = 0; d < op.results[0].rank(); ++d) {
    text += d == op.attributes.integer("dim") ? " @d" : " d";
    text += std::to_string(d);
  }
  return make_axis_map(text, op.inputs, op.results);
}

/// One line of indices before it is repeated.
Bytes workspace_iota(const OpView& op) {
  const std::int64_t size = dim_size(op.results[0], op.attributes.integer("dim"));
  return size * ir::element_bytes(op.results[0].dtype);
}

Result<Types> infer_full(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"shape", AttributeKind::kInts},
                                              {"value", AttributeKind::kNumber},
                                              {"dtype", AttributeKind::kText}}));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::DType dtype, named_dtype(attributes));
  const Types result{ir::TensorType{dtype, attributes.ints("shape")}};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result[0]));
  return result;
}

AxisMap axes_full(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results);
}

}  // namespace

std::vector<OpDef> shape_ops() {
  return {
      {.name = "reshape",
       .summary = "the same elements in another shape",
       .infer = infer_reshape,
       .axes = axes_reshape,
       .gradient = gradient_reshape,
       .view = true},
      {.name = "transpose",
       .summary = "dimensions in another order",
       .infer = infer_transpose,
       .axes = axes_transpose,
       .gradient = gradient_transpose},
      {.name = "broadcast",
       .summary = "dimensions of size 1, or missing on the left, stretched to a shape",
       .infer = infer_broadcast,
       .axes = axes_broadcast,
       .gradient = gradient_broadcast},
      {.name = "slice",
       .summary = "every step-th element of one dimension from start to before end",
       .infer = infer_slice,
       .axes = axes_along_dim,
       .gradient = gradient_slice},
      {.name = "pad",
       .summary = "one dimension made longer at both ends by a value",
       .infer = infer_pad,
       .axes = axes_pad,
       .gradient = gradient_pad},
      {.name = "concat",
       .summary = "tensors joined along one dimension",
       .infer = infer_concat,
       .axes = axes_concat,
       .gradient = gradient_concat},
      {.name = "iota",
       .summary = "the index along one dimension",
       .infer = infer_iota,
       .axes = axes_iota,
       .workspace = workspace_iota},
      {.name = "full", .summary = "one value everywhere", .infer = infer_full, .axes = axes_full},
  };
}

}  // namespace shardplan::ops
