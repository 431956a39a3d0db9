#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// DistIR's grid search (Santhanam et al., 2021): data, tensor and pipeline degrees and the number
/// of microbatches, all alike for all layers, each simulated.
[[nodiscard]] LayerPlannerInfo distir_planner();

}  // namespace shardplan::planners
