// Attention: heads that need no repeating, operands that need no transposing, masks that need no
// broadcasting.

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::IntList;
using ir::Op;
using ir::Shape;
using ir::ValueId;
using Results = std::optional<std::vector<ValueId>>;

/// x of reshape(broadcast(reshape(x))) that repeats each head of x [b, g, s, d] (or [b, s, g, d])
/// next to itself; else invalid.
ValueId unrepeated(const Rewriter& r, ValueId value, std::size_t head_dim) {
  const Op* const merge = r.made_by(value, "reshape");
  const Op* const stretch = merge == nullptr ? nullptr : r.made_by(merge->inputs[0], "broadcast");
  const Op* const apart = stretch == nullptr ? nullptr : r.made_by(stretch->inputs[0], "reshape");
  if (apart == nullptr) {
    return {};
  }
  const ValueId x = apart->inputs[0];
  const Shape& shape = r.shape(x);
  const Shape& wide = r.shape(merge->inputs[0]);
  if (shape.size() != 4 || wide.size() != 5) {
    return {};
  }
  const std::int64_t times = wide[head_dim + 1];
  Shape expected_apart = shape;
  Shape expected_wide = shape;
  Shape expected = shape;
  const auto place = static_cast<std::ptrdiff_t>(head_dim + 1);
  expected_apart.insert(expected_apart.begin() + place, 1);
  expected_wide.insert(expected_wide.begin() + place, times);
  expected[head_dim] *= times;
  const bool repeats = r.shape(stretch->inputs[0]) == expected_apart && wide == expected_wide &&
                       r.shape(value) == expected;
  return repeats ? x : ValueId{};
}

Results group_heads(Rewriter& r, const Op& op) {
  if (op.name != "attention") {
    return std::nullopt;
  }
  const std::size_t head_dim = op.attributes.string("layout") == "bshd" ? 2 : 1;
  const ValueId k = unrepeated(r, op.inputs[1], head_dim);
  const ValueId v = unrepeated(r, op.inputs[2], head_dim);
  if (!k.valid() || !v.valid() || r.shape(k)[head_dim] != r.shape(v)[head_dim]) {
    return std::nullopt;
  }
  std::vector<ValueId> inputs = op.inputs;
  inputs[1] = k;
  inputs[2] = v;
  return r.emit_all("attention", inputs, op.attributes);
}

/// attention of transposes [b, s, h, d] -> [b, h, s, d]: the other layout.
Results absorb_transposes(Rewriter& r, const Op& op) {
  if (op.name != "attention" || op.attributes.string("layout") != "bhsd") {
    return std::nullopt;
  }
  const IntList heads_out{0, 2, 1, 3};
  std::vector<ValueId> inputs = op.inputs;
  for (std::size_t i = 0; i < 3; ++i) {
    const Op* const transpose = r.made_by(inputs[i], "transpose");
    if (transpose == nullptr || transpose->attributes.ints("permutation") != heads_out) {
      return std::nullopt;
    }
    inputs[i] = transpose->inputs[0];
  }
  ir::Attributes attributes = op.attributes;
  attributes.set("layout", std::string("bshd"));
  std::vector<ValueId> results = r.emit_all("attention", inputs, std::move(attributes));
  if (results.size() != 2) {
    return std::nullopt;
  }
  results[0] = r.transpose(results[0], heads_out);
  return results;
}

/// The mask may have size 1 where it is the same for all.
Results absorb_mask_broadcast(Rewriter& r, const Op& op) {
  const bool masked = op.name == "attention" && op.inputs.size() == 4;
  const Op* const broadcast = masked ? r.made_by(op.inputs[3], "broadcast") : nullptr;
  if (broadcast == nullptr) {
    return std::nullopt;
  }
  const ValueId narrow = broadcast->inputs[0];
  Shape shape = r.shape(narrow);
  if (shape.size() > 4) {
    return std::nullopt;
  }
  shape.insert(shape.begin(), 4 - shape.size(), 1);
  std::vector<ValueId> inputs = op.inputs;
  inputs[3] = r.reshape(narrow, shape);
  return r.emit_all("attention", inputs, op.attributes);
}

}  // namespace

std::vector<Rule> attention_rules() {
  return {
      {"group_heads", "attention reads repeated heads where they are", group_heads},
      {"attention_layout", "attention takes in the transposes of its operands", absorb_transposes},
      {"attention_mask", "attention broadcasts its mask by itself", absorb_mask_broadcast}};
}

}  // namespace shardplan::rewrite
