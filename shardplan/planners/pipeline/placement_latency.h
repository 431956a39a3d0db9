#pragma once

#include <string_view>
#include <vector>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/placement_groups.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {

/// Where the groups of a graph run when one query is answered: each on CPUs, or in a subgraph of an
/// accelerator. Subgraphs are numbered accelerator by accelerator, in the order in which one runs.
class PlacementLatency {
 public:
  static constexpr int kCpu = -1;
  using Slots = std::vector<int>;  ///< of each group: kCpu, or the number of a subgraph

  /// What is asked of a layer by its planner. The references outlive the object.
  PlacementLatency(const LayerRequest& request, const PlacementGroups& groups, int subgraphs);

  [[nodiscard]] int slots() const { return slots_; }  ///< subgraphs in all
  [[nodiscard]] int subgraphs() const { return subgraphs_; }
  [[nodiscard]] double time(int layer) const { return time_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] double cpu_time(int layer) const {
    return cpu_time_[static_cast<std::size_t>(layer)];
  }
  /// Time of moving a layer's output between an accelerator and the host.
  [[nodiscard]] double transfer(int layer) const {
    return transfer_[static_cast<std::size_t>(layer)];
  }
  /// Finish of each layer when it and everything before it ran where it is fastest, and nothing
  /// were moved.
  [[nodiscard]] std::vector<double> earliest() const;

  /// When the last layer is done; infinity where subgraphs wait for each other, or where a device
  /// is given what it cannot run or hold. Linear in the graph and in the subgraphs.
  [[nodiscard]] double latency(const Slots& slot);

  /// As published: along an order of the groups, the accelerators are filled one by one, and what
  /// no longer fits runs on CPUs.
  [[nodiscard]] Slots greedy(const std::vector<int>& order) const;
  /// Consecutive pieces of an order, each on an accelerator of its own or on CPUs, with the least
  /// latency if they ran one after the other; empty where nothing fits. Quadratic in the groups,
  /// times the accelerators.
  [[nodiscard]] Slots cut(const std::vector<int>& order, const solvers::Budget& budget);
  /// Moves single groups as long as that helps. Returns the latency.
  double improve(Slots& slot, const solvers::Budget& budget);

 private:
  /// Node of the graph in which every subgraph is one: a layer, or layers + slot.
  [[nodiscard]] int node(const Slots& slot, int layer) const;
  void count_transfers(const Slots& slot);
  int find_free(const Slots& slot);
  void tell(const Slots& slot, int done, double finish);
  [[nodiscard]] bool fits(const Slots& slot) const;
  [[nodiscard]] std::vector<int> places(const Slots& slot, int group) const;

  const problem::LayerGraph& graph_;
  const PlacementGroups& groups_;
  int accelerators_;
  int subgraphs_;
  int slots_;
  bool cpus_;
  double memory_;
  std::vector<double> time_{};
  std::vector<double> cpu_time_{};
  std::vector<double> transfer_{};
  std::vector<std::vector<int>> next_{};     ///< layers that need each layer's output
  std::vector<std::vector<int>> needed_{};   ///< layers whose output each needs
  std::vector<int> order_{};                 ///< of layers, topological
  std::vector<double> work_{};               ///< of each node: what it takes once it can start
  std::vector<double> ready_{};              ///< of each node
  std::vector<int> waits_{};                 ///< of each node: what it still waits for
  std::vector<int> free_{};                  ///< nodes that can start
  std::vector<int> marked_{};                ///< of each node: the layer that was seen there last
  std::vector<std::vector<int>> members_{};  ///< layers of each slot
};

}  // namespace shardplan::planners
