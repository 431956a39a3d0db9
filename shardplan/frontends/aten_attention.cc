// scaled_dot_product_attention: one attention op, or its parts when its weights are dropped out.

#include <algorithm>
#include <array>
#include <cmath>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// What is known of a mask: nothing to mask, the causal mask, or a mask that must be computed.
struct MaskForm {
  bool causal = false;
  std::optional<ConstTensor> other;
};

/// Minus infinity, or a float so low that it stands for it.
bool is_never(const Number& value) {
  return value.as_double() <= -1e30;
}

/// A float mask that holds only 0 and minus infinity is a bool mask.
std::optional<ConstTensor> as_bool(const ConstTensor& mask) {
  if (mask.type().dtype == DType::kBool) {
    return mask;
  }
  std::optional<std::vector<Number>> elements;
  if (mask.band().has_value()) {
    elements = std::vector{mask.inside(), mask.outside()};
  } else {
    elements = mask.compact_elements();
  }
  if (!elements.has_value() ||
      !std::all_of(elements->begin(), elements->end(), [](const Number& element) {
        return element.as_double() == 0 || is_never(element);
      })) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{mask};
  return elementwise({DType::kBool, mask.shape()}, operands, [](std::span<const Number> v) {
    return Number::of(std::int64_t{v[0].as_double() == 0});
  });
}

/// Whether the bool mask is true exactly where the key is not after the query.
bool is_causal(const ConstTensor& mask, std::int64_t queries, std::int64_t keys) {
  const std::size_t rank = mask.shape().size();
  if (queries != keys || rank < 2 || mask.shape()[rank - 2] != queries ||
      mask.shape()[rank - 1] != keys) {
    return false;
  }
  if (mask.band().has_value()) {
    const std::optional<Band> band = mask.true_band();
    return band.has_value() && band->row == rank - 2 && band->column == rank - 1 &&
           band->low == 0 && band->high.value_or(queries) >= queries - 1;
  }
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    if (mask.varies(d)) {
      return false;
    }
  }
  std::vector<std::int64_t> index(rank, 0);
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t k = 0; k < keys; ++k) {
      index[rank - 2] = q;
      index[rank - 1] = k;
      if ((mask.at(index).i != 0) != (k <= q)) {
        return false;
      }
    }
  }
  return true;
}

MaskForm form_of(const ConstTensor& mask, std::int64_t queries, std::int64_t keys) {
  const std::optional<ConstTensor> truth = as_bool(mask);
  if (!truth.has_value()) {
    return {false, mask};
  }
  const std::optional<Number> value = truth->uniform();
  if (value.has_value() && value->i != 0) {
    return {};
  }
  if (is_causal(*truth, queries, keys)) {
    return {true, std::nullopt};
  }
  return {false, truth};
}

/// The mask with leading dimensions of size 1 up to rank 4.
ValueId four_dimensional(AtenCall& c, ValueId mask) {
  Shape shape = c.builder().type(mask).shape;
  if (!c.ok() || shape.size() >= 4) {
    return mask;
  }
  shape.insert(shape.begin(), 4 - shape.size(), 1);
  return c.reshape(mask, shape);
}

/// k or v [b, g, s, d] with each head repeated so that there are `heads`.
ValueId repeat_heads(AtenCall& c, ValueId x, std::int64_t heads) {
  const Shape shape = c.builder().type(x).shape;
  if (!c.ok() || shape[1] == heads || heads % shape[1] != 0) {
    return x;
  }
  const ValueId apart = c.reshape(x, {shape[0], shape[1], 1, shape[2], shape[3]});
  const IntList stretched{shape[0], shape[1], heads / shape[1], shape[2], shape[3]};
  const ValueId wide = c.builder().emit("broadcast", {apart}, {{"shape", stretched}});
  return c.reshape(wide, {shape[0], heads, shape[2], shape[3]});
}

struct Operands {
  ValueId q;
  ValueId k;
  ValueId v;
};

/// Whether a trainable parameter has a part in the value.
bool is_learnt(const ir::Graph& graph, ValueId value) {
  std::vector<ValueId> open{value};
  std::vector<bool> seen(graph.values().size(), false);
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (seen[at.index()] || !ir::is_floating(graph.type(at).dtype)) {
      continue;
    }
    seen[at.index()] = true;
    if (graph.value(at).trainable) {
      return true;
    }
    if (graph.value(at).producer.valid()) {
      const std::vector<ValueId>& inputs = graph.op(graph.value(at).producer).inputs;
      open.insert(open.end(), inputs.begin(), inputs.end());
    }
  }
  return false;
}

ValueId attend(AtenCall& c, const Operands& in, bool causal, ValueId mask) {
  const Shape q = c.builder().type(in.q).shape;
  const double scale = c.real("scale", 1.0 / std::sqrt(static_cast<double>(q.back())));
  const double p = c.real("dropout_p", 0.0);
  // The fused op has no gradient of its mask: a bias that is learnt is added to the scores.
  if (p > 0 || (mask.valid() && is_learnt(c.builder().graph(), mask))) {
    const ValueId k = repeat_heads(c, in.k, q[1]);
    const ValueId v = repeat_heads(c, in.v, q[1]);
    return dropout_attention(c.builder(),
                             in.q,
                             k,
                             v,
                             {.heads_inner = false,
                              .scale = scale,
                              .causal = causal,
                              .mask = mask,
                              .p = p,
                              .seed = c.next_dropout_site()});
  }
  std::vector<ValueId> operands{in.q, in.k, in.v};
  if (mask.valid()) {
    operands.push_back(mask);
  }
  return c.builder().emit("attention",
                          operands,
                          {{"layout", std::string("bhsd")},
                           {"causal", causal},
                           {"scale", scale},
                           {"mask", mask.valid()}});
}

/// The dimensions before [s, d] of what has `rank` dimensions once there are 1s in front.
Shape leading_of(const Shape& shape, std::size_t rank) {
  Shape leading(rank - shape.size(), 1);
  leading.insert(leading.end(), shape.begin(), shape.end() - 2);
  return leading;
}

/// Broadcasts the leading dimensions of q, k and v against each other and returns them. k and v may
/// have fewer heads than q (the last leading dimension of two or more), and keep theirs.
Shape broadcast_leading(AtenCall& c, Operands& in) {
  const std::array<ValueId*, 3> operands{&in.q, &in.k, &in.v};
  std::size_t rank = 2;
  for (const ValueId* const operand : operands) {
    rank = std::max(rank, c.builder().type(*operand).shape.size());
  }
  Shape all(rank - 2, 1);
  std::vector<Shape> leading;
  for (const ValueId* const operand : operands) {
    leading.push_back(leading_of(c.builder().type(*operand).shape, rank));
    for (std::size_t d = 0; d < all.size(); ++d) {
      all[d] = leading.back()[d] != 1 ? leading.back()[d] : all[d];
    }
  }
  const bool grouped = rank >= 4 && leading[0].back() == all.back() &&
                       leading[1].back() == leading[2].back() && leading[1].back() > 0 &&
                       all.back() % leading[1].back() == 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Shape wanted = all;
    if (grouped && i > 0) {
      wanted.back() = leading[i].back();
    }
    for (std::size_t d = 0; d < wanted.size(); ++d) {
      if (leading[i][d] != wanted[d] && leading[i][d] != 1) {
        c.invalid("the leading dimensions of query, key and value do not fit together");
        return all;
      }
    }
    const Shape shape = c.builder().type(*operands[i]).shape;
    leading[i].insert(leading[i].end(), shape.end() - 2, shape.end());
    wanted.insert(wanted.end(), shape.end() - 2, shape.end());
    *operands[i] = c.reshape(*operands[i], leading[i]);
    if (leading[i] != wanted) {
      *operands[i] = c.builder().emit("broadcast", {*operands[i]}, {{"shape", wanted}});
    }
  }
  return all;
}

/// x [..., s, d] as [b, h, s, d]: of one leading dimension the batch, of more the last one as heads
/// and the others as one.
ValueId four_dimensional_operand(AtenCall& c, ValueId x) {
  const Shape shape = c.builder().type(x).shape;
  Shape merged{1, 1, shape[shape.size() - 2], shape.back()};
  for (std::size_t d = 0; d + 2 < shape.size(); ++d) {
    merged[shape.size() > 3 && d + 3 == shape.size() ? 1 : 0] *= shape[d];
  }
  return c.reshape(x, merged);
}

/// The mask as one that broadcasts to [b, h, q, k]; `leading` are the dimensions before [q, d].
ValueId four_dimensional_mask(AtenCall& c, ValueId mask, const Shape& leading) {
  const Shape shape = c.builder().type(mask).shape;
  if (!c.ok() || leading.size() <= 2) {
    const bool by_batch = leading.size() == 1 && shape.size() == 3;
    return by_batch ? four_dimensional_operand(c, mask) : four_dimensional(c, mask);
  }
  Shape whole = leading_of(shape, leading.size() + 2);
  whole.insert(whole.end(), shape.end() - 2, shape.end());
  mask = c.reshape(mask, whole);
  const auto heads = static_cast<std::ptrdiff_t>(leading.size()) - 1;
  const bool batched = std::any_of(
      whole.begin(), whole.begin() + heads, [](std::int64_t size) { return size != 1; });
  if (batched && !std::equal(leading.begin(), leading.begin() + heads, whole.begin())) {
    std::copy(leading.begin(), leading.begin() + heads, whole.begin());
    mask = c.builder().emit("broadcast", {mask}, {{"shape", whole}});
  }
  return four_dimensional_operand(c, mask);
}

void map_attention(AtenCall& c) {
  Operands in{c.tensor("query"), c.tensor("key"), c.tensor("value")};
  if (!c.ok()) {
    return;
  }
  for (const ValueId operand : {in.q, in.k, in.v}) {
    if (c.builder().type(operand).rank() < 2) {
      c.invalid("query, key and value need two dimensions or more");
      return;
    }
  }
  const Shape leading = broadcast_leading(c, in);
  if (!c.ok()) {
    return;
  }
  for (ValueId* const operand : {&in.q, &in.k, &in.v}) {
    *operand = four_dimensional_operand(c, *operand);
  }
  const std::int64_t queries = c.builder().type(in.q).shape[2];
  const std::int64_t keys = c.builder().type(in.k).shape[2];
  bool causal = c.flag("is_causal", false);
  ValueId mask;
  if (const ConstTensor* const known = c.constant("attn_mask")) {
    const MaskForm form = form_of(*known, queries, keys);
    causal = causal || form.causal;
    if (form.other.has_value()) {
      mask = c.materialize_compact(*form.other);
    }
  } else {
    mask = c.tensor_if_given("attn_mask");
  }
  if (mask.valid()) {
    mask = four_dimensional_mask(c, mask, leading);
  }
  const ValueId y = attend(c, in, causal, mask);
  c.result(c.reshape(y, c.result_type().shape));
}

}  // namespace

std::vector<AtenOp> aten_attention() {
  return {{"aten.scaled_dot_product_attention.default", map_attention}};
}

}  // namespace shardplan::frontends
