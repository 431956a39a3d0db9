#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/planners/planner.h"
#include "shardplan/problem/layer_graph.h"
#include "shardplan/problem/layer_plan.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::planners {

/// What a planner of layer graphs is asked. `graph` (checked by problem::check) outlives the call.
struct LayerRequest {
  const problem::LayerGraph& graph;
  problem::LayerMachines machines{};
  /// Of the planner's own list, by name; those not given have their defaults.
  std::map<std::string, std::string> options{};
  Seconds time_limit = 0;  ///< of the search; 0 = none
  Control control{};
};

/// The outcome of a search is data, not an error. Errors are for questions that the method cannot
/// take at all, and say so by the method's name.
struct LayerPlanResult {
  SearchStatus status = SearchStatus::kNoPlanFound;
  SearchLimit limit = SearchLimit::kNone;
  problem::LayerPlan best{};  ///< kOptimal and kFeasible only
  /// The publication's own objective; lower is better, in LayerPlannerInfo::unit.
  double objective = std::numeric_limits<double>::infinity();
  /// No plan that the method could return is better; -infinity: nothing is proven.
  double lower_bound = -std::numeric_limits<double>::infinity();
  std::string explanation{};  ///< infeasible: what binds, and what would help
};

/// One option of a planner: "inner" = "exact" or "greedy".
struct LayerOption {
  std::string_view name;
  std::string_view fallback;             ///< what holds when it is not given
  std::vector<std::string_view> values;  ///< allowed; empty = a number
  std::string_view meaning;
};

struct LayerPlannerInfo {
  std::string_view name;
  std::string_view paper;
  int year;
  std::string_view summary;
  std::string_view cannot;  ///< what the method does not handle, in a few words
  /// What the objective is, after the unit of time: "a microbatch" makes "ms a microbatch". Empty:
  /// the unit alone.
  std::string_view per;
  std::vector<LayerOption> options;
  Result<LayerPlanResult> (*solve)(const LayerRequest& request);
  /// The objective of a plan again, by code that shares nothing with the planner; an error where
  /// the plan breaks a constraint (problem/published_objectives.h).
  Result<double> (*evaluate)(const problem::LayerGraph& graph,
                             const problem::LayerMachines& machines,
                             const problem::LayerPlan& plan,
                             const std::map<std::string, std::string>& options);
};

/// All planners of layer graphs, in the order of the table in layer_registry.cc.
[[nodiscard]] const std::vector<LayerPlannerInfo>& layer_planners();
[[nodiscard]] Result<const LayerPlannerInfo*> find_layer_planner(std::string_view name);

/// Machines and batch as asked, completed by the defaults of the graph, and checked: at least one
/// device, positive bandwidths, as many of them as levels, numbers that are finite. `asked` has 0
/// for what was not said; without any word on devices the error asks for --devices.
[[nodiscard]] Result<problem::LayerMachines> complete_machines(const problem::LayerGraph& graph,
                                                               const problem::LayerMachines& asked);

// What methods want of a request; Errors in the name of `method`.

/// No layers that are parts of the backward pass by themselves.
[[nodiscard]] Status require_both_passes(const problem::LayerGraph& graph, std::string_view method);
/// At least as many layers as devices.
[[nodiscard]] Status require_layer_for_each_device(const LayerRequest& request,
                                                   std::string_view method);
/// The microbatches of a batch, and one bandwidth.
[[nodiscard]] Status require_batch_and_bandwidth(const LayerRequest& request,
                                                 std::string_view method);

/// The request's limits, for a solvers::Budget.
[[nodiscard]] solvers::SolveOptions limits_of(const LayerRequest& request);

/// What stopped a planner whose search is a solver's.
[[nodiscard]] SearchLimit search_limit(solvers::SolveLimit limit);

/// Options with the defaults filled in; errors name an unknown option or value.
[[nodiscard]] Result<std::map<std::string, std::string>> complete_options(
    const LayerPlannerInfo& planner, const std::map<std::string, std::string>& given);

/// Runs `planner` on completed machines and options, and checks its plan by `evaluate`: a plan
/// whose objective comes out otherwise (relative 1e-9), or which breaks a constraint, is an Error.
[[nodiscard]] Result<LayerPlanResult> solve_layers(const LayerPlannerInfo& planner,
                                                   const LayerRequest& request);

}  // namespace shardplan::planners
