#pragma once

#include <vector>

#include "shardplan/solvers/elimination.h"
#include "shardplan/support/progress.h"

namespace shardplan::solvers {

/// A cost network with upper limits on sums of the same form. A null table counts as zeros.
struct ConstrainedProblem {
  struct Row {
    std::vector<CostTable> unary{};    ///< one a variable
    std::vector<CostTable> factors{};  ///< one a factor of the objective, of the same shape
    double constant = 0;
    double limit = 0;
  };
  CostNetwork objective{};
  std::vector<Row> rows{};
};

enum class ConstrainedStatus {
  kOptimal,     ///< proven within the asked gap
  kFeasible,    ///< feasible, the gap is larger
  kInfeasible,  ///< proven: no assignment meets the rows
  kUnknown,     ///< no feasible assignment was found, none was ruled out
};

struct ConstrainedOptions {
  double gap = 1e-4;  ///< relative gap at which to stop
  std::size_t max_cluster = std::size_t{1} << 26U;
  int max_evaluations = 400;  ///< of the Lagrangian
  /// Multipliers of an earlier, similar problem, one a row (0 = none): the search starts near them.
  std::vector<double> hint{};
  Control control{};
};

struct ConstrainedSolution {
  ConstrainedStatus status = ConstrainedStatus::kUnknown;
  double objective = 0;         ///< of `choice`
  double lower_bound = 0;       ///< no feasible assignment costs less
  std::vector<int> choice{};    ///< best feasible; when none is known, the one of least violation
  std::vector<double> usage{};  ///< of each row by `choice`
  std::vector<double> multiplier{};  ///< of each row at the best bound; 0 = the row does not bind
};

/// Sum of a row (or of the objective, with constant 0) for one assignment.
[[nodiscard]] double evaluate(const CostNetwork& network, const std::vector<int>& choice);
[[nodiscard]] double evaluate(const ConstrainedProblem& problem,
                              const ConstrainedProblem::Row& row,
                              const std::vector<int>& choice);

/// Lagrangian relaxation of the rows (Everett 1963; Geoffrion 1974): the relaxed problem is solved
/// exactly by elimination, which gives the bound; multipliers by coordinate ascent, each coordinate
/// exactly by intersecting the two supporting lines. Feasible assignments come from the relaxed
/// optima, from joining a cheap and a small one along the variables, and from improving moves of
/// one and of two adjacent variables. Exact when no row binds.
[[nodiscard]] ConstrainedSolution solve_constrained(const ConstrainedProblem& problem,
                                                    Elimination& elimination,
                                                    const ConstrainedOptions& options = {});

}  // namespace shardplan::solvers
