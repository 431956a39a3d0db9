#pragma once

#include <cstdint>
#include <string>

#include "shardplan/frontends/builder.h"

namespace shardplan::frontends {

/// A loss that the user puts behind a model's output.
struct LossSpec {
  std::string name{};          ///< cross_entropy, nll, mse, l1, bce or bce_with_logits
  std::string output{};        ///< the model's output that it is of; empty: the first
  std::int64_t dim = -1;       ///< cross_entropy, nll: the dimension of classes
  std::int64_t ignore = -100;  ///< cross_entropy, nll: the label that does not count
  double smoothing = 0;        ///< cross_entropy
};

/// Reads "cross_entropy" or "cross_entropy:dim=1,ignore=0"; unknown names and keys get suggestions.
[[nodiscard]] Result<LossSpec> parse_loss(const std::string& text);

/// The mean loss of a prediction. The target becomes a new input `target`: class indices in the
/// shape of the prediction without its classes, or numbers in the prediction's type.
[[nodiscard]] ir::ValueId add_loss(Builder& b,
                                   const LossSpec& loss,
                                   ir::ValueId prediction,
                                   const std::string& target);

}  // namespace shardplan::frontends
