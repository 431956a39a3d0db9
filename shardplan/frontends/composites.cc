#include "shardplan/frontends/composites.h"

#include <limits>
#include <numeric>
#include <string>

#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::TensorType;
using ir::ValueId;

namespace {

IntList all_dims(const TensorType& type) {
  IntList dims(type.shape.size());
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

ValueId index_along(Builder& b, ir::Shape shape, std::int64_t dim) {
  return b.emit(
      "iota",
      {},
      {{"shape", IntList(std::move(shape))}, {"dim", dim}, {"dtype", std::string("i64")}});
}

ValueId scalar(Builder& b, double value, DType dtype) {
  return b.emit(
      "full",
      {},
      {{"shape", IntList{}}, {"value", value}, {"dtype", std::string(ir::dtype_name(dtype))}});
}

/// log Σ exp over the last dimension, not kept, for label_score: it carries the gradient itself.
ValueId label_log_sum_exp(Builder& b, ValueId logits) {
  const std::int64_t last = b.type(logits).rank() - 1;
  const ValueId largest = b.emit("max", {logits}, {{"dims", IntList{last}}, {"keepdim", false}});
  const ValueId sum = b.emit("sum_exp", {logits, largest});
  return b.emit("add", {b.emit("log", {sum}), cast_to(b, largest, b.type(sum).dtype)});
}

/// The smoothed loss of each row: minus the (weighted) sum over classes of the log-probabilities,
/// divided by their number.
ValueId smooth_loss(Builder& b, ValueId logits, ValueId weight, DType dtype) {
  const TensorType type = b.type(logits);
  const std::int64_t last = type.rank() - 1;
  const auto classes = static_cast<double>(type.shape.back());
  const Attributes along{{"dims", IntList{last}}, {"keepdim", false}};
  ValueId lse = b.emit("sum", {log_sum_exp(b, logits, last)}, along);
  ValueId terms = logits;
  if (weight.valid()) {
    const ValueId w = cast_to(b, weight, type.dtype);
    terms = b.emit("mul", {logits, w});
    lse = b.emit("mul", {lse, sum_all(b, w)});
  } else {
    lse = b.emit("scale", {lse}, {{"factor", classes}});
  }
  const ValueId difference = b.emit("sub", {lse, b.emit("sum", {terms}, along)});
  return cast_to(b, b.emit("scale", {difference}, {{"factor", 1.0 / classes}}), dtype);
}

}  // namespace

ValueId sum_all(Builder& b, ValueId x) {
  if (b.type(x).rank() == 0) {
    return x;
  }
  return b.emit("sum", {x}, {{"dims", all_dims(b.type(x))}, {"keepdim", false}});
}

ValueId mean_all(Builder& b, ValueId x) {
  const auto count = static_cast<double>(b.type(x).numel());
  return b.emit("scale", {sum_all(b, x)}, {{"factor", 1.0 / count}});
}

ValueId log_sum_exp(Builder& b, ValueId x, std::int64_t dim) {
  // The gradient through the maximum cancels.
  const Attributes along{{"dims", IntList{dim}}, {"keepdim", true}};
  const ValueId largest = b.emit("detach", {b.emit("max", {x}, along)});
  const ValueId sum = b.emit("sum", {b.emit("exp", {b.emit("sub", {x, largest})})}, along);
  return b.emit("add", {b.emit("log", {sum}), largest});
}

ClassWeights class_weights(
    Builder& b, ValueId target, std::int64_t ignore_index, ValueId weight, DType dtype) {
  const ValueId kept =
      b.emit("ne_scalar", {target}, {{"value", static_cast<double>(ignore_index)}});
  ClassWeights out{target, cast_to(b, kept, dtype)};
  const ValueId none = scalar(b, 0.0, b.type(target).dtype);
  out.target = b.emit("where", {kept, target, none});
  if (weight.valid()) {
    const std::int64_t classes = b.type(weight).numel();
    const ValueId table = b.emit("reshape", {weight}, {{"shape", IntList{classes, 1}}});
    const ValueId rows = b.emit("embedding", {table, out.target});
    const ValueId own = b.emit("reshape", {rows}, {{"shape", IntList(b.type(target).shape)}});
    out.weight = b.emit("mul", {cast_to(b, own, dtype), out.weight});
  }
  return out;
}

ValueId cross_entropy(Builder& b, ValueId logits, ValueId target, const CrossEntropy& options) {
  const ValueId lse = label_log_sum_exp(b, logits);
  const ValueId score =
      b.emit("label_score", {logits, target, lse}, {{"ignore_index", options.ignore_index}});
  ValueId loss = b.emit("neg", {score});
  if (!b.ok()) {
    return {};
  }
  const bool smoothed = options.label_smoothing > 0;
  const bool mean = options.reduction == Reduction::kMean;
  const DType dtype = b.type(loss).dtype;
  ClassWeights at;
  if (options.weight.valid()) {
    at = class_weights(b, target, options.ignore_index, options.weight, dtype);
    loss = b.emit("mul", {loss, at.weight});
  }
  ValueId kept;
  if (smoothed || (mean && !options.weight.valid())) {
    const ValueId valid =
        b.emit("ne_scalar", {target}, {{"value", static_cast<double>(options.ignore_index)}});
    kept = cast_to(b, valid, dtype);
  }
  if (smoothed) {
    const double epsilon = options.label_smoothing;
    const ValueId smooth = b.emit("mul", {smooth_loss(b, logits, options.weight, dtype), kept});
    loss = b.emit("add",
                  {b.emit("scale", {loss}, {{"factor", 1.0 - epsilon}}),
                   b.emit("scale", {smooth}, {{"factor", epsilon}})});
  }
  if (options.reduction == Reduction::kNone) {
    return loss;
  }
  const ValueId total = sum_all(b, loss);
  const ValueId count = options.weight.valid() ? at.weight : kept;
  return mean ? b.emit("div", {total, sum_all(b, count)}) : total;
}

ValueId negative_log_likelihood(Builder& b,
                                ValueId log_probabilities,
                                ValueId target,
                                const CrossEntropy& options,
                                ValueId weight) {
  if (!b.ok()) {
    return {};
  }
  const TensorType type = b.type(log_probabilities);
  const std::int64_t last = type.rank() - 1;
  ir::Shape column = b.type(target).shape;
  column.push_back(1);
  const ValueId wide = reshape_to(b, cast_to(b, target, DType::kInt64), column);
  const ValueId classes = index_along(b, {type.shape.back()}, 0);
  const ValueId valid =
      b.emit("ne_scalar", {wide}, {{"value", static_cast<double>(options.ignore_index)}});
  const ValueId chosen = b.emit("logical_and", {b.emit("eq", {wide, classes}), valid});
  const ValueId zero = scalar(b, 0.0, type.dtype);
  const ValueId one = weight.valid() ? weight : scalar(b, 1.0, type.dtype);
  const ValueId weighted =
      weight.valid() ? b.emit("mul", {log_probabilities, weight}) : log_probabilities;
  const Attributes along{{"dims", IntList{last}}, {"keepdim", false}};
  const ValueId picked = b.emit("sum", {b.emit("where", {chosen, weighted, zero})}, along);
  const ValueId loss = b.emit("neg", {picked});
  if (options.reduction != Reduction::kMean) {
    return reduced(b, loss, options.reduction);
  }
  return b.emit("div", {sum_all(b, loss), sum_all(b, b.emit("where", {chosen, one, zero}))});
}

ValueId classes_last(Builder& b, ValueId x) {
  const std::int64_t rank = b.type(x).rank();
  if (!b.ok() || rank <= 2) {
    return x;
  }
  IntList permutation{0};
  for (std::int64_t d = 2; d < rank; ++d) {
    permutation.push_back(d);
  }
  permutation.push_back(1);
  return permuted(b, x, permutation);
}

ValueId binary_cross_entropy_with_logits(Builder& b, ValueId x, ValueId target) {
  const ValueId product = b.emit("mul", {x, target});
  const ValueId small = b.emit("exp", {b.emit("neg", {b.emit("abs", {x})})});
  const ValueId tail = b.emit("log", {b.emit("add_scalar", {small}, {{"value", 1.0}})});
  const ValueId linear = b.emit("sub", {b.emit("relu", {x}), product});
  return b.emit("add", {linear, tail});
}

ValueId reduced(Builder& b, ValueId x, Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return mean_all(b, x);
    case Reduction::kSum:
      return sum_all(b, x);
    case Reduction::kNone:
      break;
  }
  return x;
}

ValueId band_mask(Builder& b,
                  std::int64_t rows,
                  std::int64_t columns,
                  std::optional<std::int64_t> low,
                  std::optional<std::int64_t> high) {
  const ValueId row = index_along(b, {rows, 1}, 0);
  const ValueId column = index_along(b, {1, columns}, 1);
  const auto shifted = [&](std::int64_t by) {
    return by == 0 ? column : b.emit("add_scalar", {column}, {{"value", static_cast<double>(by)}});
  };
  ValueId mask;
  if (low.has_value()) {
    mask = b.emit("ge", {row, shifted(*low)});
  }
  if (high.has_value()) {
    const ValueId below = b.emit("le", {row, shifted(*high)});
    mask = mask.valid() ? b.emit("logical_and", {mask, below}) : below;
  }
  if (!mask.valid() && b.ok()) {
    mask =
        b.emit("full",
               {},
               {{"shape", IntList{rows, columns}}, {"value", 1.0}, {"dtype", std::string("bool")}});
  }
  return mask;
}

ValueId dropout_attention(
    Builder& b, ValueId q, ValueId k, ValueId v, const DropoutAttention& options) {
  const bool inner = options.heads_inner;
  const TensorType q_type = b.type(q);
  const TensorType k_type = b.type(k);
  const auto position = static_cast<std::size_t>(inner ? 1 : 2);
  ValueId scores = b.emit(
      "einsum", {q, k}, {{"equation", std::string(inner ? "bqhd,bkhd->bhqk" : "bhqd,bhkd->bhqk")}});
  scores = b.emit("scale", {scores}, {{"factor", options.scale}});
  const auto keep_where = [&](ValueId mask) {
    const double minus_infinity = -std::numeric_limits<double>::infinity();
    return b.emit("where", {mask, scores, scalar(b, minus_infinity, q_type.dtype)});
  };
  if (options.causal && b.ok()) {
    scores =
        keep_where(band_mask(b, q_type.shape[position], k_type.shape[position], 0, std::nullopt));
  }
  if (options.mask.valid() && b.ok()) {
    scores = b.type(options.mask).dtype == DType::kBool ? keep_where(options.mask)
                                                        : b.emit("add", {scores, options.mask});
  }
  const ValueId weights = b.emit("softmax", {scores}, {{"dim", std::int64_t{3}}});
  const ValueId dropped = b.emit("dropout", {weights}, {{"p", options.p}, {"seed", options.seed}});
  return b.emit("einsum",
                {dropped, v},
                {{"equation", std::string(inner ? "bhqk,bkhe->bqhe" : "bhqk,bhke->bhqe")}});
}

}  // namespace shardplan::frontends
