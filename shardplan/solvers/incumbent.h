#pragma once

#include <optional>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// The best assignment seen so far; while none is feasible, the one of least violation. Keeps a
/// reference to the problem.
class Incumbent {
 public:
  /// An assignment with its objective and row usages.
  struct Point {
    std::vector<int> choice{};
    double objective = 0;
    std::vector<double> usage{};
  };

  explicit Incumbent(const ConstrainedProblem& problem) : problem_(problem) {}

  [[nodiscard]] Point evaluated(std::vector<int> choice) const;
  [[nodiscard]] bool feasible(const Point& point) const;
  /// Largest excess over a limit, relative to it; 0 or less when feasible.
  [[nodiscard]] double violation(const Point& point) const;

  void offer(Point point);
  [[nodiscard]] const std::optional<Point>& best() const { return best_; }
  [[nodiscard]] const std::optional<Point>& closest() const { return closest_; }

 private:
  const ConstrainedProblem& problem_;
  std::optional<Point> best_;
  std::optional<Point> closest_;  ///< of those that are not feasible
};

}  // namespace shardplan::solvers
