// Read `Search::run`, then `close_gap`.
//
// The cut of a window is a guess of the optimum's Lagrangian value: everything that cannot stay
// below it is dropped, so the window proves min(cut, best found) less what was given up to keep the
// point lists short. Cuts grow from just above the bound, because the work grows faster than the
// window; a cut never needs to be above what proves the best assignment at hand.
#include "shardplan/solvers/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFirstWindow = 2e-5;  // relative to the bound
/// A gap is relative to the bound; the same relative to the best.
double part_of_best(double gap) {
  return gap / (1 + gap);
}

constexpr double kWorkOfSecond = 1e9;
constexpr std::size_t kMostPoints = 64'000;  // of one entry; a limit of the last resort

}  // namespace

Search::Search(const ConstrainedProblem& problem,
               const Compiled& compiled,
               const TableStore& store,
               const SolveOptions& options,
               const Budget& budget)
    : compiled_(compiled),
      store_(store),
      options_(options),
      budget_(budget),
      incumbent_(problem),
      lower_bound_(-kInfinity),
      dual_bound_(-kInfinity),
      decided_at_(std::numeric_limits<double>::quiet_NaN()),
      work_left_(options.time_limit > 0 ? kInfinity : kWorkOfSecond * options.effort),
      multiplier_(compiled.rows, 0.0) {}

double Search::best_objective() const {
  const std::optional<Incumbent::Point>& best = incumbent_.best();
  if (!best) {
    return kInfinity;
  }
  return best->objective;
}

bool Search::closed() const {
  const double best = best_objective();
  if (lower_bound_ > decided_at_ || best <= decided_at_) {
    return true;
  }
  return is_proven(std::min(best, options_.cutoff));
}

/// Whether no assignment is better than an objective by more than the gap.
bool Search::is_proven(double objective) const {
  return objective < kInfinity &&
         objective - lower_bound_ <= part_of_best(options_.gap) * std::abs(objective);
}

/// No assignment costs more, forbidden ones aside.
double Search::most_objective() const {
  double most = compiled_.constant;
  for (const Compiled::Factor& factor : compiled_.factors) {
    double largest = -kInfinity;
    for (const double value : store_.values(factor.cost)) {
      largest = value < kInfinity ? std::max(largest, value) : largest;
    }
    most += largest;
  }
  return most;
}

void Search::run() {
  constexpr int kEvaluations = 120;
  for (std::size_t r = 0; r < compiled_.rows; ++r) {
    const bool has_usage = std::any_of(compiled_.factors.begin(),
                                       compiled_.factors.end(),
                                       [&, f = std::size_t{0}](const auto&) mutable {
                                         return compiled_.part(f++, r) != TableStore::kZeros;
                                       });
    infeasible_ = infeasible_ || (!has_usage && compiled_.row_constant[r] > compiled_.limit[r]);
  }
  const double most = most_objective();
  most_objective_ = most + 1e-9 * std::abs(most);
  Dual dual(compiled_, store_, [&](const Dual::Point& point) {
    offer(point.choice);
    return !budget_.exhausted();
  });
  dual.maximise(options_.hint, kEvaluations, most_objective_);
  lower_bound_ = dual.bound();
  dual_bound_ = dual.bound();
  multiplier_ = dual.multiplier();
  limit_ = budget_.limit();
  if (dual.bound() == kInfinity || dual.bound() > most_objective_) {
    infeasible_ = true;  // the bound is above every assignment
  }
  if (infeasible_ || limit_ != SolveLimit::kNone) {
    return;
  }
  const double best = best_objective();
  if (best < kInfinity && lower_bound_ > best) {
    lower_bound_ = best;  // sums in another order
  }
  if (closed()) {
    return;
  }
  growth_ = kFirstWindow;
  if (std::isfinite(decided_at_)) {
    growth_ = std::max(growth_, 0.1 * (decided_at_ - dual_bound_) / std::abs(dual_bound_));
  }
  for (std::size_t r = 0; r < compiled_.rows; ++r) {
    if (multiplier_[r] > 0) {
      active_.push_back(static_cast<int>(r));
    }
  }
  if (active_.empty() && incumbent_.closest()) {
    find_violated(*incumbent_.closest());
    activate_violated();
  }
  prepare_bounds();
  close_gap();
}

void Search::find_violated(const Incumbent::Point& point) {
  violated_.clear();
  for (std::size_t r = 0; r < compiled_.rows; ++r) {
    if (point.usage[r] > compiled_.limit[r]) {
      violated_.push_back(static_cast<int>(r));
    }
  }
}

void Search::prepare_bounds() {
  // Beside the multipliers themselves, which all bounds share, objective weights near 1 and none.
  bounds_.clear();
  for (const double weight : {1.0, 0.0, 0.9, 1.1}) {
    Relaxation relaxation(compiled_, store_);
    relaxation.evaluate(multiplier_, weight);
    bounds_.push_back({weight, relaxation.outside()});
    if (weight == 1.0) {
      relaxed_ = relaxation.classes();
    }
  }
}

void Search::resume() {
  patient_ = true;
  if (!infeasible_ && !gave_up_ && limit_ == SolveLimit::kNone && !closed()) {
    close_gap();
  }
}

void Search::close_gap() {
  constexpr double kModerate = 0.02;
  const double unit = std::max(std::abs(dual_bound_), 1e-12 * std::abs(most_objective_));
  while (!closed()) {
    const bool known = incumbent_.best().has_value();
    if (!known && !patient_ && compiled_.rows > 1 && growth_ > kModerate) {
      return;
    }
    const double wanted = std::min(best_objective(), options_.cutoff);
    const double needed = wanted < kInfinity
                              ? wanted - part_of_best(options_.gap) * std::abs(wanted) * (1 - 1e-6)
                              : kInfinity;
    double cut = std::min(dual_bound_ + growth_ * unit, needed);
    if (cut > decided_at_) {
      cut = decided_at_ + 1e-9 * unit;  // decides it
    }
    const double tolerance =
        thinning_ * std::min(0.9 * options_.gap * unit, 0.6 * (cut - dual_bound_));
    const std::size_t before = points_;
    if (!window(cut, std::max(0.0, tolerance))) {
      return;
    }
    if (!incumbent_.best() && lower_bound_ > most_objective_) {
      infeasible_ = true;
      return;
    }
    if (window_bound_ >= cut - 1e-12 * std::abs(cut)) {
      // Where a window holds hardly more than the last one, the next may be far larger.
      growth_ *= static_cast<double>(points_) < 1.3 * static_cast<double>(before) ? 8 : 2;
    } else if (!activate_violated() && !closed()) {
      if (max_points_ >= kMostPoints) {
        return;
      }
      max_points_ *= 4;
      thinning_ *= 0.5;
    }
  }
}

/// False: the search is over, by its budget.
bool Search::window(double cut, double tolerance) {
  constexpr std::size_t kLookedAt = 50;
  const RowDimensions dimensions = make_row_dimensions(compiled_, relaxed_, active_, multiplier_);
  ParetoElimination pareto(compiled_, store_, relaxed_, dimensions);
  ParetoRequest request;
  request.bounds = &bounds_;
  request.multiplier = multiplier_;
  request.cut = cut;
  request.tolerance = tolerance;
  request.max_points = max_points_;
  request.max_bytes = budget_.bytes();
  request.stop = [&] { return budget_.exhausted(); };
  request.max_work = work_left_;
  const bool complete = pareto.run(request);
  work_left_ -= pareto.work();
  work_ += pareto.work();
  if (!complete) {
    gave_up_ = true;
    limit_ = budget_.limit() == SolveLimit::kNone && work_left_ > 0 ? SolveLimit::kMemory
                                                                    : budget_.limit();
    return false;
  }
  violated_.clear();
  points_ = pareto.points();
  window_bound_ = pareto.lower_bound();
  lower_bound_ = std::max(lower_bound_, window_bound_);
  for (std::size_t i = 0; i < std::min(kLookedAt, pareto.found()); ++i) {
    Incumbent::Point point = incumbent_.evaluated(pareto.choice(i));
    const bool feasible = incumbent_.feasible(point);
    if (i == 0) {
      find_violated(point);
    }
    incumbent_.offer(std::move(point));
    if (feasible) {
      break;
    }
  }
  return true;
}

bool Search::activate_violated() {
  const std::size_t before = active_.size();
  for (const int row : violated_) {
    if (std::find(active_.begin(), active_.end(), row) == active_.end()) {
      active_.push_back(row);
    }
  }
  std::sort(active_.begin(), active_.end());
  return active_.size() > before;
}

Solution Search::solution() const {
  Solution solution;
  solution.limit = limit_;
  solution.effort = work_ / kWorkOfSecond;
  solution.lower_bound = lower_bound_;
  solution.multiplier = multiplier_;
  const std::optional<Incumbent::Point>& point =
      incumbent_.best() ? incumbent_.best() : incumbent_.closest();
  if (point) {
    solution.objective = point->objective;
    solution.choice = point->choice;
    solution.usage = point->usage;
  }
  if (infeasible_) {
    solution.status = SolveStatus::kInfeasible;
    solution.lower_bound = kInfinity;
  } else if (!incumbent_.best()) {
    solution.status = SolveStatus::kUnknown;
  } else {
    solution.lower_bound = std::min(lower_bound_, solution.objective);
    solution.status =
        is_proven(solution.objective) ? SolveStatus::kOptimal : SolveStatus::kFeasible;
  }
  return solution;
}

}  // namespace shardplan::solvers
