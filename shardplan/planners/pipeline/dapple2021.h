#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// DAPPLE's planner (Fan et al., PPoPP 2021): stages with replicas and their devices, for the least
/// latency of one synchronous batch. A search with kept partial plans, not exact; plain data
/// parallelism is always among what it looks at.
[[nodiscard]] LayerPlannerInfo dapple_planner();

}  // namespace shardplan::planners
