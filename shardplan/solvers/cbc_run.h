#pragma once

#include <vector>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/solver.h"

class OsiClpSolverInterface;

namespace shardplan::solvers {

/// What CBC says of a program; to be taken with a grain of salt, as it works with tolerances.
struct CbcRun {
  bool finished = false;  ///< not stopped by the budget
  bool infeasible = false;
  std::vector<double> values{};  ///< of the columns in the best solution; empty: none was found
  double bound = 0;              ///< no solution costs less; may be -infinity
};

/// Minimises with branch and cut until the relative gap is `gap` or the budget is exhausted. A
/// claim of infeasibility is checked by a second run without preprocessing, which has been wrong.
[[nodiscard]] CbcRun run_cbc(OsiClpSolverInterface& solver,
                             const SolveOptions& options,
                             const Budget& budget,
                             double gap);

}  // namespace shardplan::solvers
