#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/frontends/builder.h"

/// Functions of several ops that more than one front end needs, in the form that docs/ops.md gives.
namespace shardplan::frontends {

enum class Reduction { kMean, kSum, kNone };

struct CrossEntropy {
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
  double label_smoothing = 0.0;  ///< torch's definition: the smoothed part is the mean over classes
  ir::ValueId weight{};  ///< f[v], of each class; the mean is then over the targets' weights
};

/// What the rows of a loss over classes count.
struct ClassWeights {
  ir::ValueId target;  ///< 0 where it is ignored
  ir::ValueId weight;  ///< of the target's class (1 without weights), 0 where it is ignored
};
/// `weight` is f[v] or invalid; the weights that are made have the dtype.
ClassWeights class_weights(
    Builder& b, ir::ValueId target, std::int64_t ignore_index, ir::ValueId weight, ir::DType dtype);

/// logits f[..., v] and target i64[...] -> the loss: a scalar, or f[...] without reduction.
ir::ValueId cross_entropy(Builder& b,
                          ir::ValueId logits,
                          ir::ValueId target,
                          const CrossEntropy& options);
/// The same of log-probabilities f[..., v] that were computed in another way, with a weight f[v]
/// for each class (or none). No label smoothing. Its gradient is that of a lookup.
ir::ValueId negative_log_likelihood(Builder& b,
                                    ir::ValueId log_probabilities,
                                    ir::ValueId target,
                                    const CrossEntropy& options,
                                    ir::ValueId weight = {});
/// [n, classes, ...] -> [n, ..., classes].
ir::ValueId classes_last(Builder& b, ir::ValueId x);
/// max(x, 0) - x t + log(1 + e^-|x|), for each element.
ir::ValueId binary_cross_entropy_with_logits(Builder& b, ir::ValueId x, ir::ValueId target);
ir::ValueId reduced(Builder& b, ir::ValueId x, Reduction reduction);

/// log Σ exp over a dimension, which keeps size 1. Gradients flow through it.
ir::ValueId log_sum_exp(Builder& b, ir::ValueId x, std::int64_t dim);

/// An einsum of any number of operands, with "..." and dimensions of size 1 that broadcast, letters
/// that repeat (diagonals) or occur once (sums), and without "->".
ir::ValueId einsum(Builder& b,
                   const std::string& equation,
                   const std::vector<ir::ValueId>& operands);
/// The matrix product of the last two dimensions, the others broadcast; vectors as numpy has them.
ir::ValueId matmul(Builder& b, ir::ValueId x, ir::ValueId y);

/// Sum, or mean, over all elements.
ir::ValueId sum_all(Builder& b, ir::ValueId x);
ir::ValueId mean_all(Builder& b, ir::ValueId x);

/// bool[rows, columns], true where low <= row - column <= high (a missing bound does not bind):
/// computed from the indices, so it takes no memory in the model and can be sharded.
ir::ValueId band_mask(Builder& b,
                      std::int64_t rows,
                      std::int64_t columns,
                      std::optional<std::int64_t> low,
                      std::optional<std::int64_t> high);

struct DropoutAttention {
  bool heads_inner = false;  ///< operands are [b, s, h, d], else [b, h, s, d]
  double scale = 1.0;
  bool causal = false;
  ir::ValueId mask{};  ///< bool (true = attend) or float (added), broadcastable to [b, h, q, k]
  double p = 0.0;
  std::int64_t seed = 0;
};

/// softmax(q kᵀ · scale + mask), dropout, times v: attention with dropout on its weights.
ir::ValueId dropout_attention(
    Builder& b, ir::ValueId q, ir::ValueId k, ir::ValueId v, const DropoutAttention& options);

}  // namespace shardplan::frontends
