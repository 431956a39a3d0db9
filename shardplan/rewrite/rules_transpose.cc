// Transposes. The rules move them behind elementwise ops, slices and joins, until attention or a
// product takes them in: there they cost nothing.

#include <algorithm>
#include <string>

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::IntList;
using ir::Op;
using ir::Shape;
using ir::ValueId;
using Results = std::optional<std::vector<ValueId>>;

std::size_t at(std::int64_t dim) {
  return static_cast<std::size_t>(dim);
}

/// exp(transpose(x)) -> transpose(exp(x)).
Results sink_through_unary(Rewriter& r, const Op& op) {
  const Op* const transpose =
      is_unary_elementwise(op) ? r.made_by(op.inputs[0], "transpose") : nullptr;
  if (transpose == nullptr) {
    return std::nullopt;
  }
  const IntList permutation = transpose->attributes.ints("permutation");
  const ValueId y = r.emit(op.name, {transpose->inputs[0]}, op.attributes);
  return std::vector{r.transpose(y, permutation)};
}

/// slice, pad, softmax along a dimension of a transpose.
Results sink_through_dim(Rewriter& r, const Op& op) {
  const bool along = op.name == "slice" || op.name == "pad" || op.name == "softmax";
  const Op* const transpose = along ? r.made_by(op.inputs[0], "transpose") : nullptr;
  if (transpose == nullptr) {
    return std::nullopt;
  }
  const IntList permutation = transpose->attributes.ints("permutation");
  ir::Attributes attributes = op.attributes;
  attributes.set("dim", permutation[at(op.attributes.integer("dim"))]);
  const ValueId y = r.emit(op.name, {transpose->inputs[0]}, std::move(attributes));
  return std::vector{r.transpose(y, permutation)};
}

Results sink_through_concat(Rewriter& r, const Op& op) {
  if (op.name != "concat") {
    return std::nullopt;
  }
  IntList permutation;
  std::vector<ValueId> inputs;
  for (const ValueId input : op.inputs) {
    const Op* const transpose = r.made_by(input, "transpose");
    if (transpose == nullptr ||
        (!permutation.empty() && transpose->attributes.ints("permutation") != permutation)) {
      return std::nullopt;
    }
    permutation = transpose->attributes.ints("permutation");
    inputs.push_back(transpose->inputs[0]);
  }
  const std::int64_t dim = permutation[at(op.attributes.integer("dim"))];
  const ValueId y = r.emit("concat", inputs, {{"dim", dim}});
  return std::vector{r.transpose(y, permutation)};
}

/// The shape of `operand` with the permutation undone when that moves only dimensions of size 1, so
/// that a reshape does it; nothing when elements would move.
std::optional<Shape> free_inverse(const Shape& operand, const IntList& permutation) {
  if (operand.size() > permutation.size()) {
    return std::nullopt;
  }
  Shape padded = operand;
  padded.insert(padded.begin(), permutation.size() - operand.size(), 1);
  Shape result(padded.size(), 1);
  std::int64_t last = -1;
  for (std::size_t d = 0; d < padded.size(); ++d) {
    result[at(permutation[d])] = padded[d];
    if (padded[d] != 1) {
      if (permutation[d] < last) {
        return std::nullopt;
      }
      last = permutation[d];
    }
  }
  // Leading dimensions of size 1 that the operand did not have are not needed.
  while (result.size() > operand.size() && result.front() == 1) {
    result.erase(result.begin());
  }
  return result;
}

/// mul(transpose(x), transpose(y)) with equal permutations, and mul(transpose(x), c) where c can be
/// turned back for nothing, as the cosines of rotary positions can.
Results sink_through_broadcasting(Rewriter& r, const Op& op) {
  if (!is_broadcasting(op)) {
    return std::nullopt;
  }
  IntList permutation;
  for (const ValueId input : op.inputs) {
    const Op* const transpose = r.made_by(input, "transpose");
    if (transpose != nullptr && permutation.empty()) {
      permutation = transpose->attributes.ints("permutation");
    }
  }
  if (permutation.empty()) {
    return std::nullopt;
  }
  std::vector<ValueId> inputs;
  std::vector<std::optional<Shape>> shapes;
  for (const ValueId input : op.inputs) {
    const Op* const transpose = r.made_by(input, "transpose");
    if (transpose != nullptr && transpose->attributes.ints("permutation") == permutation) {
      inputs.push_back(transpose->inputs[0]);
      shapes.emplace_back();
      continue;
    }
    const std::optional<Shape> shape = free_inverse(r.shape(input), permutation);
    if (!shape.has_value()) {
      return std::nullopt;
    }
    inputs.push_back(input);
    shapes.push_back(shape);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<Shape>& shape = shapes[i];
    if (shape.has_value()) {
      inputs[i] = r.reshape(inputs[i], *shape);
    }
  }
  return std::vector{r.transpose(r.emit(op.name, inputs, op.attributes), permutation)};
}

/// einsum of transposes: their letters in another order.
Results absorb_into_einsum(Rewriter& r, const Op& op) {
  if (op.name != "einsum") {
    return std::nullopt;
  }
  std::string equation = op.attributes.string("equation");
  std::vector<ValueId> inputs = op.inputs;
  bool changed = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Op* const transpose = r.made_by(inputs[i], "transpose");
    if (transpose == nullptr) {
      continue;
    }
    const IntList& permutation = transpose->attributes.ints("permutation");
    const std::size_t start = i == 0 ? 0 : equation.find(',') + 1;
    const std::string letters = equation.substr(start, permutation.size());
    for (std::size_t d = 0; d < permutation.size(); ++d) {
      equation[start + at(permutation[d])] = letters[d];
    }
    inputs[i] = transpose->inputs[0];
    changed = true;
  }
  if (!changed) {
    return std::nullopt;
  }
  return std::vector{r.emit("einsum", inputs, {{"equation", equation}})};
}

/// transpose(einsum) that is the only reader: the result's letters in another order.
Results absorb_einsum_result(Rewriter& r, const Op& op) {
  const Op* const einsum = op.name == "transpose" ? r.made_by(op.inputs[0], "einsum") : nullptr;
  if (einsum == nullptr || !r.read_once(op.inputs[0])) {
    return std::nullopt;
  }
  std::string equation = einsum->attributes.string("equation");
  const std::size_t start = equation.find("->") + 2;
  const std::string letters = equation.substr(start);
  const IntList& permutation = op.attributes.ints("permutation");
  for (std::size_t d = 0; d < permutation.size(); ++d) {
    equation[start + d] = letters[at(permutation[d])];
  }
  const std::vector<ValueId> inputs = einsum->inputs;
  return std::vector{r.emit("einsum", inputs, {{"equation", equation}})};
}

}  // namespace

std::vector<Rule> transpose_rules() {
  return {
      {"absorb_transposed_operand",
       "a product takes in the transposes of its operands",
       absorb_into_einsum},
      {"absorb_transposed_result",
       "a product takes in the transpose of its result",
       absorb_einsum_result},
      {"transpose_after_unary", "elementwise ops come before transposes", sink_through_unary},
      {"transpose_after_dim", "slices, pads and softmax come before transposes", sink_through_dim},
      {"transpose_after_concat", "joins come before transposes", sink_through_concat},
      {"transpose_after_broadcasting",
       "ops with two operands come before transposes",
       sink_through_broadcasting}};
}

}  // namespace shardplan::rewrite
