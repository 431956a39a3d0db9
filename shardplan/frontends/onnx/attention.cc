// Attention and rotary embeddings.

#include <array>
#include <cmath>
#include <limits>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/dtypes.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::ValueId;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum Position : std::size_t { kMask = 3, kPastKey = 4, kPastValue = 5, kLengths = 6 };

ValueId number(Builder& b, double value, DType dtype) {
  return b.emit(
      "full",
      {},
      {{"shape", IntList{}}, {"value", value}, {"dtype", std::string(ir::dtype_name(dtype))}});
}

/// [batch, sequence, heads · size] as [batch, heads, sequence, size].
ValueId heads_apart(Call& c, ValueId x, std::int64_t heads) {
  Builder& b = c.builder();
  const Shape s = b.type(x).shape;
  if (!c.ok() || s.size() == 4) {
    return x;
  }
  if (s.size() != 3 || heads < 1 || s[2] % heads != 0) {
    c.invalid("its operands have 4 dimensions, or 3 that its numbers of heads divide");
    return x;
  }
  return permuted(b, reshape_to(b, x, {s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

ValueId heads_together(Builder& b, ValueId x) {
  const ValueId y = permuted(b, x, {0, 2, 1, 3});
  const Shape s = b.type(y).shape;
  return b.ok() ? reshape_to(b, y, {s[0], s[1], s[2] * s[3]}) : y;
}

/// Each head `repeats` times in a row.
ValueId repeat_heads(Builder& b, ValueId x, std::int64_t repeats) {
  const Shape s = b.type(x).shape;
  if (!b.ok() || repeats == 1) {
    return x;
  }
  const ValueId apart = reshape_to(b, x, {s[0], s[1], 1, s[2], s[3]});
  const ValueId wide = broadcast_to(b, apart, {s[0], s[1], repeats, s[2], s[3]});
  return reshape_to(b, wide, {s[0], s[1] * repeats, s[2], s[3]});
}

struct Inputs {
  ValueId q{};
  ValueId k{};
  ValueId v{};
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t past = 0;
};

std::optional<Inputs> inputs_of(Call& c) {
  Builder& b = c.builder();
  Inputs in;
  in.q = heads_apart(c, c.tensor(0), c.integer("q_num_heads", 0));
  in.k = heads_apart(c, c.tensor(1), c.integer("kv_num_heads", 0));
  in.v = heads_apart(c, c.tensor(2), c.integer("kv_num_heads", 0));
  if (c.given(kPastKey) && c.given(kPastValue)) {
    const ValueId key = c.tensor(kPastKey);
    const ValueId value = c.tensor(kPastValue);
    in.past = b.type(key).rank() == 4 ? b.type(key).shape[2] : 0;
    in.k = b.emit("concat", {key, in.k}, {{"dim", std::int64_t{2}}});
    in.v = b.emit("concat", {value, in.v}, {{"dim", std::int64_t{2}}});
  }
  const Shape q = b.type(in.q).shape;
  const Shape k = b.type(in.k).shape;
  if (!c.ok() || q.size() != 4 || k.size() != 4 || b.type(in.v).rank() != 4 || q[1] % k[1] != 0) {
    c.invalid("its queries, keys and values do not fit each other");
    return std::nullopt;
  }
  in.batch = q[0];
  in.heads = q[1];
  in.queries = q[2];
  in.keys = k[2];
  return in;
}

/// The bias to which a condition adds minus infinity where it does not hold.
void restrict_to(Builder& b, ValueId& bias, ValueId allowed, DType dtype) {
  const ValueId add =
      b.emit("where", {allowed, number(b, 0.0, dtype), number(b, -kInfinity, dtype)});
  bias = bias.valid() ? b.emit("add", {bias, add}) : add;
}

ValueId index_along(Builder& b, const Shape& shape, std::int64_t dim) {
  return b.emit("iota", {}, {{"shape", shape}, {"dim", dim}, {"dtype", std::string("i64")}});
}

/// The mask that the node is given; where it is shorter than the keys, the rest is masked.
void add_mask(Call& c, const Inputs& in, ValueId& bias, DType dtype) {
  Builder& b = c.builder();
  ValueId mask = c.tensor_if_given(kMask);
  if (!mask.valid() || !c.ok()) {
    return;
  }
  const ir::TensorType type = b.type(mask);
  const bool logical = type.dtype == DType::kBool;
  const std::int64_t missing = type.rank() == 0 ? 0 : in.keys - type.shape.back();
  if (missing > 0) {
    const ValueId values = logical ? cast_to(b, mask, DType::kInt32) : mask;
    mask = b.emit("pad",
                  {values},
                  {{"dim", type.rank() - 1},
                   {"before", std::int64_t{0}},
                   {"after", missing},
                   {"value", logical ? 0.0 : -kInfinity}});
    mask = logical ? cast_to(b, mask, DType::kBool) : mask;
  }
  if (logical) {
    restrict_to(b, bias, mask, dtype);
    return;
  }
  bias = cast_to(b, mask, dtype);
}

/// Causal and window masks: the query at i stands at i + offset among the keys.
void add_positions(Call& c, const Inputs& in, ValueId& bias, DType dtype) {
  Builder& b = c.builder();
  const bool causal = c.flag("is_causal", false);
  const std::int64_t left = c.integer("left_window_size", -1);
  const std::int64_t right = causal ? 0 : c.integer("right_window_size", -1);
  const ValueId lengths = c.tensor_if_given(kLengths);
  const bool shifted = lengths.valid() && !c.given(kPastKey);
  if (!causal && left < 0 && right < 0 && !lengths.valid()) {
    return;
  }
  const ValueId key = index_along(b, {1, 1, 1, in.keys}, 3);
  ValueId query = b.emit("add_scalar",
                         {index_along(b, {1, 1, in.queries, 1}, 2)},
                         {{"value", static_cast<double>(in.past)}});
  ValueId known;
  if (lengths.valid()) {
    known = reshape_to(b, cast_to(b, lengths, DType::kInt64), {in.batch, 1, 1, 1});
    restrict_to(b, bias, b.emit("lt", {key, known}), dtype);
  }
  if (shifted) {
    const ValueId offset =
        b.emit("add_scalar", {known}, {{"value", -static_cast<double>(in.queries)}});
    query = b.emit("add", {query, offset});
  }
  const auto moved = [&](std::int64_t by) {
    return b.emit("add_scalar", {query}, {{"value", static_cast<double>(by)}});
  };
  if (right >= 0) {
    restrict_to(b, bias, b.emit("le", {key, moved(right)}), dtype);
  }
  if (left >= 0) {
    restrict_to(b, bias, b.emit("ge", {key, moved(-left)}), dtype);
  }
}

/// softmax along the keys; a query that may look at none has weights 0.
ValueId weights_of(Builder& b, ValueId scores, ValueId bias, DType wide) {
  const DType dtype = b.type(scores).dtype;
  const auto softmax = [&](ValueId x) {
    const std::int64_t last = b.type(x).rank() - 1;
    return cast_to(b, b.emit("softmax", {cast_to(b, x, wide)}, {{"dim", last}}), dtype);
  };
  if (!bias.valid() || !b.ok()) {
    return softmax(scores);
  }
  const std::int64_t last = b.type(bias).rank() - 1;
  const ValueId best = b.emit("max", {bias}, {{"dims", IntList{last}}, {"keepdim", true}});
  const ValueId nothing = b.emit("eq_scalar", {best}, {{"value", -kInfinity}});
  const ValueId zero = number(b, 0.0, dtype);
  const ValueId safe = b.emit("where", {nothing, zero, bias});
  return b.emit("where", {nothing, zero, softmax(b.emit("add", {scores, safe}))});
}

/// scale · q kᵀ, capped, plus the bias, softmax, times v.
ValueId attend(
    Call& c, const Inputs& in, double scale, ValueId bias, std::array<ValueId, 4>& scores_of_mode) {
  Builder& b = c.builder();
  const std::int64_t repeats = in.heads / b.type(in.k).shape[1];
  const ValueId k = repeat_heads(b, in.k, repeats);
  const ValueId v = repeat_heads(b, in.v, repeats);
  ValueId scores = b.emit("einsum", {in.q, k}, {{"equation", std::string("bhqd,bhkd->bhqk")}});
  scores = b.emit("scale", {scores}, {{"factor", scale}});
  scores_of_mode[0] = scores;
  if (const double cap = c.real("softcap", 0.0); cap > 0) {
    const ValueId small = b.emit("tanh", {b.emit("scale", {scores}, {{"factor", 1.0 / cap}})});
    scores = b.emit("scale", {small}, {{"factor", cap}});
    scores_of_mode[0] = scores;
  }
  scores_of_mode[1] = scores;
  scores_of_mode[2] = bias.valid() ? b.emit("add", {scores, bias}) : scores;
  const DType dtype = b.type(scores).dtype;
  const std::int64_t precision = c.integer("softmax_precision", 0);
  const ValueId weights = weights_of(b, scores, bias, dtype_of_number(precision).value_or(dtype));
  scores_of_mode[3] = weights;
  return b.emit("einsum", {weights, v}, {{"equation", std::string("bhqk,bhke->bhqe")}});
}

void map_attention(Call& c) {
  Builder& b = c.builder();
  const std::optional<Inputs> in = inputs_of(c);
  if (!in.has_value()) {
    return;
  }
  const auto size = static_cast<double>(b.type(in->q).shape[3]);
  const double scale = c.has("scale") ? c.real("scale", 1.0) : 1.0 / std::sqrt(size);
  const DType dtype = b.type(in->q).dtype;
  const bool causal = c.flag("is_causal", false);
  const bool windows = c.has("left_window_size") || c.has("right_window_size");
  const bool plain = !c.given(kMask) && !c.given(kLengths) && !c.wants(3) && !windows &&
                     c.real("softcap", 0.0) == 0.0 && in->past == 0 &&
                     (!causal || in->queries == in->keys);
  ValueId y;
  if (plain) {
    y = b.emit(
        "attention",
        {in->q, in->k, in->v},
        {{"layout", std::string("bhsd")}, {"causal", causal}, {"scale", scale}, {"mask", false}});
  } else {
    ValueId bias;
    add_mask(c, *in, bias, dtype);
    add_positions(c, *in, bias, dtype);
    std::array<ValueId, 4> scores_of_mode;
    y = attend(c, *in, scale, bias, scores_of_mode);
    const std::int64_t mode = c.integer("qk_matmul_output_mode", 0);
    if (mode >= 0 && mode < 4) {
      c.result(scores_of_mode[static_cast<std::size_t>(mode)], 3);
    }
  }
  c.result(c.rank(0) == 3 ? heads_together(b, y) : y);
  c.result(in->k, 1);
  c.result(in->v, 2);
}

// Rotary embeddings -------------------------------------------------------------------------------

/// The angles of each position: [batch or 1, 1, sequence, half].
ValueId angles(Call& c, std::size_t cache) {
  Builder& b = c.builder();
  ValueId x = c.tensor(cache);
  if (c.given(3)) {
    x = b.emit("embedding", {x, c.tensor(3)});
  }
  const Shape s = b.type(x).shape;
  if (!c.ok() || s.size() != 3) {
    c.invalid("its caches do not fit its positions");
    return x;
  }
  return reshape_to(b, x, {s[0], 1, s[1], s[2]});
}

void map_rotary(Call& c) {
  Builder& b = c.builder();
  const ValueId x = heads_apart(c, c.tensor(0), c.integer("num_heads", 0));
  const ValueId cos = angles(c, 1);
  const ValueId sin = angles(c, 2);
  const Shape s = b.type(x).shape;
  if (!c.ok() || s.size() != 4) {
    return;
  }
  const std::int64_t given = c.integer("rotary_embedding_dim", 0);
  const std::int64_t turned = given == 0 ? s[3] : given;
  if (turned < 2 || turned > s[3] || turned % 2 != 0) {
    c.invalid("it turns an odd number of channels, or more than there are");
    return;
  }
  const bool pairs = c.flag("interleaved", false);
  const ValueId part = sliced(b, x, 3, 0, turned);
  const ValueId real = pairs ? sliced(b, part, 3, 0, turned, 2) : sliced(b, part, 3, 0, turned / 2);
  const ValueId imaginary =
      pairs ? sliced(b, part, 3, 1, turned, 2) : sliced(b, part, 3, turned / 2, turned);
  const auto product = [&](ValueId u, ValueId v) { return b.emit("mul", {u, v}); };
  const ValueId u = b.emit("sub", {product(cos, real), product(sin, imaginary)});
  const ValueId v = b.emit("add", {product(sin, real), product(cos, imaginary)});
  const Shape column{s[0], s[1], s[2], turned / 2, 1};
  ValueId y = pairs ? reshape_to(b,
                                 b.emit("concat",
                                        {reshape_to(b, u, column), reshape_to(b, v, column)},
                                        {{"dim", std::int64_t{4}}}),
                                 {s[0], s[1], s[2], turned})
                    : b.emit("concat", {u, v}, {{"dim", std::int64_t{3}}});
  if (turned < s[3]) {
    y = b.emit("concat", {y, sliced(b, x, 3, turned, s[3])}, {{"dim", std::int64_t{3}}});
  }
  c.result(c.rank(0) == 3 ? heads_together(b, y) : y);
}

}  // namespace

std::vector<Row> attention_rows() {
  return {{"Attention", map_attention}, {"RotaryEmbedding", map_rotary}};
}

}  // namespace shardplan::frontends::onnx
