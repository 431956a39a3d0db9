#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// The integer program of DNN-partitioning (Tarnawski et al., NeurIPS 2020) for the least largest
/// load, solved by CBC; parts are contiguous, or free with the option contiguous=no.
[[nodiscard]] LayerPlannerInfo dnn_partitioning_ip_planner();

}  // namespace shardplan::planners
