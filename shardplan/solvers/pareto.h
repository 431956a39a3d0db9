#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "shardplan/solvers/relaxation.h"
#include "shardplan/solvers/row_dimensions.h"

namespace shardplan::solvers {

/// Bound of a partial assignment: weight · cost + Σ multiplier · usage is at least its own value
/// plus the least outside it.
struct CompletionBound {
  double weight = 1;                           ///< 0: a bound on usage alone
  std::vector<std::vector<double>> outside{};  ///< by relaxed class
};

struct ParetoRequest {
  /// All at the same multipliers; the first with weight 1.
  const std::vector<CompletionBound>* bounds = nullptr;
  std::vector<double> multiplier{};
  double cut = 0;                ///< assignments that cannot stay below it are dropped
  double tolerance = 0;          ///< how much of cost may be given up in all for fewer points
  std::size_t max_points = 0;    ///< of one entry of one step; more are thinned, at a loss
  std::size_t max_bytes = 0;     ///< of points
  double max_work = 0;           ///< about nanoseconds
  std::function<bool()> stop{};  ///< asked now and then
};

/// Elimination that carries, for every entry of a step's result, the points (cost, usages) of the
/// partial assignments that may still lead below the cut within the rows. A point may stand for
/// others of at least its usages and not much less cost: that loss is carried along, so that the
/// bound of the end counts only losses that met on one way.
class ParetoElimination {
 public:
  /// The classes of `relaxation` must be those of its evaluation at the request's multipliers.
  ParetoElimination(const Compiled& compiled,
                    const TableStore& store,
                    const StepClasses& relaxed,
                    const RowDimensions& dimensions);

  /// False: stopped, or out of memory or work. Else the results below are set.
  bool run(const ParetoRequest& request);

  /// No assignment within the active rows costs less.
  [[nodiscard]] double lower_bound() const { return lower_bound_; }
  /// Number of assignments at hand, cheapest first, all within the active rows.
  [[nodiscard]] std::size_t found() const { return found_.size(); }
  [[nodiscard]] std::vector<int> choice(std::size_t index) const;
  [[nodiscard]] std::size_t points() const { return points_; }
  [[nodiscard]] double work() const { return work_; }

 private:
  /// Points of a class, entry by entry.
  struct Lists {
    std::size_t dimensions = 0;
    std::vector<std::size_t> begin;  ///< by entry, and the end
    /// Of each point, `dimensions` + 3 numbers: the reduced cost (cost + Σ multiplier · usage) less
    /// the loss, the cost, the loss, the usages. Ascending in the first within an entry.
    std::vector<double> values;
    std::vector<int> back;  ///< of each point: choice, and the point of each child
    std::size_t children = 0;

    [[nodiscard]] std::size_t stride() const { return dimensions + 3; }
    [[nodiscard]] const double* point(std::size_t p) const { return values.data() + p * stride(); }
  };
  class StepRun;

  const Compiled& compiled_;
  const TableStore& store_;
  const StepClasses& relaxed_;
  const RowDimensions& dimensions_;
  std::vector<Lists> lists_;        ///< by class
  std::vector<double> share_;       ///< of the tolerance, by class
  std::vector<std::size_t> found_;  ///< points of the last class
  double lower_bound_ = 0;
  std::size_t points_ = 0;
  double work_ = 0;
};

}  // namespace shardplan::solvers
