#pragma once

#include <vector>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/compiled.h"
#include "shardplan/solvers/dual.h"
#include "shardplan/solvers/incumbent.h"
#include "shardplan/solvers/pareto.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// One search for the least objective within the rows: bound by the dual, then windows of growing
/// size above it until the best assignment is proven good enough.
class Search {
 public:
  Search(const ConstrainedProblem& problem,
         const Compiled& compiled,
         const TableStore& store,
         const SolveOptions& options,
         const Budget& budget);

  /// Without a known assignment it stops at a window of moderate size, see `undecided`; it may then
  /// be told one, or that there is none, and be resumed.
  void run();
  void resume();
  /// How much windows may do in all, in about nanoseconds.
  void set_work(double most) { work_left_ = most; }
  [[nodiscard]] double work_left() const { return work_left_; }
  /// Ends the search as soon as the optimum is known to be above `value`, or not above it.
  void decide(double value) { decided_at_ = value; }
  [[nodiscard]] Solution solution() const;
  /// Whether nothing more can be learned from windows: no assignment is known, none ruled out.
  [[nodiscard]] bool undecided() const {
    return !incumbent_.best() && !infeasible_ && limit_ == SolveLimit::kNone && !closed();
  }
  void offer(std::vector<int> choice) { incumbent_.offer(incumbent_.evaluated(std::move(choice))); }
  void set_infeasible() { infeasible_ = true; }

 private:
  [[nodiscard]] bool closed() const;
  [[nodiscard]] bool is_proven(double objective) const;
  [[nodiscard]] double best_objective() const;
  [[nodiscard]] double most_objective() const;
  void close_gap();
  bool window(double cut, double tolerance);
  void find_violated(const Incumbent::Point& point);
  bool activate_violated();
  void prepare_bounds();

  const Compiled& compiled_;
  const TableStore& store_;
  const SolveOptions& options_;
  const Budget& budget_;
  Incumbent incumbent_;
  double lower_bound_;
  double dual_bound_;
  double decided_at_;
  double work_left_;
  double work_ = 0;
  bool gave_up_ = false;  ///< out of work
  bool patient_ = false;  ///< goes on without a known assignment
  bool infeasible_ = false;
  SolveLimit limit_ = SolveLimit::kNone;
  std::vector<double> multiplier_;
  std::vector<int> active_;              ///< rows that are dimensions
  std::vector<CompletionBound> bounds_;  ///< at multiplier_
  StepClasses relaxed_;                  ///< the same
  std::size_t max_points_ = 4'000;
  double most_objective_ = 0;
  double growth_ = 0;            ///< of the next window, relative to the bound
  double thinning_ = 1;          ///< of the tolerance
  std::size_t points_ = 0;       ///< of the last window
  double window_bound_ = 0;      ///< what the last window proved
  std::vector<int> violated_{};  ///< rows that its cheapest assignment violates
};

}  // namespace shardplan::solvers
