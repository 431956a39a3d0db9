#pragma once

#include <vector>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/mini_buckets.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Multipliers of the rows and the bound that they give.
struct Multipliers {
  std::vector<double> value{};
  double bound = 0;  ///< no feasible assignment costs less; infinity: there is none
};

/// Raises the relaxed bound over the multipliers by cutting planes in a box around the best point
/// (Marsten, Hogan, Blankenship 1975), until it is within `tolerance` of its maximum, at most
/// `evaluations` times. Starts at `start` (empty: at 0).
[[nodiscard]] Multipliers best_multipliers(const ConstrainedProblem& problem,
                                           MiniBuckets& relaxation,
                                           std::vector<double> start,
                                           int evaluations,
                                           double tolerance,
                                           const Budget& budget);

/// A bound as computed, lowered by what rounding may have added.
[[nodiscard]] double without_rounding(double bound,
                                      const ConstrainedProblem& problem,
                                      const std::vector<double>& multiplier);

/// The sum of the largest finite costs: no feasible assignment costs more.
[[nodiscard]] double largest_cost(const CostNetwork& network);

}  // namespace shardplan::solvers
