#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/cover_knapsack.h"

namespace shardplan::planners::piper {

/// How the inner problem is solved: which layers of a stage run which of their two choices.
enum class Inner { kExact, kGreedy };

/// Sums over the layers of a stage, of one degree of tensor parallelism. They change by one layer's
/// numbers when a layer comes in. `fast` is every layer's faster choice, `small` its other one.
struct StageSums {
  double time = 0;            ///< fast
  double transfer_bytes = 0;  ///< over cut edges, one direction
  double parameter_bytes = 0;
  double in_flight = 0;  ///< fast
  double constant = 0;
  double small_in_flight = 0;
  double small_constant = 0;
  double small_extra_time = 0;
  double least_memory = 0;  ///< with one microbatch in flight, each layer as it is smallest
};

/// The numbers of the formulas of section 4.2 of the paper for one graph, layers renumbered in the
/// order in which stages grow (from the sinks).
class StageCosts {
 public:
  /// `order`: layers of the graph in that order. Errors name what Piper cannot handle.
  [[nodiscard]] static Result<StageCosts> create(const LayerRequest& request,
                                                 const std::vector<int>& order,
                                                 Inner inner);

  [[nodiscard]] int nodes() const { return static_cast<int>(by_degree_.front().nodes.size()); }
  [[nodiscard]] std::size_t degrees() const { return by_degree_.size(); }
  [[nodiscard]] int degree(std::size_t t) const { return by_degree_[t].degree; }
  [[nodiscard]] double memory() const { return memory_; }
  /// Least devices times time of a node: its share of all work.
  [[nodiscard]] double work(int node) const { return work_[static_cast<std::size_t>(node)]; }

  /// Adds `node` to a stage of degree number t whose nodes `in_stage` marks; everything else that
  /// the node needs lies behind the stage. Returns false where the node does not offer the degree.
  [[nodiscard]] bool add(std::size_t t,
                         int node,
                         const std::vector<std::uint8_t>& in_stage,
                         StageSums& sums) const;

  /// The stage's time with d replicas is compute(d) + extra / d, where `extra` is what the inner
  /// problem adds to save memory.
  [[nodiscard]] double replica_time(const StageSums& sums) const {
    return sums.time + 2 * sums.transfer_bytes * per_byte_;
  }
  [[nodiscard]] double full_sync_time(const StageSums& sums) const {
    return 4 * sums.parameter_bytes * per_byte_ / microbatches_;
  }

  /// Whether the stage of `nodes` fits with y microbatches in flight when the inner problem may
  /// add at most `slack` to its time.
  [[nodiscard]] bool fits(std::size_t t,
                          const std::vector<int>& nodes,
                          const StageSums& sums,
                          std::int64_t y,
                          double slack);

  /// The answer to the inner problem.
  struct Choice {
    std::vector<bool> small{};  ///< of each node
    double extra_time = 0;
    double memory = 0;
  };
  /// Nothing if none fits.
  [[nodiscard]] std::optional<Choice> choose(std::size_t t,
                                             const std::vector<int>& nodes,
                                             std::int64_t y);

  /// The layer's choice of degree number t.
  [[nodiscard]] int choice(std::size_t t, int node, bool small) const;

  /// Some inner problem was too hard to be solved exactly.
  [[nodiscard]] bool gave_up() const { return knapsack_.gave_up(); }

 private:
  struct Node {
    bool offered = false;
    int fast = 0;  ///< of the layer's choices
    int small = 0;
    double time = 0;
    double extra_time = 0;  ///< of small
    double parameter_bytes = 0;
    double in_flight = 0;
    double constant = 0;
    double small_in_flight = 0;
    double small_constant = 0;
    double least_memory = 0;
    double in_bytes = 0;  ///< over all incoming edges, extra bytes included
  };
  struct OutEdge {
    int target = 0;
    double cut = 0;     ///< bytes of this stage when the target lies behind it
    double joined = 0;  ///< bytes that the target's stage no longer receives when this joins it
  };
  struct Degree {
    int degree = 1;
    std::vector<Node> nodes{};
    std::vector<std::vector<OutEdge>> out{};
  };
  /// The savings of all nodes for one degree and y, the cheapest a byte first.
  struct Ranking {
    std::vector<int> rank{};      ///< of each node; -1 = its small choice saves nothing
    std::vector<int> node_of{};   ///< of each rank
    std::vector<Saving> items{};  ///< of each rank
  };

  [[nodiscard]] Status read_degree(const LayerRequest& request,
                                   const std::vector<int>& order,
                                   Degree& degree) const;
  [[nodiscard]] const Ranking& ranking(std::size_t t, std::int64_t y);
  /// Collects the savings of the nodes in their order into stage_items_ and stage_ranks_.
  void gather(const Ranking& ranking, const std::vector<int>& nodes);

  double memory_ = 0;
  double per_byte_ = 0;  ///< time of a byte
  double microbatches_ = 1;
  Inner inner_ = Inner::kExact;
  std::vector<Degree> by_degree_{};
  std::vector<double> work_{};
  std::vector<std::vector<std::optional<Ranking>>> rankings_{};  ///< by degree and y
  CoverKnapsack knapsack_{};
  std::vector<std::uint64_t> bits_{};  ///< ranks of a stage
  std::vector<Saving> stage_items_{};
  std::vector<int> stage_ranks_{};
};

}  // namespace shardplan::planners::piper
