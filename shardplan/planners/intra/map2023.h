#pragma once

#include "shardplan/planners/planner.h"

namespace shardplan::planners {

[[nodiscard]] PlannerInfo map_planner();

}  // namespace shardplan::planners
