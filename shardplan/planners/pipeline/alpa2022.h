#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// Alpa's inter-operator pass (Zheng et al., OSDI 2022): operators clustered to layers, layers cut
/// into stages on submeshes, for the least latency of one batch. Exact for the clusters.
[[nodiscard]] LayerPlannerInfo alpa_planner();

}  // namespace shardplan::planners
