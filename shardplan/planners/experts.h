#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardplan/planners/evaluate.h"

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
};

/// The rules behind the planners dp, zero1, ...; in the order of the registry.
[[nodiscard]] const std::vector<ExpertRule>& expert_rules();

/// Meshes on which a rule makes sense for these devices.
[[nodiscard]] std::vector<cluster::DeviceMesh> expert_meshes(const ExpertRule& rule,
                                                             std::int64_t devices);

/// The rule's plan on one mesh, with nothing and, where that is over the limit, with every block
/// recomputed. What the rule leaves open (layouts of the values between its ops) is chosen for
/// least time by exact elimination.
[[nodiscard]] Result<std::vector<Candidate>> expert_plans(const PlanRequest& request,
                                                          const ExpertRule& rule,
                                                          const cluster::DeviceMesh& mesh);

}  // namespace shardplan::planners
