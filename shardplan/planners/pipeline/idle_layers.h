#pragma once

#include <vector>

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// A layer graph without layers that any plan may as well keep with their only neighbour: they take
/// no time, have no weights, have one edge, and their memory is nothing (or there is room for all
/// of the graph on one device, come what may). Fewer layers have far fewer downsets.
struct WithoutIdleLayers {
  problem::LayerGraph graph{};
  std::vector<int> kept{};  ///< of each layer that is left: its index before
  /// Layers that were taken out, each with the one (by its index before) whose stage it joins.
  struct Follower {
    int layer = 0;
    int leader = 0;
  };
  std::vector<Follower> followers{};
};
[[nodiscard]] WithoutIdleLayers without_idle_layers(const LayerRequest& request);

/// Puts the layers back into the stages of a plan for the smaller graph, each by its first choice
/// of its stage's degree, and renumbers all.
void restore_idle_layers(const problem::LayerGraph& graph,
                         const WithoutIdleLayers& smaller,
                         problem::LayerPlan& plan);

}  // namespace shardplan::planners
