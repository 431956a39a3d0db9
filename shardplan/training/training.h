#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

enum class OptimizerKind { kSgd, kAdam, kAdamW };

/// torch.optim's definitions. The fields' defaults are those that all of torch.optim share;
/// default_optimizer gives the defaults of one kind.
struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double momentum = 0.0;   ///< SGD
  double dampening = 0.0;  ///< SGD
  bool nesterov = false;   ///< SGD
  double beta1 = 0.9;      ///< Adam, AdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  ///< L2 for SGD and Adam, decoupled for AdamW

  bool operator==(const Optimizer&) const = default;
};

/// torch.optim's defaults: AdamW decays weights by 0.01, the others not at all.
[[nodiscard]] constexpr Optimizer default_optimizer(OptimizerKind kind) {
  Optimizer optimizer;
  optimizer.kind = kind;
  optimizer.weight_decay = kind == OptimizerKind::kAdamW ? 0.01 : 0.0;
  return optimizer;
}

enum class Precision {
  kAsModel,  ///< dtypes of the model as they are
  kFloat64,
  kFloat32,
  kBFloat16,  ///< bf16 parameters, activations and gradients; fp32 master weights and moments
};

/// How a model is trained: everything that a step does besides the model's forward pass.
struct Recipe {
  Optimizer optimizer = default_optimizer(OptimizerKind::kAdamW);
  Precision precision = Precision::kAsModel;
  double clip_norm = 0.0;         ///< global gradient norm limit; 0 = no clipping
  std::int64_t microbatches = 1;  ///< the batch is cut in this many pieces; gradients accumulate
};

/// "sgd", "sgd:lr=0.1,momentum=0.9,nesterov=true", "adam", "adamw:lr=3e-4,weight_decay=0.01"; what
/// is not given has torch.optim's default. Errors name the field and what it may be.
[[nodiscard]] Result<Optimizer> parse_optimizer(std::string_view text);
/// The text that parse_optimizer reads: the kind, lr, and what differs from the defaults.
[[nodiscard]] std::string to_string(const Optimizer& optimizer);
/// "model", "fp64", "fp32", "bf16".
[[nodiscard]] Result<Precision> parse_precision(std::string_view text);
[[nodiscard]] std::string to_string(Precision precision);

/// The whole training step of a forward graph whose outputs[0] is the scalar loss.
///
/// - Outputs other than the loss are dropped, as are ops that nothing needs. Parameters, buffers
/// and
///   inputs stay, used or not.
/// - Everything is cast to the recipe's precision. With fp64 and fp32 every floating value has that
///   type. With bf16, what depends on a parameter or a floating input is bf16, but for sums to a
///   scalar and log-sum-exps and what follows from them (the loss), which are f32; the rest (masks,
///   tables of positions, counts) is computed as in the model and rounded where it meets the
///   others.
/// - The batch, dimension 0 of every user input with more than one row, is cut into microbatches:
///   each op's shapes are divided along the axes that carry the batch; an error names the op that
///   needs the whole batch. A loss that is a sum over the batch, or such a sum times a constant, is
///   multiplied by their number; a mean over tokens that count divides by the whole batch's count
///   (whole_batch_name): the mean over microbatches is the loss of the step, and of the batch.
/// - A floating value that several operands read gets an `identity` op as fan-out point,
/// parameters,
///   buffers and constants excepted. Gradients that meet there are summed by `add`, or joined by
///   `concat` where they come from slices side by side, with that op as source; contributions to a
///   tied weight are summed by `add` without a source. In the backward pass a gradient that an op
///   hands on unchanged to one of several operands goes through an `identity` of that op.
/// - Elementwise ops of gradients that were broadcast work on the small tensor where they can.
/// - Backward ops follow in reverse order; with microbatches > 1 each parameter's gradient is
/// summed
///   into an accumulator (kAccumulator) as soon as it is complete; gradients are means over
///   microbatches.
/// - The update: clipping (as torch.nn.utils.clip_grad_norm_), then every trainable parameter that
///   gets a gradient, with states "<parameter>.exp_avg", "<parameter>.exp_avg_sq",
///   "<parameter>.momentum_buffer", "<parameter>.master" (bf16: the f32 weights) and one scalar
///   "optimizer.step".
///
/// Errors: a loss that is no scalar or depends on no trainable parameter, an op without a gradient
/// rule on the way from a parameter to the loss, a batch that cannot be cut. O(graph).
[[nodiscard]] Result<ir::Graph> build_training_step(const ir::Graph& forward, const Recipe& recipe);

}  // namespace shardplan::training
