#pragma once

#include <vector>

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// A layer graph prepared for placement as DNN-partitioning (2020) does it: layers that must share
/// a device are one group, and the groups are ordered by their forward layers alone.
///
/// Layers of one colour are one group; so are groups on a cycle of the forward graph. Colours
/// without a forward layer are ordered as the reverse of their backward edges. A group without any
/// time whose edges all lead to one other group, and cost nothing out of it, joins that one: no
/// placement gets worse by it (where sizes could matter, only groups without a size do).
struct PlacementGroups {
  struct Group {
    std::vector<int> layers{};  ///< of the graph
    double time = 0;            ///< on an accelerator
    double cpu_time = 0;
    double bytes = 0;
    bool on_accelerator = true;
  };
  std::vector<Group> groups{};
  std::vector<std::vector<int>> needs{};  ///< groups that come before each
  std::vector<double> transfer{};         ///< of each layer: time of moving its output to the host
  std::vector<int> group_of{};            ///< of each layer
};

/// `method` names the planner in errors. Groups come in an order in which each follows those that
/// it needs.
[[nodiscard]] Result<PlacementGroups> placement_groups(const LayerRequest& request,
                                                       std::string_view method);

/// The same groups in another such order.
[[nodiscard]] PlacementGroups renumbered(const PlacementGroups& groups,
                                         const std::vector<int>& order);

}  // namespace shardplan::planners
