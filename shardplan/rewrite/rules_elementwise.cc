// Broadcasts that elementwise ops do by themselves, and activations written out in parts.

#include <algorithm>
#include <cmath>

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::Op;
using ir::Shape;
using ir::ValueId;
using Results = std::optional<std::vector<ValueId>>;

/// Shape of operands broadcast together (they are known to fit).
Shape broadcast_shape(const Rewriter& r, const std::vector<ValueId>& inputs) {
  Shape shape;
  for (const ValueId input : inputs) {
    const Shape& other = r.shape(input);
    if (other.size() > shape.size()) {
      shape.insert(shape.begin(), other.size() - shape.size(), 1);
    }
    for (std::size_t d = 0; d < other.size(); ++d) {
      std::int64_t& size = shape[shape.size() - other.size() + d];
      size = size == 1 ? other[d] : size;
    }
  }
  return shape;
}

/// add(broadcast(x), y) -> add(x, y) where the result keeps its shape.
Results absorb_broadcast(Rewriter& r, const Op& op) {
  if (!is_broadcasting(op)) {
    return std::nullopt;
  }
  const Shape shape = broadcast_shape(r, op.inputs);
  std::vector<ValueId> inputs = op.inputs;
  bool changed = false;
  for (ValueId& input : inputs) {
    const Op* const broadcast = r.made_by(input, "broadcast");
    if (broadcast == nullptr) {
      continue;
    }
    const ValueId wide = std::exchange(input, broadcast->inputs[0]);
    if (broadcast_shape(r, inputs) == shape) {
      changed = true;
    } else {
      input = wide;
    }
  }
  if (!changed) {
    return std::nullopt;
  }
  return std::vector{r.emit(op.name, inputs, op.attributes)};
}

/// exp(broadcast(x)) -> broadcast(exp(x)): fewer elements to compute.
Results sink_broadcast(Rewriter& r, const Op& op) {
  const Op* const broadcast =
      is_unary_elementwise(op) ? r.made_by(op.inputs[0], "broadcast") : nullptr;
  if (broadcast == nullptr) {
    return std::nullopt;
  }
  const ir::Attributes shape = broadcast->attributes;
  const ValueId y = r.emit(op.name, {broadcast->inputs[0]}, op.attributes);
  return std::vector{r.emit("broadcast", {y}, shape)};
}

bool is_close(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::abs(b);
}

/// The operand of op(x) with `number` as its scalar; invalid when `value` is not made so.
ValueId operand_of(const Rewriter& r,
                   ValueId value,
                   std::string_view name,
                   std::string_view attribute,
                   double number) {
  const Op* const op = value.valid() ? r.made_by(value, name) : nullptr;
  if (op == nullptr || !is_close(op->attributes.number(attribute), number)) {
    return {};
  }
  return op->inputs[0];
}

/// x of sqrt(2/π) (x + 0.044715 x³); invalid when `value` is not that.
ValueId tanh_argument(const Rewriter& r, ValueId value) {
  const double root = std::sqrt(2.0 / M_PI);
  const ValueId sum = operand_of(r, value, "scale", "factor", root);
  const Op* const add = sum.valid() ? r.made_by(sum, "add") : nullptr;
  if (add == nullptr) {
    return {};
  }
  for (const auto& [x, cubic] :
       {std::pair(add->inputs[0], add->inputs[1]), std::pair(add->inputs[1], add->inputs[0])}) {
    const ValueId cube = operand_of(r, cubic, "scale", "factor", 0.044715);
    if (operand_of(r, cube, "pow_scalar", "exponent", 3.0) == x) {
      return x;
    }
  }
  return {};
}

/// 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))): GELU by tanh.
Results recognise_gelu(Rewriter& r, const Op& op) {
  if (op.name != "mul") {
    return std::nullopt;
  }
  for (const auto& [half, other] :
       {std::pair(op.inputs[0], op.inputs[1]), std::pair(op.inputs[1], op.inputs[0])}) {
    const ValueId x = operand_of(r, half, "scale", "factor", 0.5);
    const ValueId tangent = operand_of(r, other, "add_scalar", "value", 1.0);
    const Op* const tanh = tangent.valid() ? r.made_by(tangent, "tanh") : nullptr;
    if (x.valid() && tanh != nullptr && tanh_argument(r, tanh->inputs[0]) == x) {
      return std::vector{r.emit("gelu", {x}, {{"approximate", std::string("tanh")}})};
    }
  }
  return std::nullopt;
}

/// x · sigmoid(x).
Results recognise_silu(Rewriter& r, const Op& op) {
  if (op.name != "mul") {
    return std::nullopt;
  }
  for (const auto& [x, other] :
       {std::pair(op.inputs[0], op.inputs[1]), std::pair(op.inputs[1], op.inputs[0])}) {
    const Op* const sigmoid = r.made_by(other, "sigmoid");
    if (sigmoid != nullptr && sigmoid->inputs[0] == x) {
      return std::vector{r.emit("silu", {x})};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Rule> elementwise_rules() {
  return {{"absorb_broadcast",
           "a broadcast before an op that broadcasts by itself goes",
           absorb_broadcast},
          {"sink_broadcast", "elementwise ops come before broadcasts", sink_broadcast},
          {"recognise_gelu", "GELU by tanh, written out, is one op", recognise_gelu},
          {"recognise_silu", "x times its sigmoid is one op", recognise_silu}};
}

}  // namespace shardplan::rewrite
