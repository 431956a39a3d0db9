#pragma once

#include <memory>

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Proven optimum of a cost network under rows: variable elimination for the Lagrangian bound, then
/// elimination over Pareto points (cost, usage of the rows) inside a window above that bound.
///
/// Equal sub-problems are solved once, so that a network of equal blocks costs little more than its
/// distinct parts; what was learned of a problem is kept between the calls of one object, which
/// makes sweeps over limits cheap. Not for concurrent use. Time and memory grow with the largest
/// cluster of the elimination; beyond SolveOptions::memory_limit it gives a bound by
/// mini-buckets and an assignment by local search, with SolveLimit::kMemory.
/// Without a time limit it gives up on the last of a gap after about five seconds of work, counted
/// in steps, so that the answer does not depend on the machine.
class ExactSolver {
 public:
  ExactSolver();
  ~ExactSolver();
  ExactSolver(ExactSolver&&) noexcept;
  ExactSolver& operator=(ExactSolver&&) noexcept;

  /// Least objective within the rows; see Solution for what is reported when there is none.
  [[nodiscard]] Solution solve(const ConstrainedProblem& problem, const SolveOptions& options = {});

  /// Least z for which some assignment has usage_r <= limit_r + z in every row: with all limits 0,
  /// the least limit that can be met at all. Of the objective only infinite entries count.
  /// Solution::objective is z of `choice`, lower_bound the proven least; the gap is relative to the
  /// largest |limit_r + z| or |constant_r|. A problem without rows is an answer of minus infinity.
  [[nodiscard]] Solution solve_min_max(const ConstrainedProblem& problem,
                                       const SolveOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardplan::solvers
