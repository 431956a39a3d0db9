#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/graph.h"
#include "shardplan/plan/plan.h"
#include "shardplan/sim/sim.h"
#include "shardplan/support/progress.h"

namespace shardplan::planners {

/// What a planner is asked. `step` outlives the call.
struct PlanRequest {
  const ir::Graph& step;
  training::Recipe recipe{};
  cluster::Cluster cluster{};
  Bytes memory_limit = 0;  ///< of each device; 0 = the device's own memory
  /// Only this mesh; otherwise the planner's own choice among cluster::enumerate_meshes.
  std::optional<cluster::DeviceMesh> mesh{};
  int max_mesh_axes = 0;   ///< of those; 0: one more than the cluster has levels of links
  Seconds time_limit = 0;  ///< of the search; 0 = none
  std::uint64_t seed = 0;
  Control control{};
  /// Of no use is a plan with this simulated time or more: a planner may end without one, as `map`
  /// does where even its plans without a limit take as long.
  Seconds worth = std::numeric_limits<Seconds>::infinity();
};

enum class SearchStatus { kOptimal, kFeasible, kInfeasible, kNoPlanFound };
enum class SearchLimit { kNone, kTime, kInterrupted };

/// The outcome of a search is data, not an error.
struct PlanResult {
  SearchStatus status = SearchStatus::kNoPlanFound;
  SearchLimit limit = SearchLimit::kNone;
  plan::Plan best{};  ///< with its prediction; kInfeasible: the plan of least memory found
  sim::Simulation simulation{};  ///< of `best`, without timeline
  std::string explanation{};     ///< infeasible: what binds, the least memory, what would help
};

/// Whether there is a plan within the limit.
[[nodiscard]] bool fits(const PlanResult& result);

struct PlannerInfo {
  std::string_view name;
  std::string_view paper;
  int year;
  std::string_view summary;
  Result<PlanResult> (*plan)(const PlanRequest& request);
  /// For planners that reuse the work of one memory limit for the next; null: plan() for each.
  Result<std::vector<PlanResult>> (*sweep)(const PlanRequest& request,
                                           const std::vector<Bytes>& limits) = nullptr;
};

/// The plans of one planner for several memory limits, in the order of the limits.
[[nodiscard]] Result<std::vector<PlanResult>> sweep(const PlannerInfo& planner,
                                                    const PlanRequest& request,
                                                    const std::vector<Bytes>& limits);

/// The fastest of one planner's plans for several requests, such as a batch in different numbers of
/// microbatches. Each is asked for less than the best so far (PlanRequest::worth), so that the
/// likely ones should come first; the time limit of the first is that of all together. Where
/// nothing fits: the plan of least memory. Of several requests nothing is proven but a bound on the
/// simulated time that all of them have. Errors: of the first request, where every one has an
/// error. Precondition: a request.
struct Fastest {
  std::size_t request = 0;
  PlanResult result{};
};
[[nodiscard]] Result<Fastest> plan_fastest(const PlannerInfo& planner,
                                           const std::vector<PlanRequest>& requests);

/// All planners, in the order of the table in registry.cc.
[[nodiscard]] const std::vector<PlannerInfo>& registry();
[[nodiscard]] Result<const PlannerInfo*> find_planner(std::string_view name);

/// For one block of the model under one plan: what was chosen, its cost, and the cheapest other
/// choice of its most expensive op.
struct LayerExplanation {
  std::string layer{};
  std::string choice{};  ///< "batch → data · ffn → tensor"
  bool recomputed = false;
  Seconds compute_seconds = 0;
  Seconds communication_seconds = 0;
  Bytes parameter_bytes = 0;   ///< local, with gradients and optimizer state
  Bytes activation_bytes = 0;  ///< local, saved for the backward pass
  std::string next_best{};
  Seconds next_best_loss = 0;  ///< how much longer a step would take
};
[[nodiscard]] Result<std::vector<LayerExplanation>> explain(const plan::Plan& plan,
                                                            const ir::Graph& step);

/// An operator of PyTorch without a definition here that the plan leaves whole: every device does
/// all of its calls.
struct WholeCall {
  std::string target{};  ///< "aten.linalg_qr.default"
  std::int64_t count = 0;
  Seconds seconds = 0;  ///< of all its calls in a step, gradients included, on each device
};
/// Those of a plan, the longest first; none on one device.
[[nodiscard]] std::vector<WholeCall> whole_calls(const plan::Plan& plan, const ir::Graph& step);

}  // namespace shardplan::planners
