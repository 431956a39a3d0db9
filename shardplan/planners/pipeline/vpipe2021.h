#pragma once

#include <vector>

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// vPipe (Zhao et al., TPDS 2021): stages of a chain and, in each, which activations to keep, swap
/// to the host or recompute, planned in turn. Exact in each stage, a local search between stages.
[[nodiscard]] LayerPlannerInfo vpipe_planner();

/// What a layer's activations can become, in one stage: bytes that stay and extra time.
struct RetentionChoice {
  problem::Retention what = problem::Retention::kKeep;
  double bytes = 0;
  double time = 0;
};

/// One choice for each layer with the least sum of times whose bytes sum to at most `limit`,
/// exactly, by a front of trade-offs; empty when nothing fits.
[[nodiscard]] std::vector<std::size_t> choose_retention(
    const std::vector<std::vector<RetentionChoice>>& layers, double limit);

}  // namespace shardplan::planners
