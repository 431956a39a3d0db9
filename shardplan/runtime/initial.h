#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/sharding/spec.h"

namespace shardplan::runtime {

/// This rank's part of the first content of a parameter, buffer, constant or state: its data where
/// the graph holds them; of states zeros or a cast of the parameter they start from; else drawn by
/// name and global index (normal with deviation 0.02 for matrices, ones for vectors, zeros for
/// biases and buffers), so that every layout gets the same numbers.
[[nodiscard]] at::Tensor initial_shard(const ir::Graph& step,
                                       ir::ValueId value,
                                       const sharding::ShardingSpec& spec,
                                       const cluster::DeviceMesh& mesh,
                                       std::int64_t rank,
                                       std::uint64_t seed);

/// For every value, by id: one more than the largest integer that it may hold without leaving the
/// table rows or label classes that it looks up, followed through the ops that move numbers
/// unchanged; 1 for reals of which an operator wants that they are probabilities; 0 for all else.
[[nodiscard]] std::vector<std::int64_t> lookup_bounds(const ir::Graph& step);

/// Random content of a user input, whole: inputs with a bound are uniform in [0, bound), other
/// floating ones normal, other integers ones (a mask
/// that hides nothing). A function of seed, step, microbatch and the input's name.
[[nodiscard]] at::Tensor random_input(const ir::Graph& step,
                                      ir::ValueId input,
                                      std::int64_t bound,
                                      std::uint64_t seed,
                                      std::int64_t step_number,
                                      std::int64_t microbatch);

}  // namespace shardplan::runtime
