#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// The forward graph of one of `count` microbatches (see build_training_step): every user input
/// with more than one row is cut along dimension 0, and all that follows from it along the axes
/// that carry the batch. outputs[0] is a loss whose mean over microbatches is the loss of the step:
/// counts of tokens that the loss is divided by are those of the whole batch, computed from further
/// inputs (whole_batch_name).
///
/// Batch normalisation takes the statistics of each microbatch, and running statistics move once
/// for each, in their order: what PyTorch does when gradients are accumulated.
///
/// Example: "w[k,n], x[64,k] -> relu(x·w) -> sum -> scale 1/64" in 4: x is [16,k], the sum is a
/// part of the whole, so the loss is multiplied by 4.
///
/// Errors name the input whose rows do not fit, or the op and layer that needs the whole batch.
[[nodiscard]] Result<ir::Graph> microbatch_graph(const ir::Graph& forward, std::int64_t count);

/// Name of the graph's input that holds the whole batch of user input `input` while other ops work
/// on one microbatch.
[[nodiscard]] std::string whole_batch_name(std::string_view input);
/// The inverse: the user input of such a name; nothing for any other name.
[[nodiscard]] std::optional<std::string> input_of_whole_batch(std::string_view name);

}  // namespace shardplan::training
