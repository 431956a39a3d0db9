#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardplan/planners/pipeline/downsets.h"
#include "shardplan/planners/pipeline/lattice_climb.h"
#include "shardplan/planners/pipeline/placement_groups.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {

/// Answers "is there a contiguous placement in which no device's load exceeds a target?" on a
/// lattice of downsets of groups, in the manner of Piper's search: for every downset, how few
/// accelerators suffice for each number of CPUs.
class PlacementSearch {
 public:
  /// What one device gets.
  struct Part {
    std::vector<int> groups{};
    bool on_cpu = false;
    double load = 0;
  };
  /// The references outlive the search.
  PlacementSearch(const DownsetLattice& lattice,
                  const PlacementGroups& groups,
                  const problem::LayerGraph& graph,
                  const problem::LayerMachines& machines);

  /// Parts in the order of the groups; see piper::Search::find.
  [[nodiscard]] std::optional<std::vector<Part>> find(double target,
                                                      const solvers::Budget& budget,
                                                      double share = 1);
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  struct Entry {
    int cpus = 0;
    int accelerators = 0;
    int from = -1;   ///< the downset below the last part
    int entry = -1;  ///< in its list
    bool on_cpu = false;
  };
  using List = std::vector<Entry>;  ///< cpus rising, accelerators falling
  struct Sums {
    double time = 0;
    double cpu_time = 0;
    double bytes = 0;
    double transfer = 0;
    bool accelerator = true;  ///< an accelerator can still hold it
    bool cpu = true;
  };

  void push(int from);
  void grow(int set, int last, std::size_t depth);
  [[nodiscard]] bool extend(int group, std::size_t depth);
  /// Counts the edges that a layer's coming into the part (going out of it) cuts and joins; returns
  /// the change of the transfer time.
  double enter(int layer);
  void leave(int layer);
  void offer(int to, const Sums& sums);
  [[nodiscard]] bool enough_left(int cpus, int accelerators, int set) const;
  static void insert(List& list, const Entry& entry);
  [[nodiscard]] std::vector<Part> trace();

  const DownsetLattice& lattice_;
  const PlacementGroups& groups_;
  int accelerators_;
  int cpus_;
  double memory_;
  double cpu_share_ = 0;             ///< most accelerator time that a second of a CPU replaces
  std::vector<double> rest_work_{};  ///< accelerator time outside each downset
  std::vector<std::vector<int>> sources_{};  ///< of each layer's incoming edges
  std::vector<int> out_degree_{};

  double target_ = 0;
  const solvers::Budget* budget_ = nullptr;
  bool stopped_ = false;
  std::int64_t visits_ = 0;
  LatticeClimb<Entry> lists_;
  int from_ = 0;
  std::vector<Sums> sums_{};
  std::vector<std::uint8_t> inside_{};  ///< of each layer
  std::vector<int> crossing_{};         ///< of each layer: its outgoing edges that are cut
};

}  // namespace shardplan::planners
