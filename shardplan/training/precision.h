#pragma once

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"
#include "shardplan/training/training.h"

namespace shardplan::training {

/// The forward graph in the recipe's precision (see build_training_step). Casts that change nothing
/// vanish; constants and weights are converted, rounding to nearest even. Errors: an op whose
/// operands do not fit after the change (not reachable from graphs that pass ops::verify).
[[nodiscard]] Result<ir::Graph> with_precision(const ir::Graph& forward, Precision precision);

/// The content of a tensor in another floating type. Precondition: both types floating.
[[nodiscard]] ir::Data converted(const ir::Data& data, ir::DType from, ir::DType to);

}  // namespace shardplan::training
