// The relaxed bound is concave in the multipliers; each evaluation gives a plane above it. `Boxed`
// maximises the lowest plane in a box, by a small linear program; the box grows after a step that
// kept its promise and shrinks after one that did not.
#include "shardplan/solvers/multipliers.h"

#include <ClpSimplex.hpp>
#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The planes so far, over multipliers in units in which 1 is a sizeable excess of a row.
class Boxed {
 public:
  explicit Boxed(std::size_t rows) : rows_(static_cast<int>(rows)) {
    lp_.setLogLevel(0);
    lp_.resize(0, rows_ + 1);
    lp_.setOptimizationDirection(-1);
    lp_.setObjectiveCoefficient(rows_, 1);
    lp_.setColumnBounds(rows_, -COIN_DBL_MAX, COIN_DBL_MAX);
  }

  /// bound <= value + slope · (multiplier − at)
  void add(double value, const std::vector<double>& slope, const std::vector<double>& at) {
    std::vector<int> columns;
    std::vector<double> factors;
    double constant = value;
    for (int r = 0; r < rows_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      columns.push_back(r);
      factors.push_back(-slope[i]);
      constant -= slope[i] * at[i];
    }
    columns.push_back(rows_);
    factors.push_back(1);
    lp_.addRow(rows_ + 1, columns.data(), factors.data(), -COIN_DBL_MAX, constant);
  }

  /// The best multipliers within `radius` of `center`; false when the program has no answer.
  bool maximise(const std::vector<double>& center,
                double radius,
                std::vector<double>& out,
                double& promised) {
    for (int r = 0; r < rows_; ++r) {
      const double middle = center[static_cast<std::size_t>(r)];
      lp_.setColumnBounds(r, std::max(0.0, middle - radius), middle + radius);
    }
    lp_.dual();
    if (lp_.status() != 0) {
      return false;
    }
    const double* const columns = lp_.primalColumnSolution();
    out.assign(columns, columns + rows_);
    for (double& multiplier : out) {
      multiplier = std::max(0.0, multiplier);
    }
    promised = columns[rows_];
    return true;
  }

 private:
  int rows_;
  ClpSimplex lp_;
};

class Search {
 public:
  Search(const ConstrainedProblem& problem, MiniBuckets& relaxation, std::vector<double> start)
      : problem_(problem),
        relaxation_(relaxation),
        unit_(problem.rows.size(), 1),
        planes_(problem.rows.size()),
        most_(largest_cost(problem.objective)) {
    start.resize(problem.rows.size(), 0);
    const MiniBuckets::Bound first = relaxation_.evaluate(start);
    for (std::size_t r = 0; r < unit_.size(); ++r) {
      const double limit = problem.rows[r].limit;
      const double excess = std::abs(first.usage[r] - limit);
      unit_[r] = std::max({excess, 1e-3 * std::abs(limit), 1e-9});
    }
    center_.resize(unit_.size());
    for (std::size_t r = 0; r < unit_.size(); ++r) {
      center_[r] = std::max(0.0, start[r]) * unit_[r];
    }
    best_ = {std::move(start), first.value};
    add_plane(first, center_);
    radius_ = 0.05 * std::max(std::abs(first.value), 1e-6 * most_);
    radius_ = radius_ > 0 && std::isfinite(radius_) ? radius_ : 1;
  }

  /// One evaluation; false at the end.
  bool step(double tolerance) {
    std::vector<double> next;
    double promised = 0;
    if (best_.bound > most_ || !planes_.maximise(center_, radius_, next, promised)) {
      return false;
    }
    const double gain = promised - best_.bound;
    if (gain <= tolerance * std::abs(best_.bound)) {
      return false;
    }
    bool at_border = false;
    std::vector<double> multiplier(next.size());
    for (std::size_t r = 0; r < next.size(); ++r) {
      multiplier[r] = next[r] / unit_[r];
      at_border = at_border || next[r] >= center_[r] + 0.999 * radius_;
    }
    const MiniBuckets::Bound bound = relaxation_.evaluate(multiplier);
    add_plane(bound, next);
    if (bound.value - best_.bound < 0.1 * gain) {
      radius_ *= bound.value < best_.bound ? 0.5 : 0.8;
    } else {
      radius_ *= at_border ? 3 : 1;
    }
    if (bound.value > best_.bound) {
      best_ = {std::move(multiplier), bound.value};
      center_ = std::move(next);
    }
    return true;
  }

  [[nodiscard]] Multipliers result() {
    best_.bound = without_rounding(best_.bound, problem_, best_.value);
    if (best_.bound > most_) {
      best_.bound = kInfinity;
    }
    return std::move(best_);
  }

 private:
  void add_plane(const MiniBuckets::Bound& bound, const std::vector<double>& at) {
    if (!std::isfinite(bound.value)) {
      return;
    }
    std::vector<double> slope(unit_.size());
    for (std::size_t r = 0; r < unit_.size(); ++r) {
      slope[r] = (bound.usage[r] - problem_.rows[r].limit) / unit_[r];
    }
    planes_.add(bound.value, slope, at);
  }

  const ConstrainedProblem& problem_;
  MiniBuckets& relaxation_;
  std::vector<double> unit_;
  std::vector<double> center_;
  Boxed planes_;
  double most_;
  double radius_ = 1;
  Multipliers best_;
};

}  // namespace

double largest_cost(const CostNetwork& network) {
  double total = 0;
  const auto add = [&](const CostTable& table) {
    double largest = -kInfinity;
    for (const double cost : *table) {
      largest = cost < kInfinity ? std::max(largest, cost) : largest;
    }
    total += largest;
  };
  std::for_each(network.unary.begin(), network.unary.end(), add);
  std::for_each(network.factors.begin(), network.factors.end(), [&](const auto& factor) {
    add(factor.cost);
  });
  // Above rounding; -infinity stays (nothing is feasible).
  return std::isfinite(total) ? total + 1e-9 * std::abs(total) + 1e-300 : total;
}

double without_rounding(double bound,
                        const ConstrainedProblem& problem,
                        const std::vector<double>& multiplier) {
  double size = std::abs(bound);
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    size += multiplier[r] * (std::abs(problem.rows[r].limit) + std::abs(problem.rows[r].constant));
  }
  return std::isfinite(bound) ? bound - 1e-13 * size : bound;
}

Multipliers best_multipliers(const ConstrainedProblem& problem,
                             MiniBuckets& relaxation,
                             std::vector<double> start,
                             int evaluations,
                             double tolerance,
                             const Budget& budget) {
  Search search(problem, relaxation, std::move(start));
  if (!problem.rows.empty()) {
    for (int i = 1; i < evaluations && !budget.exhausted() && search.step(tolerance); ++i) {
    }
  }
  return search.result();
}

}  // namespace shardplan::solvers
