#pragma once

#include <vector>

#include "shardplan/ir/graph.h"

namespace shardplan::training {

/// A step with other ops and accumulators in place of some; everything else is as it was.
struct Separated {
  ir::Graph step{};
  std::vector<ir::OpId> op_of{};        ///< by op: that of the old step; invalid: a new one
  std::vector<ir::ValueId> value_of{};  ///< by value: that of the old step; invalid: a new one
};

/// Lets every pipeline stage add up its own part of the gradient of a parameter that several stages
/// read, over the microbatches, and adds the parts once, before the update: a sum that crosses
/// stages would else be sent for every microbatch. `stage_of`: by op, of forward and backward ops.
/// Precondition: more than one microbatch. O(graph).
[[nodiscard]] Separated separate_sums(const ir::Graph& step, const std::vector<int>& stage_of);

}  // namespace shardplan::training
