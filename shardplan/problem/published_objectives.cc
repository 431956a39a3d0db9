#include "shardplan/problem/published_objectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace shardplan::problem {
namespace {

/// Memory sums are compared with this relative slack: they are added in another order than the
/// planner's.
constexpr double kSlack = 1e-9;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

Error broken(const std::string& message, std::size_t stage) {
  return Error{ErrorCode::kRuntime, message, fmt::format("stage {}", stage), {}};
}

/// The stage of each layer, when every layer has one and no other.
Result<std::vector<int>> stage_of_layers(const LayerGraph& graph, const LayerPlan& plan) {
  std::vector<int> stage_of(graph.layers.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const LayerStage& stage = plan.stages[s];
    if (!stage.choices.empty() && stage.choices.size() != stage.layers.size()) {
      return broken(
          fmt::format("{} choices for {} layers", stage.choices.size(), stage.layers.size()), s);
    }
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const int v = stage.layers[i];
      if (v < 0 || at(v) >= graph.layers.size()) {
        return broken(fmt::format("there is no layer {}", v), s);
      }
      if (stage_of[at(v)] >= 0) {
        return broken(
            fmt::format("{} is in stage {} too", describe(graph.layers[at(v)]), stage_of[at(v)]),
            s);
      }
      const int choice = stage.choices.empty() ? 0 : stage.choices[i];
      if (choice < 0 || at(choice) >= graph.layers[at(v)].choices.size()) {
        return broken(fmt::format("{} has no choice {}", describe(graph.layers[at(v)]), choice), s);
      }
      stage_of[at(v)] = static_cast<int>(s);
    }
  }
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    if (stage_of[v] < 0) {
      return Error{ErrorCode::kRuntime,
                   fmt::format("{} is in no stage", describe(graph.layers[v])),
                   "plan",
                   {}};
    }
  }
  return stage_of;
}

Status check_forward(const LayerGraph& graph, const std::vector<int>& stage_of) {
  for (const LayerEdge& edge : graph.edges) {
    if (stage_of[at(edge.source)] > stage_of[at(edge.target)]) {
      return broken(fmt::format("{} runs before {}, which it needs",
                                describe(graph.layers[at(edge.target)]),
                                describe(graph.layers[at(edge.source)])),
                    at(stage_of[at(edge.target)]));
    }
  }
  return {};
}

}  // namespace

Result<double> largest_block_objective(const LayerGraph& graph,
                                       const LayerMachines& machines,
                                       const LayerPlan& plan,
                                       const PublishedOptions& /*options*/) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stage_of_layers(graph, plan));
  SHARDPLAN_RETURN_IF_ERROR(check_forward(graph, stage_of));
  if (plan.stages.size() > at(machines.devices)) {
    return broken(fmt::format("{} stages on {} devices", plan.stages.size(), machines.devices), 0);
  }
  std::vector<double> times(plan.stages.size(), 0);
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    times[at(stage_of[v])] += graph.layers[v].choices.front().time;
  }
  return *std::max_element(times.begin(), times.end());
}

}  // namespace shardplan::problem
