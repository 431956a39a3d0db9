#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// DNN-partitioning (Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
/// Operators, NeurIPS 2020), throughput: layers on accelerators and CPUs so that the largest load
/// is least. Contiguous parts, exactly, on all downsets of the forward graph.
[[nodiscard]] LayerPlannerInfo dnn_partitioning_dp_planner();

/// The same on the prefixes of one depth-first topological order only.
[[nodiscard]] LayerPlannerInfo dnn_partitioning_linear_planner();

}  // namespace shardplan::planners
