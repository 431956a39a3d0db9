#pragma once

#include <cstdint>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// The forward graph of one of `count` microbatches (see build_training_step): every user input
/// with more than one row is cut along dimension 0, and all that follows from it along the axes
/// that carry the batch. outputs[0] is a loss whose mean over microbatches is the loss of the step.
///
/// Example: "w[k,n], x[64,k] -> relu(x·w) -> sum -> scale 1/64" in 4: x is [16,k], the sum is a
/// part of the whole, so the loss is multiplied by 4.
///
/// Errors name the input whose rows do not fit, or the op and layer that needs the whole batch.
[[nodiscard]] Result<ir::Graph> microbatch_graph(const ir::Graph& forward, std::int64_t count);

}  // namespace shardplan::training
