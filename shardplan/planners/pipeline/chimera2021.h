#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// Chimera's choice of its configuration (Li and Hoefler, SC 2021): replicas and depth of equal
/// stages, microbatch size and way of scaling, by the time of its bidirectional schedule.
[[nodiscard]] LayerPlannerInfo chimera_planner();

}  // namespace shardplan::planners
