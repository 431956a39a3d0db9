#pragma once

#include <string>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

enum class OptimizerKind { kSgd, kAdam, kAdamW };

/// torch.optim's definitions and defaults.
struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double momentum = 0.0;  ///< SGD
  double beta1 = 0.9;     ///< Adam, AdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  ///< L2 for SGD and Adam, decoupled for AdamW
};

enum class Precision {
  kAsModel,  ///< dtypes of the model as they are
  kFloat64,
  kFloat32,
  kBFloat16,  ///< bf16 parameters, activations and gradients; fp32 master weights and moments
};

/// How a model is trained: everything that a step does besides the model's forward pass.
struct Recipe {
  Optimizer optimizer{};
  Precision precision = Precision::kAsModel;
  double clip_norm = 0.0;         ///< global gradient norm limit; 0 = no clipping
  std::int64_t microbatches = 1;  ///< the batch is cut in this many pieces; gradients accumulate
};

/// "sgd", "sgd:lr=0.1,momentum=0.9", "adam", "adamw:lr=3e-4,weight_decay=0.01".
[[nodiscard]] Result<Optimizer> parse_optimizer(std::string_view text);
[[nodiscard]] std::string to_string(const Optimizer& optimizer);
/// "model", "fp64", "fp32", "bf16".
[[nodiscard]] Result<Precision> parse_precision(std::string_view text);
[[nodiscard]] std::string to_string(Precision precision);

/// The whole training step of a forward graph whose outputs[0] is the scalar loss: casts to the
/// recipe's precision, cuts the batch into microbatches (each op's shapes are divided along the
/// axes that carry the batch; an error names the op that needs the whole batch), appends the
/// backward pass in reverse order, the accumulation of gradients where microbatches > 1 (gradients
/// are means over microbatches), clipping, and the update of every trainable parameter that gets a
/// gradient. Outputs other than the loss are dropped, as are ops that nothing needs. Values that
/// several ops read get an `identity` op each as fan-out point (parameters and integer values
/// excepted).
[[nodiscard]] Result<ir::Graph> build_training_step(const ir::Graph& forward, const Recipe& recipe);

}  // namespace shardplan::training
