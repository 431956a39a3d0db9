#pragma once

#include "shardplan/planners/planner.h"

namespace shardplan::planners {

/// One row a rule of expert_rules().
[[nodiscard]] std::vector<PlannerInfo> expert_planners();

}  // namespace shardplan::planners
