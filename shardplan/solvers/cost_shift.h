#pragma once

#include <vector>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// The same problem with costs moved between factors and variables, so that every assignment costs
/// what it did and the sum of the tables' minima under the multipliers is as large as message
/// passing makes it (Globerson, Jaakkola 2007; Ihler et al. 2012). Relaxations that split the
/// problem, such as MiniBuckets, lose less on it; its tables are no longer shared. Rows keep their
/// tables. Cost: `sweeps` times all table entries times their arity.
[[nodiscard]] ConstrainedProblem shift_costs(const ConstrainedProblem& problem,
                                             const std::vector<double>& multiplier,
                                             int sweeps,
                                             const Budget& budget);

}  // namespace shardplan::solvers
