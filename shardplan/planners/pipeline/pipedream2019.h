#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// PipeDream's optimizer (Narayanan et al., SOSP 2019): stages with replicas, level by level of a
/// hierarchy of machines, with the least time of the slowest stage. Exact for its recurrence.
[[nodiscard]] LayerPlannerInfo pipedream_planner();

}  // namespace shardplan::planners
