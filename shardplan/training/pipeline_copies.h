#pragma once

#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// A step whose forward and backward passes are there once for each pipeline; inputs, parameters
/// and the update are there once.
struct PipelineCopies {
  ir::Graph step{};                     ///< outputs: the loss of each pipeline
  std::vector<ir::OpId> op_of{};        ///< by op: that of the old step; invalid: a new one
  std::vector<ir::ValueId> value_of{};  ///< by value: that of the old step; invalid: a new one
  std::vector<int> pipeline_of{};       ///< by op; 0 in the update
};

/// Copies the passes for pipelines that share the microbatches. All copies read the same
/// parameters, whose gradients are sums over the copies: a cut into stages then treats the copies
/// of a parameter as it treats one that several stages read. No copy reads another's values but in
/// those sums, which separate_sums() takes apart: until then the graph is no program that could be
/// run.
/// Errors: fewer microbatches than pipelines; a buffer that a pass writes, whose value would depend
/// on the order of all microbatches. O(graph · pipelines).
[[nodiscard]] Result<PipelineCopies> copy_passes(const ir::Graph& step, int pipelines);

}  // namespace shardplan::training
