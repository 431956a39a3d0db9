// The paper fills dp[c][f][I]: the least largest load with c CPUs and f accelerators for every
// downset I of the forward graph; a part is a difference of two downsets, and takes its backward
// layers with it. Here PlacementSearch::find answers whether a target can be met, and TargetDescent
// closes in on the least one, as for Piper.
//
// load of an accelerator = times of its layers + for every layer with an edge that crosses the
// part's border, inwards or outwards, the time of its transfer, once; of a CPU = CPU times.
//
// The linearised variant has one downset a prefix of a topological order that goes depth first.
// The paper does not say which: the best of four is taken.
#include "shardplan/planners/pipeline/dnn_partitioning2020.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "shardplan/planners/pipeline/dnn_partitioning_search.h"
#include "shardplan/planners/pipeline/placement_groups.h"
#include "shardplan/planners/pipeline/target_descent.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {
namespace {

using Part = PlacementSearch::Part;

constexpr int kMostDownsets = 2'000'000;
constexpr double kFirstShare = 0.1;  // of the downsets of each size that are likely

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

class Placement {
 public:
  Placement(const LayerRequest& request, PlacementGroups groups, std::string_view method)
      : request_(request),
        groups_(std::move(groups)),
        method_(method),
        options_(limits_of(request)) {}

  /// On the prefixes of depth-first orders.
  Result<LayerPlanResult> run_linear() {
    const solvers::Budget budget(options_);
    start(budget);
    if (best_.empty() && !ends_.stopped()) {
      return infeasible();
    }
    LayerPlanResult result = answer(budget);
    result.status = best_.empty() ? result.status : SearchStatus::kFeasible;
    return result;
  }

  /// On all downsets.
  Result<LayerPlanResult> run() {
    const solvers::Budget budget(options_);
    start(budget);
    const std::optional<DownsetLattice> all =
        all_downsets(groups_.needs, kMostDownsets, [&] { return budget.exhausted(); });
    if (!all && budget.exhausted()) {
      return answer(budget);
    }
    if (!all) {
      return unsupported(
          fmt::format("{}: the graph has too many downsets; dnn_partitioning_linear has few",
                      method_),
          request_.graph.name);
    }
    PlacementSearch search(*all, groups_, request_.graph, request_.machines);
    const auto found = [&](double target, double share) {
      const bool found_one = improve(search, groups_, target, budget, share);
      if (found_one) {
        polish(budget);
      }
      return found_one;
    };
    double share = kFirstShare;
    const TargetDescent::Try on_all = [&](double target) {
      share = std::min(1.0, 2 * share);  // it was too small, if this finds a plan
      return found(target, 1);
    };
    if (best_.empty() && !on_all(any_load()) && !search.stopped()) {
      return infeasible();
    }
    if (!best_.empty() && !ends_.prove(on_all)) {
      ends_.descend([&](double target) { return found(target, share); }, on_all);
    }
    return answer(budget);
  }

 private:
  /// No device has more, whatever it is given.
  [[nodiscard]] double any_load() const {
    double load = 1;
    for (const PlacementGroups::Group& group : groups_.groups) {
      load += group.time + group.cpu_time;
    }
    for (const double transfer : groups_.transfer) {
      load += transfer;
    }
    return load;
  }

  [[nodiscard]] std::vector<std::vector<int>> orders() const {
    std::vector<std::vector<int>> all;
    for (const DepthFirst::Rule rule : {DepthFirst::Rule::kBranches, DepthFirst::Rule::kNeeds}) {
      for (const bool reversed : {false, true}) {
        all.push_back(depth_first_order(groups_.needs, {rule, reversed}));
      }
    }
    return all;
  }

  /// Calls `use` with tries on the prefixes of an order of the groups.
  template <class Use>
  void on_prefixes(const std::vector<int>& order, const solvers::Budget& budget, const Use& use) {
    const PlacementGroups groups = renumbered(groups_, order);
    const DownsetLattice prefixes = prefix_downsets(static_cast<int>(order.size()));
    PlacementSearch search(prefixes, groups, request_.graph, request_.machines);
    use([&](double target) { return improve(search, groups, target, budget, 1); });
  }

  /// A lower end, and an upper one from the prefixes of a few orders.
  void start(const solvers::Budget& budget) {
    double work = 0;
    double cpu_share = 0;  // most accelerator time that a second of a CPU replaces
    for (const PlacementGroups::Group& group : groups_.groups) {
      if (group.on_accelerator && group.time > 0) {
        work += group.time;
        cpu_share = std::max(cpu_share, group.time / group.cpu_time);
      }
    }
    const problem::LayerMachines& machines = request_.machines;
    ends_.low = work / (machines.devices + (machines.cpus > 0 ? machines.cpus * cpu_share : 0));
    ends_.stopped = [&] { return budget.exhausted(); };
    for (const std::vector<int>& order : orders()) {
      on_prefixes(order, budget, [&](const TargetDescent::Try& chain) {
        if (best_.empty() && chain(any_load())) {
          ends_.bisect(chain);
        }
        if (!best_.empty()) {
          ends_.exhaust(chain);
        }
      });
    }
  }

  /// Betters the parts in hand as far as the prefixes of an order allow in which they stay
  /// together.
  void polish(const solvers::Budget& budget) {
    std::vector<int> order;
    for (const Part& part : best_) {
      for (const int group : part.groups) {
        order.push_back(group);
      }
    }
    on_prefixes(order, budget, [&](const TargetDescent::Try& chain) { ends_.exhaust(chain); });
  }

  bool improve(PlacementSearch& search,
               const PlacementGroups& groups,
               double target,
               const solvers::Budget& budget,
               double share) {
    std::optional<std::vector<Part>> parts = search.find(target, budget, share);
    if (!parts) {
      return false;
    }
    double value = 0;
    for (Part& part : *parts) {
      value = std::max(value, part.load);
      for (int& group : part.groups) {
        // By a layer: the search may have numbered the groups otherwise.
        group = groups_.group_of[at(groups.groups[at(group)].layers.front())];
      }
    }
    if (value < ends_.high) {
      ends_.high = value;
      best_ = std::move(*parts);
    }
    return true;
  }

  [[nodiscard]] LayerPlanResult answer(const solvers::Budget& budget) const {
    LayerPlanResult result;
    result.limit = search_limit(budget.limit());
    if (best_.empty()) {
      result.explanation = "the search was stopped before it found a plan";
      return result;
    }
    result.objective = ends_.high;
    result.lower_bound = ends_.low;
    result.status = ends_.low >= ends_.high ? SearchStatus::kOptimal : SearchStatus::kFeasible;
    fill(result.best);
    return result;
  }

  void fill(problem::LayerPlan& plan) const {
    std::vector<int> part_of(request_.graph.layers.size());
    for (std::size_t p = 0; p < best_.size(); ++p) {
      problem::LayerStage& stage = plan.stages.emplace_back();
      stage.on_cpu = best_[p].on_cpu;
      stage.time = best_[p].load;
      for (const int group : best_[p].groups) {
        stage.memory_bytes += groups_.groups[at(group)].bytes;
        for (const int layer : groups_.groups[at(group)].layers) {
          part_of[at(layer)] = static_cast<int>(p);
        }
      }
    }
    for (const int layer : problem::topological_order(request_.graph)) {
      plan.stages[at(part_of[at(layer)])].layers.push_back(layer);
    }
  }

  [[nodiscard]] LayerPlanResult infeasible() const {
    LayerPlanResult result;
    result.status = SearchStatus::kInfeasible;
    double bytes = 0;
    for (const PlacementGroups::Group& group : groups_.groups) {
      bytes += group.bytes;
    }
    result.explanation = fmt::format(
        "no contiguous parts fit: {} in all, {} accelerators of {} and {} CPUs; more of them would "
        "help",
        human_bytes(static_cast<Bytes>(bytes)),
        request_.machines.devices,
        human_bytes(static_cast<Bytes>(request_.machines.memory_bytes)),
        request_.machines.cpus);
    return result;
  }

  const LayerRequest& request_;
  PlacementGroups groups_;
  std::string_view method_;
  solvers::SolveOptions options_;
  TargetDescent ends_{};
  std::vector<Part> best_{};
};

Result<LayerPlanResult> solve_dp(const LayerRequest& request) {
  constexpr std::string_view kMethod = "dnn_partitioning_dp";
  SHARDPLAN_ASSIGN_OR_RETURN(PlacementGroups groups, placement_groups(request, kMethod));
  return Placement(request, std::move(groups), kMethod).run();
}

Result<LayerPlanResult> solve_linear(const LayerRequest& request) {
  constexpr std::string_view kMethod = "dnn_partitioning_linear";
  SHARDPLAN_ASSIGN_OR_RETURN(PlacementGroups groups, placement_groups(request, kMethod));
  return Placement(request, std::move(groups), kMethod).run_linear();
}

constexpr std::string_view kPaper =
    "Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino, Efficient Algorithms for Device "
    "Placement of DNN Graph Operators, NeurIPS";
constexpr std::string_view kCannot =
    "data and tensor parallelism, recomputation, microbatches in flight, a hierarchy of bandwidths";

}  // namespace

LayerPlannerInfo dnn_partitioning_dp_planner() {
  return {"dnn_partitioning_dp",
          kPaper,
          2020,
          "contiguous parts on accelerators and CPUs with the least largest load, exactly",
          kCannot,
          "of the largest load",
          {},
          &solve_dp,
          &problem::dnn_partitioning_objective};
}

LayerPlannerInfo dnn_partitioning_linear_planner() {
  return {"dnn_partitioning_linear",
          kPaper,
          2020,
          "the same along depth-first orders of the layers",
          kCannot,
          "of the largest load",
          {},
          &solve_linear,
          &problem::dnn_partitioning_objective};
}

}  // namespace shardplan::planners
