#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// DNN-partitioning (Tarnawski et al., NeurIPS 2020) for the latency of one query: contiguous
/// subgraphs on accelerators, everything else on as many CPUs as it wants, so that the last layer
/// is done soonest. An integer program by CBC, or the paper's greedy rule with search=greedy.
[[nodiscard]] LayerPlannerInfo dnn_partitioning_latency_planner();

}  // namespace shardplan::planners
