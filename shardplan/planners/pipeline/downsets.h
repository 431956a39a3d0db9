#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace shardplan::planners {

/// Sets of nodes that contain what their members need, and how they grow node by node: the lattice
/// on which planners cut a graph into consecutive stages.
///
/// Nodes are numbered so that each one comes after all that it needs. Sets are numbered by rising
/// size; 0 is the empty set, the last one holds all nodes.
///
/// All sets J that contain a set I are found once each by walking from I along covers whose nodes
/// rise: the largest node of J \ I can always be taken away again.
struct DownsetLattice {
  struct Cover {
    int node = 0;
    int to = 0;  ///< the set with the node added
  };
  int nodes = 0;
  std::vector<int> begin{};     ///< of each set's covers; one more than sets
  std::vector<Cover> covers{};  ///< of each set: every node that may be added next, rising

  [[nodiscard]] int sets() const { return static_cast<int>(begin.size()) - 1; }
};

/// Of all closed sets. `needs` lists for each node the (smaller) nodes that it needs. Nothing when
/// there are more than `most` sets or kMostCovers covers, or when `stopped` said so. Time and
/// memory in the number of covers times nodes / 64.
constexpr std::size_t kMostCovers = 32'000'000;
[[nodiscard]] std::optional<DownsetLattice> all_downsets(const std::vector<std::vector<int>>& needs,
                                                         int most,
                                                         const std::function<bool()>& stopped = {});

/// Of the sets {0 .. i-1} only: one for each length of the order.
[[nodiscard]] DownsetLattice prefix_downsets(int nodes);

/// Orders of nodes for a lattice, each node after what it needs, in which chains stay together.
/// kBranches: as soon as a node may come it may come next, before others that could for longer.
/// kNeeds: a node comes as soon as all that it needs can be put before it, and no sooner.
struct DepthFirst {
  enum class Rule { kBranches, kNeeds };
  Rule rule = Rule::kBranches;
  bool reversed = false;  ///< siblings from the last to the first
};
[[nodiscard]] std::vector<int> depth_first_order(const std::vector<std::vector<int>>& needs,
                                                 const DepthFirst& how = {});

}  // namespace shardplan::planners
