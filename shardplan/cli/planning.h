#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "shardplan/cli/session.h"
#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/graph.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/result.h"

namespace CLI {
class App;
}

namespace shardplan::cli {

/// What `plan` and `compare` are asked, as the user writes it.
struct PlanningOptions {
  ModelOptions model{};
  std::string cluster{};
  RecipeOptions recipe{};
  std::string mesh{};     ///< "data=2,tensor=4"; empty: the planner's choice
  int max_mesh_axes = 0;  ///< 0: the planner's own
  Seconds time_limit = 0;
  std::uint64_t seed = 0;
  bool finds_microbatches = false;  ///< the command knows --microbatches auto
};
void add_planning_options(CLI::App& app, PlanningOptions& options);

/// The same, read: everything that a planner needs but the memory limit.
struct Planning {
  std::string model{};
  plan::Binding binding{};
  ir::Graph step{};
  training::Recipe recipe{};
  cluster::Cluster cluster{};
  std::optional<cluster::DeviceMesh> mesh{};
  int max_mesh_axes = 0;  ///< 0: the planner's own
  Seconds time_limit = 0;
  std::uint64_t seed = 0;
  /// --microbatches auto: the recipe and the step in every number of them that is to be tried, the
  /// likely ones first; `recipe` and `step` are in one.
  struct Alternative {
    training::Recipe recipe{};
    ir::Graph step{};
  };
  std::vector<Alternative> alternatives{};

  /// The step of a plan.
  [[nodiscard]] const ir::Graph& step_of(const plan::Plan& plan) const;
};
/// The model's batch in every number of microbatches that divides it (1, 2, 4, ... where there are
/// many), as far as it can be cut, or in these numbers. Errors: the batch in one, or in a given
/// number.
[[nodiscard]] Result<std::vector<Planning::Alternative>> in_microbatches(
    const ir::Graph& forward,
    const training::Recipe& recipe,
    const std::vector<std::int64_t>& counts);
[[nodiscard]] Result<Planning> read_planning(const std::string& command,
                                             const PlanningOptions& options);

/// Lines on what a plan is not: of stale weights, and the planner's own note.
void print_remarks(const planners::PlanResult& result);

/// Bytes of --memory; 0 when it is not given.
[[nodiscard]] Result<Bytes> read_memory(const std::string& text);

/// Runs one planner, on all alternatives; the plan of the result names the model as the user wrote
/// it.
[[nodiscard]] Result<planners::PlanResult> make_plan(const planners::PlannerInfo& planner,
                                                     const Planning& planning,
                                                     Bytes memory_limit,
                                                     const Control& control);

/// The same for several limits.
[[nodiscard]] Result<std::vector<planners::PlanResult>> make_plans(
    const planners::PlannerInfo& planner,
    const Planning& planning,
    const std::vector<Bytes>& limits,
    const Control& control);

/// The limit that stopped a search, as it is written in --json.
[[nodiscard]] std::string_view limit_name(planners::SearchLimit limit);

/// The object of one plan in --json: planner, status, mesh, predicted times and bytes.
[[nodiscard]] nlohmann::ordered_json plan_json(const planners::PlanResult& result,
                                               const std::string& planner);

/// {"parameters": ..., "gradients": ..., ...}, bytes.
[[nodiscard]] nlohmann::ordered_json memory_json(const sim::MemoryBreakdown& memory);
/// "parameters 3.10 GiB · gradients 3.10 GiB · ...", without parts that are nothing.
[[nodiscard]] std::string memory_text(const sim::MemoryBreakdown& memory);
/// "nothing", "3 blocks whole, 2 selective".
[[nodiscard]] std::string recompute_text(const plan::Plan& plan);
/// Says which operators every device runs on whole tensors, and what that costs; nothing when there
/// are none.
void print_whole_calls(const std::vector<planners::WholeCall>& calls);
/// "8 devices · NVLink 300 GB/s a direction".
[[nodiscard]] std::string cluster_text(const cluster::Cluster& cluster);
/// "124 M parameters · 412 ops a step · input_ids i64[4,128]".
[[nodiscard]] std::string model_text(const ir::Graph& step);
/// Part of the device's peak rate that the step reaches, 0 when the cluster does not tell the peak.
[[nodiscard]] double part_of_peak(const planners::PlanResult& result, const ir::Graph& step);

}  // namespace shardplan::cli
