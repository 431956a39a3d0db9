#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021): consecutive stages of a graph of
/// layers, each with its data parallelism, tensor parallelism and recomputation, for the highest
/// throughput of an asynchronous pipeline within the memory. Exact.
[[nodiscard]] LayerPlannerInfo piper_planner();

}  // namespace shardplan::planners
