// The Lagrangian dual. Read `search_row` (one multiplier: between one that violates the row and one
// that meets it, the two supporting lines meet at the next trial) and `bundle` (many: Lemaréchal's
// proximal bundle method; the small quadratic program is solved over the shares of the cuts by
// moving share between two cuts at a time).
#include "shardplan/solvers/dual.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kConverged = 1e-8;  // relative increase that is not worth an evaluation

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

Dual::Dual(const Compiled& compiled, const TableStore& store, Seen seen)
    : compiled_(compiled),
      store_(store),
      seen_(std::move(seen)),
      relaxation_(compiled, store),
      scale_(compiled.rows, 1.0),
      best_(compiled.rows, 0.0),
      multiplier_(compiled.rows, 0.0),
      bound_(-kInfinity) {}

double Dual::evaluate(const std::vector<double>& scaled) {
  std::vector<double> multiplier(scaled.size());
  double value = 0;
  for (std::size_t r = 0; r < scaled.size(); ++r) {
    multiplier[r] = scaled[r] / scale_[r];
    value -= multiplier[r] * compiled_.limit[r];
  }
  value += relaxation_.evaluate(multiplier, weight_);
  if (value == kInfinity) {
    bound_ = kInfinity;
    stopped_ = true;
    return value;
  }
  Point point;
  point.choice = relaxation_.choice();
  point.usage = usage_of(compiled_, store_, point.choice);
  Cut cut;
  double linear = 0;
  for (std::size_t r = 0; r < scaled.size(); ++r) {
    cut.gradient.push_back((point.usage[r] - compiled_.limit[r]) / scale_[r]);
    linear += scaled[r] * cut.gradient[r];
  }
  cut.cost = value - linear;  // of the objective, whatever its weight
  point.cost = cut.cost;
  if (!seen_(point)) {
    stopped_ = true;
  }
  cuts_.push_back(std::move(cut));
  share_.push_back(0);
  take(scaled, value);
  return value;
}

void Dual::take(const std::vector<double>& scaled, double value) {
  if (value > bound_) {
    bound_ = value;
    best_ = scaled;
    for (std::size_t r = 0; r < scaled.size(); ++r) {
      multiplier_[r] = scaled[r] / scale_[r];
    }
  }
}

void Dual::maximise(const std::vector<double>& hint, int evaluations, double enough) {
  const std::vector<double> zeros(compiled_.rows, 0.0);
  const double free = evaluate(zeros);
  if (stopped_ || compiled_.rows == 0 || free == kInfinity) {
    return;
  }
  std::size_t worst = 0;
  for (std::size_t r = 0; r < scale_.size(); ++r) {
    const double excess = cuts_[0].gradient[r];  // the scale is still 1
    scale_[r] = std::max({std::abs(compiled_.limit[r]), std::abs(excess), 1e-300});
    cuts_[0].gradient[r] /= scale_[r];
    if (cuts_[0].gradient[r] > cuts_[0].gradient[worst]) {
      worst = r;
    }
  }
  if (cuts_[0].gradient[worst] <= 0) {
    return;  // no row binds
  }
  double first = 0.1 * std::max(std::abs(free), 1e-9) / cuts_[0].gradient[worst];
  std::vector<double> start(compiled_.rows, 0.0);
  const bool has_hint = hint.size() == compiled_.rows &&
                        std::any_of(hint.begin(), hint.end(), [](double m) { return m > 0; });
  if (has_hint) {
    for (std::size_t r = 0; r < hint.size(); ++r) {
      start[r] = std::max(0.0, hint[r]) * scale_[r];
    }
    first = start[worst] > 0 ? start[worst] : first;
  }
  if (compiled_.rows == 1) {
    search_row(worst, first, evaluations, enough);
    return;
  }
  if (has_hint) {
    evaluate(start);
  } else {
    search_row(worst, first, evaluations / 4, enough);
  }
  bundle(evaluations, enough, false);
}

void Dual::search_row(std::size_t row, double first, int evaluations, double enough) {
  std::vector<double> at(best_.size(), 0.0);
  double low = 0;
  double high = first;
  Cut below = cuts_.front();
  Cut above;
  const auto trial = [&](double multiplier) {
    at[row] = multiplier;
    evaluate(at);
    return cuts_.back();
  };
  for (int e = 0; e < evaluations && !stopped_; ++e) {
    above = trial(high);
    if (stopped_ || above.gradient[row] <= 0 || bound_ > enough) {
      break;
    }
    low = high;
    below = above;
    high *= 8;
  }
  for (int e = 0; e < evaluations && !stopped_ && above.gradient[row] <= 0; ++e) {
    const double rise = below.gradient[row] - above.gradient[row];
    if (rise <= 0) {
      return;
    }
    const double meet = std::clamp((above.cost - below.cost) / rise, low, high);
    const double height = below.cost + below.gradient[row] * meet;
    const double before = bound_;
    const Cut middle = trial(meet);
    const double value = middle.cost + middle.gradient[row] * meet;
    if (stopped_ || value >= height - 1e-13 * std::abs(height) || meet == low || meet == high ||
        (bound_ <= before && height - bound_ <= 1e-12 * std::abs(bound_))) {
      return;
    }
    if (middle.gradient[row] > 0) {
      low = meet;
      below = middle;
    } else {
      high = meet;
      above = middle;
    }
  }
}

void Dual::project(std::vector<double>& scaled, bool simplex) const {
  if (!simplex) {
    for (double& m : scaled) {
      m = std::max(0.0, m);
    }
    return;
  }
  // Onto the simplex: all are lowered by what makes the positive rest sum to 1.
  std::vector<double> sorted = scaled;
  std::sort(sorted.begin(), sorted.end(), [](double a, double b) { return a > b; });
  double sum = 0;
  double lower = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    sum += sorted[i];
    const double candidate = (sum - 1) / static_cast<double>(i + 1);
    if (sorted[i] > candidate) {
      lower = candidate;
    }
  }
  for (double& m : scaled) {
    m = std::max(0.0, m - lower);
  }
}

double Dual::propose(double step, bool simplex, std::vector<double>& proposed) {
  constexpr int kMoves = 2000;
  const std::size_t rows = best_.size();
  if (std::accumulate(share_.begin(), share_.end(), 0.0) < 0.5) {
    share_.back() = 1;
  }
  std::vector<double> mean(rows, 0.0);  // gradient of the mixture
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    for (std::size_t r = 0; r < rows && share_[i] > 0; ++r) {
      mean[r] += share_[i] * cuts_[i].gradient[r];
    }
  }
  double least = 0;
  for (int move = 0; move < kMoves; ++move) {
    for (std::size_t r = 0; r < rows; ++r) {
      proposed[r] = best_[r] + step * mean[r];
    }
    project(proposed, simplex);
    std::size_t to = 0;
    std::size_t from = cuts_.size();
    double low = kInfinity;
    double high = -kInfinity;
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      const double value = cuts_[i].cost + dot(cuts_[i].gradient, proposed);
      if (value < low) {
        low = value;
        to = i;
      }
      if (share_[i] > 0 && value > high) {
        high = value;
        from = i;
      }
    }
    least = low;
    if (from == cuts_.size() || high - low <= 1e-10 * std::max(std::abs(low), 1e-300)) {
      break;
    }
    double curvature = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const double change = cuts_[to].gradient[r] - cuts_[from].gradient[r];
      curvature += proposed[r] > 0 ? change * change : 0;
    }
    const double moved =
        curvature > 0 ? std::min(share_[from], (high - low) / (step * curvature)) : share_[from];
    share_[from] -= moved;
    share_[to] += moved;
    for (std::size_t r = 0; r < rows; ++r) {
      mean[r] += moved * (cuts_[to].gradient[r] - cuts_[from].gradient[r]);
    }
  }
  return least;
}

void Dual::bundle(int evaluations, double enough, bool simplex) {
  double norm = 0;
  for (const double g : cuts_.back().gradient) {
    norm += g * g;
  }
  const double size = std::sqrt(dot(best_, best_));
  const double unit = std::max(size, 1e-12 * std::abs(bound_)) / std::max(std::sqrt(norm), 1e-300);
  const double far = 1e5 * unit;
  double step = 0.3 * unit;
  std::vector<double> proposed(best_.size());
  int done = 0;
  while (done < evaluations && !stopped_ && bound_ < enough) {
    const double promised = propose(step, simplex, proposed) - bound_;
    if (promised <= kConverged * std::abs(bound_)) {
      if (step >= far) {
        return;
      }
      step *= 10;  // converged only if a far larger step promises no more
      continue;
    }
    const double before = bound_;
    evaluate(proposed);
    ++done;
    const double gained = bound_ - before;
    if (gained > 0.5 * promised) {
      step *= 3;
    } else if (gained < 0.05 * promised) {
      step *= 0.6;
    }
  }
}

void Dual::maximise_excess(int evaluations) {
  // Multipliers of one sum need one unit: rows keep theirs.
  const std::vector<double> start(compiled_.rows, 1.0 / static_cast<double>(compiled_.rows));
  cuts_.clear();
  share_.clear();
  bound_ = -kInfinity;
  weight_ = 0;
  evaluate(start);
  if (!stopped_ && compiled_.rows > 1) {
    bundle(evaluations, kInfinity, true);
  }
}

}  // namespace shardplan::solvers
