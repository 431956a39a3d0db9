#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/planners/evaluate.h"
#include "shardplan/problem/step_structure.h"

namespace shardplan::planners {

/// How much of a parameter's life is cut over the data axis: ZeRO stages (Rajbhandari et al. 2020).
enum class ZeroStage { kNone, kOptimizer, kGradients, kParameters };

/// A plan that an expert would write down: data parallelism over some devices, Megatron-style
/// tensor parallelism (Shoeybi et al. 2019), with sequence parallelism between the products
/// (Korthikanti et al. 2022), over the rest.
struct ExpertRule {
  std::string_view name;
  bool data = true;     ///< a mesh axis "data"
  bool tensor = false;  ///< a mesh axis "tensor"
  ZeroStage zero = ZeroStage::kNone;
  bool space = false;  ///< one mesh axis, "space", that cuts the first dimension of space
  /// One mesh axis, "expert": the batch, but experts where a weight has a matrix for each, with
  /// all-to-alls between the two (Lepikhin et al. 2020).
  bool experts = false;
};

/// The rules behind the planners dp, zero1, ...; in the order of the registry.
[[nodiscard]] const std::vector<ExpertRule>& expert_rules();

/// Meshes on which a rule makes sense for these devices.
[[nodiscard]] std::vector<cluster::DeviceMesh> expert_meshes(const ExpertRule& rule,
                                                             std::int64_t devices);

/// Makes the expert plans of one request: holds what they share on all meshes.
class Experts {
 public:
  /// `request` outlives it. `structure` is that of request.step.
  Experts(const PlanRequest& request, std::shared_ptr<const problem::StepStructure> structure);
  explicit Experts(const PlanRequest& request);

  /// Whether the model has dimensions that the rule is about: others it leaves whole.
  [[nodiscard]] bool applies(const ExpertRule& rule) const;

  /// The rule's plan on one mesh, with nothing and, where that is over the limit, with every block
  /// recomputed. What the rule leaves open (layouts of the values between its ops) is chosen for
  /// least time by exact elimination. Plans whose simulated time is certain to be at least `worth`
  /// are left out, mostly before they are made: no plan is faster than its kernels, nor than half
  /// of its kernels and collectives together.
  [[nodiscard]] Result<std::vector<Candidate>> plans(
      const ExpertRule& rule,
      const cluster::DeviceMesh& mesh,
      Bytes limit,
      Seconds worth = std::numeric_limits<Seconds>::infinity()) const;

 private:
  [[nodiscard]] Seconds least_seconds(const problem::IntraOpProblem& problem) const;

  const PlanRequest& request_;
  std::shared_ptr<const problem::StepStructure> structure_;
};

/// The best plan of these rules on all meshes of theirs, or on the request's, in the name of
/// `planner`.
[[nodiscard]] Result<PlanResult> plan_by_rules(const PlanRequest& request,
                                               std::string_view planner,
                                               std::span<const ExpertRule> rules);

}  // namespace shardplan::planners
