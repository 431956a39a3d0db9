#pragma once

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Whether a row's sum meets its limit, up to the rounding of sums.
[[nodiscard]] bool meets_limit(double usage, double limit);

/// Sets a solution's objective and usage from its choice.
void measure(const ConstrainedProblem& problem, Solution& solution);

/// Whether a measured solution has a finite objective and meets every row.
[[nodiscard]] bool is_feasible(const ConstrainedProblem& problem, const Solution& solution);

/// The status of a solution whose bound and choice stand: one that is feasible is optimal where the
/// bound is within `gap` of it. Never leaves the bound above the objective.
void conclude(Solution& solution, double gap);

}  // namespace shardplan::solvers
