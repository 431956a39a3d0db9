// Reshapes that merge the leading dimensions of x [b, s, ..., k] into rows [b s ..., k]. The rules
// move them behind the ops that follow, until they meet the reshape that undoes them: so products,
// norms and activations see batch and sequence as dimensions of their own, each of which can be
// sharded.

#include <algorithm>
#include <string>

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::Op;
using ir::Shape;
using ir::ValueId;
using Results = std::optional<std::vector<ValueId>>;

/// x [b, s, ..., k] such that the value, [rows, k], is a reshape of it; else invalid. Further
/// dimensions that the reshape merges into k are merged in x.
ValueId unmerged(Rewriter& r, ValueId value) {
  const Op* const reshape = r.made_by(value, "reshape");
  const Shape& rows = r.shape(value);
  if (reshape == nullptr || rows.size() != 2) {
    return {};
  }
  const ValueId x = reshape->inputs[0];
  const Shape& from = r.shape(x);
  Shape wide;
  std::int64_t merged = 1;
  for (std::size_t d = 0; d < from.size() && (wide.size() < 2 || merged < rows[0]); ++d) {
    merged *= from[d];
    wide.push_back(from[d]);
  }
  if (wide.size() < 2 || merged != rows[0] || wide.size() == from.size()) {
    return {};
  }
  wide.push_back(rows[1]);
  return wide == from ? x : r.reshape(x, wide);
}

/// gelu(rows(x)) -> rows(gelu(x)); the same for dropout, which draws by the index of the element,
/// and for softmax along the last dimension.
Results sink_through_unary(Rewriter& r, const Op& op) {
  const bool softmax = op.name == "softmax" && op.attributes.integer("dim") == 1;
  if (!is_unary_elementwise(op) && op.name != "dropout" && !softmax) {
    return std::nullopt;
  }
  const ValueId x = unmerged(r, op.inputs[0]);
  if (!x.valid()) {
    return std::nullopt;
  }
  const Shape rows = r.shape(op.inputs[0]);
  ir::Attributes attributes = op.attributes;
  if (softmax) {
    attributes.set("dim", r.type(x).rank() - 1);
  }
  return std::vector{r.reshape(r.emit(op.name, {x}, std::move(attributes)), rows)};
}

/// add(rows(x), bias [k]) and add(rows(x), rows(y)).
Results sink_through_broadcasting(Rewriter& r, const Op& op) {
  if (!is_broadcasting(op)) {
    return std::nullopt;
  }
  std::vector<ValueId> inputs;
  Shape wide;
  Shape rows;
  for (const ValueId input : op.inputs) {
    const Shape shape = r.shape(input);
    const ValueId x = unmerged(r, input);
    if (!x.valid()) {
      const bool fits = shape.size() <= 1 || (shape.size() == 2 && shape[0] == 1);
      if (!fits) {
        return std::nullopt;
      }
      inputs.push_back(input);
      continue;
    }
    if (!wide.empty() && (wide != r.shape(x) || rows != shape)) {
      return std::nullopt;
    }
    wide = r.shape(x);
    rows = shape;
    inputs.push_back(x);
  }
  if (wide.empty()) {
    return std::nullopt;
  }
  const ValueId y = r.emit(op.name, inputs, op.attributes);
  return std::vector{r.reshape(y, rows)};
}

Results sink_through_layer_norm(Rewriter& r, const Op& op) {
  if (op.name != "layer_norm" || op.attributes.integer("dims") != 1) {
    return std::nullopt;
  }
  const ValueId x = unmerged(r, op.inputs[0]);
  if (!x.valid()) {
    return std::nullopt;
  }
  const Shape rows = r.shape(op.inputs[0]);
  std::vector<ValueId> inputs = op.inputs;
  inputs[0] = x;
  std::vector<ValueId> results = r.emit_all("layer_norm", inputs, op.attributes);
  if (results.size() != 3) {
    return std::nullopt;
  }
  results[0] = r.reshape(results[0], rows);
  results[1] = r.reshape(results[1], {rows[0]});
  results[2] = r.reshape(results[2], {rows[0]});
  return results;
}

/// `count` letters that the equation does not have, "s" and "t" first.
std::string fresh_letters(const std::string& equation, std::size_t count) {
  constexpr std::string_view kLetters = "stuvwxyzdefghijlopqrabckmn";
  std::string fresh;
  for (const char letter : kLetters) {
    if (fresh.size() < count && equation.find(letter) == std::string::npos) {
      fresh += letter;
    }
  }
  return fresh;
}

/// einsum("bk,nk->bn", rows(x), w) -> rows(einsum("bsk,nk->bsn", x, w)).
Results sink_through_einsum(Rewriter& r, const Op& op) {
  if (op.name != "einsum") {
    return std::nullopt;
  }
  const ValueId x = unmerged(r, op.inputs[0]);
  const std::string& equation = op.attributes.string("equation");
  const std::size_t comma = equation.find(',');
  const std::size_t arrow = equation.find("->");
  if (!x.valid() || arrow + 2 >= equation.size() || equation[arrow + 2] != equation[0] ||
      equation.substr(comma, arrow - comma).find(equation[0]) != std::string::npos) {
    return std::nullopt;
  }
  const std::string letters = fresh_letters(equation, r.shape(x).size() - 2);
  if (letters.size() != r.shape(x).size() - 2) {
    return std::nullopt;
  }
  std::string wide = equation;
  wide.insert(arrow + 3, letters);
  wide.insert(1, letters);
  const Shape from = r.shape(x);
  const Shape rows = r.shape(op.inputs[0]);
  const ValueId y = r.emit("einsum", {x, op.inputs[1]}, {{"equation", wide}});
  if (!y.valid()) {
    return std::nullopt;
  }
  const Shape& y_shape = r.shape(y);
  Shape merged{rows[0]};
  merged.insert(
      merged.end(), y_shape.begin() + static_cast<std::ptrdiff_t>(from.size() - 1), y_shape.end());
  return std::vector{r.reshape(y, merged)};
}

/// slice(rows(x)) along the last dimension.
Results sink_through_slice(Rewriter& r, const Op& op) {
  const bool last = op.name == "slice" && op.attributes.integer("dim") == 1;
  const ValueId x = last ? unmerged(r, op.inputs[0]) : ValueId{};
  if (!x.valid()) {
    return std::nullopt;
  }
  const std::int64_t rows = r.shape(op.inputs[0])[0];
  ir::Attributes attributes = op.attributes;
  attributes.set("dim", r.type(x).rank() - 1);
  const ValueId y = r.emit("slice", {x}, std::move(attributes));
  if (!y.valid()) {
    return std::nullopt;
  }
  return std::vector{r.reshape(y, {rows, r.shape(y).back()})};
}

}  // namespace

std::vector<Rule> reshape_rules() {
  return {{"unflatten_unary", "elementwise ops see unmerged rows", sink_through_unary},
          {"unflatten_broadcasting",
           "ops with two operands see unmerged rows",
           sink_through_broadcasting},
          {"unflatten_layer_norm", "layer norm sees unmerged rows", sink_through_layer_norm},
          {"unflatten_einsum", "products see unmerged rows", sink_through_einsum},
          {"unflatten_slice", "slices see unmerged rows", sink_through_slice}};
}

}  // namespace shardplan::rewrite
