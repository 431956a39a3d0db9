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

  /// The least time of a node in any degree.
  [[nodiscard]] double least_time(int node) const {
    return least_time_[static_cast<std::size_t>(node)];
  }

  /// Adds `node` to a stage of degree number t whose nodes `in_stage` marks; everything else that
  /// the node needs lies behind the stage. Returns false where the node does not offer the degree.
  [[nodiscard]] bool add(std::size_t t,
                         int node,
                         const std::vector<std::uint8_t>& in_stage,
                         StageSums& sums) const {
    const Node& own = by_degree_[t].nodes[static_cast<std::size_t>(node)];
    if (!own.offered) {
      return false;
    }
    sums.time += own.time;
    sums.parameter_bytes += own.parameter_bytes;
    sums.in_flight += own.in_flight;
    sums.constant += own.constant;
    sums.small_in_flight += own.small_in_flight;
    sums.small_constant += own.small_constant;
    sums.small_extra_time += own.extra_time;
    sums.least_memory += own.least_memory;
    sums.transfer_bytes += own.in_bytes;
    for (const OutEdge& edge : by_degree_[t].out[static_cast<std::size_t>(node)]) {
      const bool joins = in_stage[static_cast<std::size_t>(edge.target)] != 0;
      sums.transfer_bytes += joins ? -edge.joined : edge.cut;
    }
    return true;
  }

  /// The stage's time with d replicas is compute(d) + extra / d, where `extra` is what the inner
  /// problem adds to save memory.
  [[nodiscard]] double replica_time(const StageSums& sums) const {
    return sums.time + 2 * sums.transfer_bytes * per_byte_;
  }
  [[nodiscard]] double full_sync_time(const StageSums& sums) const {
    return sums.parameter_bytes * sync_per_byte_;
  }

  /// The stage that fits() speaks of: a node comes in, or the last one goes again.
  void enter(int node) { stage_.push_back(node); }
  void leave() {
    for (std::vector<Order>& orders : orders_) {
      for (Order& order : orders) {
        if (order.marked == stage_.size()) {
          flip(order, stage_.back());
          --order.marked;
        }
      }
    }
    stage_.pop_back();
  }
  void leave_all() {
    while (!stage_.empty()) {
      leave();
    }
  }

  /// kHopeless: neither this stage nor any larger one could, had it no transfers.
  enum class Fit { kYes, kNo, kHopeless };
  /// Whether the stage, whose sums these are, fits with y microbatches in flight when the inner
  /// problem may add at most `slack` to its time; at most `most_slack` if it had no transfers.
  [[nodiscard]] Fit fits(
      std::size_t t, const StageSums& sums, std::int64_t y, double slack, double most_slack);

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
  using Bits = std::vector<std::uint64_t>;
  /// Nodes whose small choice saves memory, the cheapest a byte first. Many y share an order.
  struct Order {
    std::vector<int> node_of{};  ///< of each rank
    std::vector<int> rank{};     ///< of each node; -1 = it saves nothing
    Bits bits{};                 ///< ranks of the first `marked` nodes of the stage under way
    std::size_t marked = 0;
  };
  /// The savings of one degree and y, by the ranks of an order.
  struct Ranking {
    std::size_t order = 0;  ///< in the degree's orders_
    std::vector<Saving> items{};
  };

  [[nodiscard]] static Status read_degree(const LayerRequest& request,
                                          const std::vector<int>& order,
                                          Degree& degree);
  [[nodiscard]] static Status read_node(const problem::Layer& layer, int degree, Node& node);
  static void read_edges(const problem::LayerGraph& graph,
                         const std::vector<int>& order,
                         Degree& degree);
  static constexpr unsigned kWordBits = 64;
  /// Marks the node in or out.
  static void flip(Order& order, int node) {
    const int rank = order.rank[static_cast<std::size_t>(node)];
    if (rank >= 0) {
      const auto bit = static_cast<std::size_t>(rank);
      order.bits[bit / kWordBits] ^= std::uint64_t{1} << (bit % kWordBits);
    }
  }
  /// The ranks of the whole stage under way.
  [[nodiscard]] const Bits& stage_bits(Order& order) const;
  [[nodiscard]] const Ranking& ranking(std::size_t t, std::int64_t y);
  [[nodiscard]] std::size_t find_order(std::size_t t, std::vector<int> node_of);
  /// The ranks of `nodes` as bits.
  static void mark(const Order& order, const std::vector<int>& nodes, Bits& bits);
  /// fits() once the greedy and the relaxed cost are known.
  [[nodiscard]] bool last_swap_fits(const Ranking& ranked,
                                    const Bits& bits,
                                    double need,
                                    double slack,
                                    double greedy,
                                    double relaxed);
  /// The savings of the ranks into stage_items_, the ranks into stage_ranks_.
  void gather(const Ranking& ranking, const Bits& bits);

  double memory_ = 0;
  double per_byte_ = 0;  ///< time of a byte
  double sync_per_byte_ = 0;
  Inner inner_ = Inner::kExact;
  std::vector<Degree> by_degree_{};
  std::vector<double> work_{};
  std::vector<double> least_time_{};
  std::vector<std::vector<Order>> orders_{};                     ///< of each degree
  std::vector<std::vector<std::optional<Ranking>>> rankings_{};  ///< by degree and y
  std::vector<int> stage_{};
  CoverKnapsack knapsack_{};
  Bits bits_{};
  std::vector<Saving> stage_items_{};
  std::vector<int> stage_ranks_{};
};

}  // namespace shardplan::planners::piper
