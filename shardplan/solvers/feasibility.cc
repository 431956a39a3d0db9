#include "shardplan/solvers/feasibility.h"

#include <algorithm>
#include <cmath>

namespace shardplan::solvers {

bool meets_limit(double usage, double limit) {
  return usage <= limit + 1e-9 * std::abs(limit);
}

void measure(const ConstrainedProblem& problem, Solution& solution) {
  solution.objective = evaluate(problem.objective, solution.choice);
  solution.usage.clear();
  for (const ConstrainedProblem::Row& row : problem.rows) {
    solution.usage.push_back(evaluate(problem, row, solution.choice));
  }
}

bool is_feasible(const ConstrainedProblem& problem, const Solution& solution) {
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    if (!meets_limit(solution.usage[r], problem.rows[r].limit)) {
      return false;
    }
  }
  return std::isfinite(solution.objective);
}

void conclude(Solution& solution, double gap) {
  if (solution.status != SolveStatus::kFeasible && solution.status != SolveStatus::kOptimal) {
    return;
  }
  solution.lower_bound = std::min(solution.lower_bound, solution.objective);
  const bool close =
      std::isfinite(solution.lower_bound) &&
      solution.objective - solution.lower_bound <= gap * std::abs(solution.lower_bound);
  solution.status = close ? SolveStatus::kOptimal : SolveStatus::kFeasible;
}

}  // namespace shardplan::solvers
