#pragma once

#include <functional>
#include <vector>

#include "shardplan/solvers/relaxation.h"

namespace shardplan::solvers {

/// The Lagrangian dual of a compiled problem: the bound that multipliers of the rows prove, and the
/// search for the best ones.
class Dual {
 public:
  /// An assignment that minimises the relaxed problem somewhere.
  struct Point {
    std::vector<int> choice{};
    double cost = 0;
    std::vector<double> usage{};
  };
  /// `seen` is called with every minimiser; returning false stops the search.
  using Seen = std::function<bool(const Point&)>;

  Dual(const Compiled& compiled, const TableStore& store, Seen seen);

  /// Searches from the hint (empty: from zeros), at most `evaluations` times. A single multiplier
  /// is found by intersecting supporting lines, several by a proximal bundle method. Stops above
  /// `enough`.
  void maximise(const std::vector<double>& hint, int evaluations, double enough);

  /// What the multipliers prove; infinite when everything is forbidden.
  [[nodiscard]] double bound() const { return bound_; }
  [[nodiscard]] const std::vector<double>& multiplier() const { return multiplier_; }
  [[nodiscard]] bool stopped() const { return stopped_; }

  /// As `maximise` for the largest excess of a row: multipliers sum to 1, the objective only
  /// forbids. `bound` is then what the largest (usage - limit) cannot be below.
  void maximise_excess(int evaluations);

 private:
  /// A minimiser as a cut: the relaxed value at multipliers m is at most cost + gradient · m.
  struct Cut {
    double cost = 0;
    std::vector<double> gradient{};  ///< usage - limit, in scaled rows
  };
  double evaluate(const std::vector<double>& scaled);
  void search_row(std::size_t row, double first, int evaluations, double enough);
  void bundle(int evaluations, double enough, bool simplex);
  /// Multipliers that maximise the cuts' minimum less the squared distance to the best over
  /// 2 · step; returns that minimum.
  double propose(double step, bool simplex, std::vector<double>& proposed);
  void project(std::vector<double>& scaled, bool simplex) const;
  void take(const std::vector<double>& scaled, double value);

  const Compiled& compiled_;
  const TableStore& store_;
  Seen seen_;
  Relaxation relaxation_;
  double weight_ = 1;               ///< of the objective
  std::vector<double> scale_;       ///< of each row
  std::vector<double> best_;        ///< scaled multipliers
  std::vector<double> multiplier_;  ///< the same in the rows' own units
  double bound_ = 0;
  bool stopped_ = false;
  std::vector<Cut> cuts_;
  std::vector<double> share_;  ///< of each cut, from the last proposal
};

}  // namespace shardplan::solvers
