#pragma once

#include <memory>
#include <vector>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/mini_buckets.h"
#include "shardplan/solvers/multipliers.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// What the searches that are not exact start from: good multipliers, a sound bound, and cost-to-go
/// tables. Where the relaxation has to split the problem, costs are shifted first and the clusters
/// made as large as is cheap. Keeps a reference to the problem.
class RelaxedStart {
 public:
  RelaxedStart(const ConstrainedProblem& problem,
               const SolveOptions& options,
               const Budget& budget);

  /// Bound and multipliers, and kInfeasible where the bound proves it; no choice.
  [[nodiscard]] Solution start() const;
  /// The relaxation, evaluated at the multipliers.
  [[nodiscard]] const MiniBuckets& relaxation() const { return *relaxation_; }
  /// Bound of the relaxation as evaluated, where the increments start.
  [[nodiscard]] double root() const { return root_; }
  /// Assignments to start from: one variable after the other its choice of least increment, at the
  /// multipliers, then at larger ones until the rows are met, then between the two. At least one.
  [[nodiscard]] const std::vector<std::vector<int>>& starts() const { return starts_; }

 private:
  [[nodiscard]] bool join(std::size_t most_entries, const Budget& budget);
  void shift(std::size_t most_entries, const Budget& budget);
  void enlarge(std::size_t most_entries, const Budget& budget);

  void find_starts(const Budget& budget);
  /// Adds the start at some multipliers; the rows that it violates.
  std::vector<std::size_t> add_start(const std::vector<double>& multiplier);
  [[nodiscard]] std::vector<int> greedy() const;

  const ConstrainedProblem& problem_;
  std::unique_ptr<const ConstrainedProblem> shifted_;  ///< null: nothing was split
  std::unique_ptr<MiniBuckets> relaxation_;            ///< of `shifted_`, if there is one
  Multipliers multipliers_;
  double root_ = 0;
  std::vector<std::vector<int>> starts_;
};

}  // namespace shardplan::solvers
