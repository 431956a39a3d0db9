#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// Merak's AutoPipe (Lai et al., TPDS 2023): consecutive layers of a chain for each stage, by the
/// simulated time of 1F1B. A search around the balanced partition, not exact.
[[nodiscard]] LayerPlannerInfo merak_planner();

}  // namespace shardplan::planners
