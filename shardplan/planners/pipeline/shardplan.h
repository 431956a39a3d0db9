#pragma once

#include "shardplan/planners/planner.h"

namespace shardplan::planners {

/// Our own: no pipeline or stages × schedule, with `map` inside the stages.
[[nodiscard]] PlannerInfo shardplan_planner();

}  // namespace shardplan::planners
