#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// The planner of PipeDream-2BW (Narayanan et al., ICML 2021), as Piper's authors imitate it
/// ("equi"): equal stages, one number of replicas and one degree of tensor parallelism for all.
[[nodiscard]] LayerPlannerInfo pipedream_2bw_planner();

}  // namespace shardplan::planners
