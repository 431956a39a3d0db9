// Both methods see the model as a chain of layer times: `chain` makes one of the graph, in the
// topological order by a queue of ready layers. Read block_partition() for torchgpipe's heuristic
// and even_cut() for the optimum.
//
// torchgpipe normalises the times to [0, 1] and moves single layers towards the smallest block
// until no block exceeds the smallest by more than the largest layer (1 after normalising): the
// theorem behind it promises that, and no more. Deviation: a move across an empty block takes the
// layer from the next block that has one (the published code would make a block of negative size).
#include "shardplan/planners/pipeline/block_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shardplan/planners/pipeline/even_cut.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;

struct Chain {
  std::vector<int> layers{};
  std::vector<double> times{};
};

Result<Chain> chain(const LayerRequest& request, std::string_view method) {
  const LayerGraph& graph = request.graph;
  SHARDPLAN_RETURN_IF_ERROR(require_layer_for_each_device(request, method));
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(graph, method));
  Chain all{problem::topological_order(graph), {}};
  for (const int v : all.layers) {
    all.times.push_back(graph.layers[static_cast<std::size_t>(v)].choices.front().time);
  }
  return all;
}

/// Ends of the blocks, rising; the last is the length of the chain.
using Ends = std::vector<std::size_t>;

/// Blocks of a chain, with the sums of their normalised times.
class Blocks {
 public:
  Blocks(const std::vector<double>& times, std::size_t count) : times_(times) {
    const auto [low, high] = std::minmax_element(times.begin(), times.end());
    const double least = *low;
    const double range = *high - least;
    for (double& time : times_) {
      time = range > 0 ? (time - least) / range : 0;
    }
    for (std::size_t b = 0; b < count; ++b) {
      ends_.push_back(b + 1 == count ? times.size() : times.size() / count * (b + 1));
    }
    for (std::size_t b = 0; b < count; ++b) {
      sums_.push_back(sum(b));
    }
  }

  /// The largest block; of equal ones the last.
  [[nodiscard]] std::size_t largest() const {
    std::size_t best = 0;
    for (std::size_t b = 1; b < sums_.size(); ++b) {
      best = sums_[b] >= sums_[best] ? b : best;
    }
    return best;
  }
  /// The smallest block; of equal ones the first.
  [[nodiscard]] std::size_t smallest() const {
    return static_cast<std::size_t>(std::min_element(sums_.begin(), sums_.end()) - sums_.begin());
  }
  [[nodiscard]] double operator[](std::size_t block) const { return sums_[block]; }
  [[nodiscard]] const Ends& ends() const { return ends_; }

  /// Gives block `to` the layer that is next to it on the side of block `from`; returns its giver.
  std::size_t move_towards(std::size_t to, std::size_t from) {
    std::size_t giver = to;
    while (giver == to || ends_[giver] == begin(giver)) {
      from < to ? --giver : ++giver;
    }
    for (std::size_t b = std::min(giver, to); b < std::max(giver, to); ++b) {
      from < to ? --ends_[b] : ++ends_[b];
    }
    sums_[giver] = sum(giver);
    sums_[to] = sum(to);
    return giver;
  }

 private:
  [[nodiscard]] std::size_t begin(std::size_t block) const {
    return block == 0 ? 0 : ends_[block - 1];
  }
  [[nodiscard]] double sum(std::size_t block) const {
    return std::accumulate(times_.begin() + static_cast<std::ptrdiff_t>(begin(block)),
                           times_.begin() + static_cast<std::ptrdiff_t>(ends_[block]),
                           0.0);
  }

  std::vector<double> times_;
  Ends ends_;
  std::vector<double> sums_;
};

Ends block_partition(const std::vector<double>& times,
                     std::size_t count,
                     const solvers::Budget& budget) {
  Blocks blocks(times, count);
  std::size_t p = blocks.largest();
  while (true) {
    const std::size_t q = blocks.smallest();
    if (blocks[p] <= blocks[q] + 1 || budget.exhausted()) {
      return blocks.ends();
    }
    if (blocks.move_towards(q, p) == p) {
      p = blocks.largest();
    }
  }
}

LayerPlanResult result_of(const Chain& chain, const Ends& ends) {
  LayerPlanResult result;
  result.objective = 0;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    problem::LayerStage& stage = result.best.stages.emplace_back();
    for (std::size_t i = begin; i < end; ++i) {
      stage.layers.push_back(chain.layers[i]);
      stage.time += chain.times[i];
    }
    result.objective = std::max(result.objective, stage.time);
    begin = end;
  }
  result.best.schedule = "gpipe";
  return result;
}

Ends least_largest_block(const std::vector<double>& times,
                         std::size_t count,
                         const solvers::Budget& /*budget*/) {
  std::vector<double> sums(times.size() + 1, 0);
  std::partial_sum(times.begin(), times.end(), sums.begin() + 1);
  const std::vector<std::size_t> begins = even_cut(sums, count);
  Ends ends(begins.begin() + 1, begins.end());
  ends.push_back(times.size());
  return ends;
}

using Cut = Ends (*)(const std::vector<double>& times,
                     std::size_t count,
                     const solvers::Budget& budget);

Result<LayerPlanResult> cut_chain(const LayerRequest& request, std::string_view method, Cut cut) {
  const solvers::SolveOptions options = limits_of(request);
  const solvers::Budget budget(options);
  SHARDPLAN_ASSIGN_OR_RETURN(const Chain all, chain(request, method));
  LayerPlanResult result =
      result_of(all, cut(all.times, static_cast<std::size_t>(request.machines.devices), budget));
  result.status = SearchStatus::kFeasible;
  result.limit = search_limit(budget.limit());
  return result;
}

Result<LayerPlanResult> solve_torchgpipe(const LayerRequest& request) {
  return cut_chain(request, "torchgpipe", &block_partition);
}

Result<LayerPlanResult> solve_gpipe(const LayerRequest& request) {
  SHARDPLAN_ASSIGN_OR_RETURN(LayerPlanResult result,
                             cut_chain(request, "gpipe", &least_largest_block));
  result.limit = SearchLimit::kNone;  // the optimum is found in one go
  result.status = SearchStatus::kOptimal;
  result.lower_bound = result.objective;
  return result;
}

constexpr std::string_view kCannot =
    "memory, transfers, data and tensor parallelism; branches (the graph becomes a chain)";

}  // namespace

LayerPlannerInfo torchgpipe_planner() {
  return {"torchgpipe",
          "Kim et al., torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models",
          2020,
          "blocks of a chain, balanced by moving single layers",
          kCannot,
          "in the largest stage",
          {},
          &solve_torchgpipe,
          &problem::largest_block_objective};
}

LayerPlannerInfo gpipe_planner() {
  return {"gpipe",
          "Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline "
          "Parallelism",
          2019,
          "blocks of a chain with the least largest time, exactly",
          kCannot,
          "in the largest stage",
          {},
          &solve_gpipe,
          &problem::largest_block_objective};
}

}  // namespace shardplan::planners
