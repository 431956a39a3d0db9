#include "shardplan/solvers/incumbent.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether a usage meets a limit, up to rounding of sums.
bool meets(double usage, double limit) {
  return usage <= limit + 1e-12 * std::abs(limit);
}

}  // namespace

Incumbent::Point Incumbent::evaluated(std::vector<int> choice) const {
  Point point;
  point.objective = evaluate(problem_.objective, choice);
  for (const ConstrainedProblem::Row& row : problem_.rows) {
    point.usage.push_back(evaluate(problem_, row, choice));
  }
  point.choice = std::move(choice);
  return point;
}

bool Incumbent::feasible(const Point& point) const {
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    if (!meets(point.usage[r], problem_.rows[r].limit)) {
      return false;
    }
  }
  return point.objective < kInfinity;
}

double Incumbent::violation(const Point& point) const {
  if (!(point.objective < kInfinity)) {
    return kInfinity;
  }
  double worst = -kInfinity;
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    const double limit = problem_.rows[r].limit;
    worst = std::max(worst, (point.usage[r] - limit) / std::max(std::abs(limit), 1e-300));
  }
  return worst;
}

void Incumbent::offer(Point point) {
  if (feasible(point)) {
    if (!best_ || point.objective < best_->objective) {
      best_ = std::move(point);
    }
  } else if (!closest_ || violation(point) < violation(*closest_)) {
    closest_ = std::move(point);
  }
}

}  // namespace shardplan::solvers
