// The paper fills a table dp[I][k][s] over all downsets I, devices k and sums s of data-parallel
// degrees. Here the same optimum is found the other way round: Search::find (piper2021_search.h)
// answers whether a target can be met, and solve() below closes in on the least one.
//
// An upper end is always the real value of a plan. The ends come close by bisection, first on the
// prefixes of one order of the layers (few pairs), then on all downsets by steps down from the
// upper end; at last one search strictly below the upper end finds nothing, which proves it
// optimal.
//
// Names as in the paper: t degree of tensor parallelism, d of data parallelism, s suffix sum of d,
// y microbatches in flight, K devices, N microbatches in a batch (section 4.2 of
// docs/planners/piper.md has the formulas).
//
// Deviations: the inner choice of recomputation is exact by default (option inner=greedy has the
// paper's heuristic); s is the sum itself where the paper has a bound on it, which is the same
// unless the greedy choice is worse for fewer microbatches in flight.
#include "shardplan/planners/pipeline/piper2021.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/planners/pipeline/piper2021_search.h"
#include "shardplan/planners/pipeline/target_descent.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {
namespace {

using piper::Inner;
using piper::Search;
using piper::Stage;
using piper::StageCosts;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostDownsets = 2'000'000;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// For every layer in `order` (of indices into the graph), the places of its successors.
std::vector<std::vector<int>> successors_first(const problem::LayerGraph& graph,
                                               const std::vector<int>& order) {
  std::vector<int> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = static_cast<int>(i);
  }
  std::vector<std::vector<int>> needs(order.size());
  for (const problem::LayerEdge& edge : graph.edges) {
    needs[at(place[at(edge.source)])].push_back(place[at(edge.target)]);
  }
  return needs;
}

/// The layers in the order in which stages grow: from the sinks, branch by branch.
std::vector<int> growing_order(const problem::LayerGraph& graph) {
  std::vector<int> order(graph.layers.size());
  for (std::size_t v = 0; v < order.size(); ++v) {
    order[v] = static_cast<int>(v);
  }
  return depth_first_order(successors_first(graph, order));
}

class Piper {
 public:
  Piper(const LayerRequest& request, StageCosts costs, std::vector<int> order)
      : request_(request), costs_(std::move(costs)), order_(std::move(order)) {
    options_.time_limit = request.time_limit;
    options_.control = request.control;
  }

  Result<LayerPlanResult> run() {
    const solvers::Budget budget(options_);
    const int devices = request_.machines.devices;
    for (int node = 0; node < costs_.nodes(); ++node) {
      if (!std::isfinite(costs_.work(node))) {
        return infeasible(fmt::format("{} needs more devices than there are", name(node)));
      }
      ends_.low += costs_.work(node) / devices;
    }
    const DownsetLattice prefixes = prefix_downsets(costs_.nodes());
    Search chain(prefixes, costs_, devices, request_.machines.microbatches);
    ends_.stopped = [&] { return budget.exhausted(); };
    if (improve(chain, kInfinity, budget)) {
      ends_.bisect([&](double target) { return improve(chain, target, budget); });
    }
    const std::optional<DownsetLattice> all =
        all_downsets(successors_first(request_.graph, order_), kMostDownsets);
    if (!all) {
      return unsupported(fmt::format("piper: the graph has more than {} downsets", kMostDownsets),
                         request_.graph.name);
    }
    Search search(*all, costs_, devices, request_.machines.microbatches);
    if (best_.empty() && !improve(search, kInfinity, budget) && !search.stopped()) {
      return infeasible(bottleneck());
    }
    if (!best_.empty()) {
      ends_.descend(
          [&](double target) { return improve(search, target, budget, Search::Effort::kLikely); },
          [&](double target) { return improve(search, target, budget); });
    }
    return answer(budget);
  }

 private:
  [[nodiscard]] std::string name(int node) const {
    return problem::describe(request_.graph.layers[at(order_[at(node)])]);
  }

  /// Whether the search finds a plan for the target; it becomes the upper end.
  bool improve(Search& search,
               double target,
               const solvers::Budget& budget,
               Search::Effort effort = Search::Effort::kAll) {
    std::optional<std::vector<Stage>> stages = search.find(target, budget, effort);
    if (!stages) {
      return false;
    }
    double value = 0;
    for (const Stage& stage : *stages) {
      value = std::max(value, stage.time);
    }
    if (value < ends_.high) {
      ends_.high = value;
      best_ = std::move(*stages);
    }
    return true;
  }

  [[nodiscard]] LayerPlanResult infeasible(const std::string& why) const {
    LayerPlanResult result;
    result.status = SearchStatus::kInfeasible;
    result.explanation = why;
    return result;
  }

  /// Why nothing fits, as far as single layers tell.
  [[nodiscard]] std::string bottleneck() const {
    return fmt::format(
        "no stages on {} devices fit into {} each; more devices or memory, or a smaller "
        "microbatch, "
        "would help",
        request_.machines.devices,
        human_bytes(static_cast<Bytes>(request_.machines.memory_bytes)));
  }

  [[nodiscard]] LayerPlanResult answer(const solvers::Budget& budget) const {
    LayerPlanResult result;
    const bool proven = !costs_.gave_up();
    switch (budget.limit()) {
      case solvers::SolveLimit::kTime:
        result.limit = SearchLimit::kTime;
        break;
      case solvers::SolveLimit::kInterrupted:
        result.limit = SearchLimit::kInterrupted;
        break;
      default:
        break;
    }
    if (best_.empty()) {
      result.explanation = "the search was stopped before it found a plan";
      return result;
    }
    result.objective = ends_.high;
    result.lower_bound = proven ? ends_.low : -kInfinity;
    result.status =
        proven && ends_.low >= ends_.high ? SearchStatus::kOptimal : SearchStatus::kFeasible;
    result.best.schedule = "1f1b";
    result.best.microbatches = request_.machines.microbatches;
    for (const Stage& stage : best_) {
      problem::LayerStage& out = result.best.stages.emplace_back();
      for (std::size_t i = stage.nodes.size(); i-- > 0;) {
        out.layers.push_back(order_[at(stage.nodes[i])]);
        out.choices.push_back(costs_.choice(stage.t, stage.nodes[i], stage.small[i]));
      }
      out.replicas = stage.d;
      out.degree = costs_.degree(stage.t);
      out.time = stage.time;
      out.memory_bytes = stage.memory;
    }
    return result;
  }

  const LayerRequest& request_;
  StageCosts costs_;
  std::vector<int> order_;
  solvers::SolveOptions options_{};
  TargetDescent ends_{};
  std::vector<Stage> best_{};
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  const problem::LayerMachines& machines = request.machines;
  if (machines.bandwidth <= 0) {
    return invalid_input("piper needs the bandwidth of a device", "--bandwidth");
  }
  if (machines.microbatches < 1) {
    return invalid_input("piper needs the number of microbatches in a batch", "--microbatches");
  }
  if (machines.hierarchy.size() > 1) {
    return unsupported("piper knows one bandwidth for all devices and no hierarchy", "--hierarchy");
  }
  for (const problem::Layer& layer : request.graph.layers) {
    if (layer.placement && layer.placement->backward) {
      return unsupported(fmt::format("piper wants layers with forward and backward time; {} is a "
                                     "part of the backward pass by itself",
                                     problem::describe(layer)),
                         request.graph.name);
    }
  }
  std::vector<int> order = growing_order(request.graph);
  const Inner inner = request.options.at("inner") == "greedy" ? Inner::kGreedy : Inner::kExact;
  SHARDPLAN_ASSIGN_OR_RETURN(StageCosts costs, StageCosts::create(request, order, inner));
  return Piper(request, std::move(costs), std::move(order)).run();
}

}  // namespace

LayerPlannerInfo piper_planner() {
  return {"piper",
          "Tarnawski, Narayanan, Phanishayee, Piper: Multidimensional Planner for DNN "
          "Parallelization, NeurIPS",
          2021,
          "stages with data and tensor parallelism and recomputation, of the highest throughput",
          "a hierarchy of bandwidths; overlap of transfers; different degrees within a stage; more "
          "than two choices of a degree; backward layers of their own",
          "a microbatch",
          {{"inner",
            "exact",
            {"exact", "greedy"},
            "how the layers that recompute are chosen; greedy = as published"}},
          &solve,
          &problem::piper_objective};
}

}  // namespace shardplan::planners
