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

#include "shardplan/planners/pipeline/idle_layers.h"
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
constexpr double kStale = 2e-3;       // lower targets are worth another bound
constexpr double kFirstShare = 0.03;  // of the downsets of each size that are likely

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

/// A search with the numbering of layers that it works in.
struct Numbered {
  std::vector<int> order;  ///< layers of the graph
  StageCosts costs;
  DownsetLattice lattice{};
};

class Piper {
 public:
  Piper(const LayerRequest& request, Inner inner) : request_(request), inner_(inner) {
    options_.time_limit = request.time_limit;
    options_.control = request.control;
  }

  Result<LayerPlanResult> run() {
    const solvers::Budget budget(options_);
    ends_.stopped = [&] { return budget.exhausted(); };
    SHARDPLAN_ASSIGN_OR_RETURN(Numbered chain, numbered(growing_order(request_.graph)));
    for (int node = 0; node < chain.costs.nodes(); ++node) {
      if (!std::isfinite(chain.costs.work(node))) {
        return infeasible(
            fmt::format("{} needs more devices than there are", name(chain.order[at(node)])));
      }
      ends_.low += chain.costs.work(node) / request_.machines.devices;
    }
    chain.lattice = prefix_downsets(chain.costs.nodes());
    Search prefixes = search_of(chain);
    if (improve(prefixes, chain, kInfinity, budget)) {
      const auto on_chain = [&](double target) { return improve(prefixes, chain, target, budget); };
      ends_.bisect(on_chain);
      ends_.exhaust(on_chain);
    }
    return on_all(chain, budget);
  }

 private:
  [[nodiscard]] std::string name(int layer) const {
    return problem::describe(request_.graph.layers[at(layer)]);
  }

  [[nodiscard]] Result<Numbered> numbered(std::vector<int> order) const {
    SHARDPLAN_ASSIGN_OR_RETURN(StageCosts costs, StageCosts::create(request_, order, inner_));
    return Numbered{std::move(order), std::move(costs)};
  }
  [[nodiscard]] Search search_of(Numbered& numbers) const {
    return {
        numbers.lattice, numbers.costs, request_.machines.devices, request_.machines.microbatches};
  }

  /// On all downsets, starting from what the prefixes of one order gave.
  Result<LayerPlanResult> on_all(Numbered& numbers, const solvers::Budget& budget) {
    std::optional<DownsetLattice> all =
        all_downsets(successors_first(request_.graph, numbers.order), kMostDownsets, [&] {
          return budget.exhausted();
        });
    if (!all) {
      LayerPlanResult result = answer(budget);
      if (!budget.exhausted()) {
        result.explanation =
            "the graph has too many downsets: only the prefixes of one order were looked at";
      }
      return result;
    }
    numbers.lattice = std::move(*all);
    Search search = search_of(numbers);
    const auto found = [&](double target, double share) {
      const bool found_one = improve(search, numbers, target, budget, share);
      if (found_one) {
        polish(budget);
      }
      return found_one;
    };
    if (best_.stages.empty() && !found(kInfinity, 1) && !search.stopped()) {
      return infeasible(bottleneck());
    }
    if (!best_.stages.empty()) {
      double share = kFirstShare;
      double bounded = kInfinity;  // the target that the search was last prepared for
      const auto possible = [&](double target) {
        if (target > bounded * (1 - kStale)) {
          return true;
        }
        bounded = target;
        return search.bound(target, budget);
      };
      ends_.descend([&](double target) { return found(target, share); },
                    [&](double target) {
                      share = std::min(1.0, 2 * share);  // it was too small, if this finds a plan
                      return possible(target) && found(target, 1);
                    });
    }
    return answer(budget);
  }

  /// Whether the search finds a plan for the target; the best one is the upper end.
  bool improve(Search& search,
               const Numbered& numbers,
               double target,
               const solvers::Budget& budget,
               double share = 1) {
    const std::optional<std::vector<Stage>> stages = search.find(target, budget, share);
    gave_up_ = gave_up_ || numbers.costs.gave_up();
    if (!stages) {
      return false;
    }
    double value = 0;
    for (const Stage& stage : *stages) {
      value = std::max(value, stage.time);
    }
    if (value < ends_.high) {
      ends_.high = value;
      best_ = plan_of(*stages, numbers);
    }
    return true;
  }

  /// Betters the plan in hand as far as the prefixes of an order allow in which its stages stay
  /// together.
  void polish(const solvers::Budget& budget) {
    std::vector<int> order;
    for (std::size_t s = best_.stages.size(); s-- > 0;) {
      const std::vector<int>& layers = best_.stages[s].layers;
      order.insert(order.end(), layers.rbegin(), layers.rend());
    }
    Result<Numbered> chain = numbered(std::move(order));
    if (!chain) {
      return;
    }
    chain->lattice = prefix_downsets(chain->costs.nodes());
    Search search = search_of(*chain);
    ends_.exhaust([&](double target) { return improve(search, *chain, target, budget); });
  }

  [[nodiscard]] problem::LayerPlan plan_of(const std::vector<Stage>& stages,
                                           const Numbered& numbers) const {
    problem::LayerPlan plan;
    plan.schedule = "1f1b";
    plan.microbatches = request_.machines.microbatches;
    for (const Stage& stage : stages) {
      problem::LayerStage& out = plan.stages.emplace_back();
      for (std::size_t i = stage.nodes.size(); i-- > 0;) {
        out.layers.push_back(numbers.order[at(stage.nodes[i])]);
        out.choices.push_back(numbers.costs.choice(stage.t, stage.nodes[i], stage.small[i]));
      }
      out.replicas = stage.d;
      out.degree = numbers.costs.degree(stage.t);
      out.time = stage.time;
      out.memory_bytes = stage.memory;
    }
    return plan;
  }

  [[nodiscard]] LayerPlanResult infeasible(const std::string& why) const {
    LayerPlanResult result;
    result.status = SearchStatus::kInfeasible;
    result.explanation = why;
    return result;
  }

  /// Why nothing fits, as far as single layers tell.
  [[nodiscard]] std::string bottleneck() const {
    double largest = 0;
    std::size_t where = 0;
    for (std::size_t v = 0; v < request_.graph.layers.size(); ++v) {
      double least = kInfinity;
      for (const problem::LayerChoice& choice : request_.graph.layers[v].choices) {
        least = std::min(least, choice.in_flight_bytes + choice.constant_bytes);
      }
      if (least > largest) {
        largest = least;
        where = v;
      }
    }
    const double memory = request_.machines.memory_bytes;
    return fmt::format(
        "no stages on {} devices fit into {} each{}; more devices or memory, or a "
        "smaller microbatch, would help",
        request_.machines.devices,
        human_bytes(static_cast<Bytes>(memory)),
        largest <= memory ? ""
                          : fmt::format(" ({} alone needs {})",
                                        name(static_cast<int>(where)),
                                        human_bytes(static_cast<Bytes>(largest))));
  }

  [[nodiscard]] LayerPlanResult answer(const solvers::Budget& budget) const {
    LayerPlanResult result;
    const bool proven = !gave_up_;
    result.limit = search_limit(budget.limit());
    if (best_.stages.empty()) {
      result.explanation = "the search was stopped before it found a plan";
      return result;
    }
    result.objective = ends_.high;
    result.lower_bound = proven ? ends_.low : -kInfinity;
    result.status =
        proven && ends_.low >= ends_.high ? SearchStatus::kOptimal : SearchStatus::kFeasible;
    result.best = best_;
    return result;
  }

  const LayerRequest& request_;
  Inner inner_;
  solvers::SolveOptions options_{};
  TargetDescent ends_{};
  problem::LayerPlan best_{};
  bool gave_up_ = false;  ///< an inner choice was too hard to be made exactly
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
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "piper"));
  const WithoutIdleLayers smaller = without_idle_layers(request);
  const LayerRequest reduced{
      smaller.graph, machines, request.options, request.time_limit, request.control};
  const Inner inner = request.options.at("inner") == "greedy" ? Inner::kGreedy : Inner::kExact;
  SHARDPLAN_ASSIGN_OR_RETURN(LayerPlanResult result, Piper(reduced, inner).run());
  if (!result.best.stages.empty()) {
    restore_idle_layers(request.graph, smaller, result.best);
  }
  return result;
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
