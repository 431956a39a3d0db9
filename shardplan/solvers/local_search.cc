// Read `LocalSearch::run` (kick, descend, keep or go back), then `solve_by_local_search`, which
// adds the bound.
#include "shardplan/solvers/local_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/solvers/feasibility.h"
#include "shardplan/solvers/relaxed_start.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

LocalSearch::LocalSearch(const ConstrainedProblem& problem, std::uint64_t seed)
    : problem_(problem), random_(seed), now_(problem) {
  for (std::size_t v = 0; v < problem.objective.unary.size(); ++v) {
    if (problem.objective.unary[v]->size() > 1) {
      movable_.push_back(static_cast<int>(v));
    }
  }
}

double LocalSearch::priced(double objective, const std::vector<double>& usage) const {
  double total = objective;
  for (std::size_t r = 0; r < usage.size(); ++r) {
    total += price_[r] * std::max(0.0, usage[r] - problem_.rows[r].limit);
  }
  return total;
}

double LocalSearch::priced_change(const Assignment::Changes& changes, std::size_t choice) const {
  double total = changes.objective[choice];
  for (std::size_t r = 0; r < price_.size(); ++r) {
    const double before = now_.usage()[r] - problem_.rows[r].limit;
    const double after = before + changes.usage[r][choice];
    total += price_[r] * (std::max(0.0, after) - std::max(0.0, before));
  }
  return total;
}

bool LocalSearch::feasible() const {
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    if (!meets_limit(now_.usage()[r], problem_.rows[r].limit)) {
      return false;
    }
  }
  return now_.objective() < now_.forbidden() / 2;
}

void LocalSearch::move(int variable, int to) {
  trail_.emplace_back(variable, now_.choice()[static_cast<std::size_t>(variable)]);
  now_.change(variable, to);
}

/// The best choice of one variable; false when it has it.
bool LocalSearch::improve_single(int variable) {
  now_.changes(variable, changes_);
  std::size_t best = 0;
  double least = kInfinity;
  for (std::size_t c = 0; c < changes_.objective.size(); ++c) {
    const double change = priced_change(changes_, c);
    if (change < least) {
      least = change;
      best = c;
    }
  }
  const double noise = 1e-12 * std::abs(now_.objective());
  if (least >= -noise) {
    return false;
  }
  move(variable, static_cast<int>(best));
  return true;
}

/// Moves two neighbours at once where no single move helps.
bool LocalSearch::improve_pair(int first, int second) {
  constexpr int kMostPairs = 400;
  const int own = now_.choice()[static_cast<std::size_t>(first)];
  if (now_.choices(first) > kMostPairs / now_.choices(second)) {
    return false;
  }
  const double before = priced(now_.objective(), now_.usage());
  const double noise = 1e-12 * std::abs(before);
  for (int a = 0; a < now_.choices(first); ++a) {
    if (a == own) {
      continue;
    }
    now_.change(first, a);
    const double between = priced(now_.objective(), now_.usage());
    now_.changes(second, second_);
    for (std::size_t b = 0; b < second_.objective.size(); ++b) {
      if (between + priced_change(second_, b) < before - noise) {
        trail_.emplace_back(first, own);
        move(second, static_cast<int>(b));
        return true;
      }
    }
  }
  now_.change(first, own);
  return false;
}

/// Single moves until none helps, then pairs; only near what changed.
void LocalSearch::descend(std::vector<int> waiting, const Budget& budget) {
  std::vector<bool> queued(problem_.objective.unary.size(), false);
  std::vector<int> changed = waiting;
  for (const int v : waiting) {
    queued[static_cast<std::size_t>(v)] = true;
  }
  const auto wake = [&](int v) {
    changed.push_back(v);
    for (const int other : now_.neighbours(v)) {
      if (!queued[static_cast<std::size_t>(other)] && now_.choices(other) > 1) {
        queued[static_cast<std::size_t>(other)] = true;
        waiting.push_back(other);
      }
    }
  };
  std::size_t moves = 0;
  const std::size_t most = 100 * (problem_.objective.unary.size() + 10);
  while ((!waiting.empty() || !changed.empty()) && moves < most) {
    if (!waiting.empty()) {
      const int v = waiting.back();
      waiting.pop_back();
      queued[static_cast<std::size_t>(v)] = false;
      if (improve_single(v)) {
        ++moves;
        wake(v);
      }
      continue;
    }
    const std::vector<int> around = std::exchange(changed, {});
    for (const int v : around) {
      for (const int other : now_.neighbours(v)) {
        if (now_.choices(other) > 1 && improve_pair(v, other)) {
          ++moves;
          wake(v);
          wake(other);
        }
      }
    }
    if (budget.exhausted()) {
      return;
    }
  }
}

/// Gives a connected handful of variables random choices; returns them and what is around them.
std::vector<int> LocalSearch::kick() {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random_() % n); };
  const std::size_t count = 2 + below(6);
  std::vector<int> region{movable_[below(movable_.size())]};
  for (std::size_t i = 0; i < region.size() && region.size() < count; ++i) {
    for (const int other : now_.neighbours(region[i])) {
      if (region.size() < count && now_.choices(other) > 1 && below(2) == 0 &&
          std::find(region.begin(), region.end(), other) == region.end()) {
        region.push_back(other);
      }
    }
  }
  std::vector<int> waiting = region;
  for (const int v : region) {
    move(v, static_cast<int>(below(static_cast<std::size_t>(now_.choices(v)))));
    for (const int other : now_.neighbours(v)) {
      if (now_.choices(other) > 1) {
        waiting.push_back(other);
      }
    }
  }
  std::sort(waiting.begin(), waiting.end());
  waiting.erase(std::unique(waiting.begin(), waiting.end()), waiting.end());
  return waiting;
}

void LocalSearch::keep() {
  if (feasible()) {
    if (best_ && now_.objective() >= best_->objective) {
      return;
    }
    // Sums drift: what is kept is measured afresh.
    now_.reset(now_.choice());
    if (feasible() && (!best_ || now_.objective() < best_->objective)) {
      best_ = Found{now_.objective(), now_.choice()};
    }
    return;
  }
  double excess = now_.objective() >= now_.forbidden() / 2 ? kInfinity : 0;
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    const double limit = problem_.rows[r].limit;
    excess = std::max(excess, (now_.usage()[r] - limit) / std::max(std::abs(limit), 1e-300));
  }
  if (closest_.empty() || excess < closest_excess_) {
    closest_excess_ = excess;
    closest_ = now_.choice();
  }
}

void LocalSearch::offer(std::vector<int> choice) {
  now_.reset(std::move(choice));
  keep();
}

void LocalSearch::run_from(const std::vector<std::vector<int>>& starts,
                           const std::vector<double>& multiplier,
                           int restarts,
                           std::int64_t work,
                           double target,
                           const Budget& budget) {
  for (const std::vector<int>& start : starts) {
    offer(start);
  }
  const auto kicks = static_cast<std::int64_t>(2000 + 20 * problem_.objective.unary.size());
  constexpr std::uint64_t kSeldom = 20;
  for (int restart = 0; restart < restarts; ++restart) {
    std::vector<int> start = best_ ? best_->choice : closest_;
    for (std::size_t v = 0; restart > 0 && v < start.size(); ++v) {
      // The last restart is all at random.
      if (restart + 1 == restarts || random_() % kSeldom == 0) {
        start[v] = static_cast<int>(random_() % problem_.objective.unary[v]->size());
      }
    }
    run(std::move(start), multiplier, kicks, work, target, budget);
    if (budget.exhausted() || (best_ && best_->objective <= target)) {
      return;
    }
  }
}

void LocalSearch::adjust_prices() {
  for (std::size_t r = 0; r < price_.size(); ++r) {
    const bool met = meets_limit(now_.usage()[r], problem_.rows[r].limit);
    price_[r] *= met ? 0.98 : (best_ ? 1.1 : 1.3);
  }
}

void LocalSearch::run(std::vector<int> start,
                      const std::vector<double>& multiplier,
                      std::int64_t kicks,
                      std::int64_t work,
                      double target,
                      const Budget& budget) {
  now_.reset(std::move(start));
  keep();
  price_ = multiplier;
  for (std::size_t r = 0; r < price_.size(); ++r) {
    const double limit = std::max(std::abs(problem_.rows[r].limit), 1e-300);
    price_[r] = std::max(1.5 * price_[r], 1e-3 * std::abs(now_.objective()) / limit);
  }
  const std::int64_t last = now_.work() + work;
  descend(movable_, budget);
  keep();
  double home_cost = priced(now_.objective(), now_.usage());
  constexpr std::int64_t kOften = 16;
  constexpr std::int64_t kVeryOften = 4;
  constexpr std::int64_t kSeldom = 1024;
  for (std::int64_t i = 0; i < kicks && now_.work() < last && !movable_.empty(); ++i) {
    // Interrupted before there is an answer, it still takes a moment to find one.
    constexpr std::int64_t kMoment = 256;
    if ((budget.exhausted() && (best_ || i >= kMoment)) || (best_ && best_->objective <= target)) {
      return;
    }
    trail_.clear();
    descend(kick(), budget);
    keep();
    const double cost = priced(now_.objective(), now_.usage());
    if (cost <= home_cost) {
      home_cost = cost;
    } else {
      for (std::size_t k = trail_.size(); k-- > 0;) {
        now_.change(trail_[k].first, trail_[k].second);
      }
    }
    if (i % kSeldom == 0) {
      now_.reset(now_.choice());
    }
    if (i % (best_ ? kOften : kVeryOften) == 0) {
      adjust_prices();
      home_cost = priced(now_.objective(), now_.usage());
    }
  }
}

namespace {

/// An objective that is good enough.
double target_of(const Solution& solution, const SolveOptions& options) {
  return solution.lower_bound + 0.5 * options.gap * std::abs(solution.lower_bound);
}

Solution solve_by_local_search(const ConstrainedProblem& problem, const SolveOptions& options) {
  const Budget budget(options);
  const RelaxedStart relaxed(problem, options, budget);
  Solution solution = relaxed.start();
  if (solution.status == SolveStatus::kInfeasible) {
    return solution;
  }
  constexpr int kRestarts = 4;
  constexpr std::int64_t kWork = 400'000'000;
  LocalSearch search(problem, options.seed);
  search.run_from(relaxed.starts(),
                  solution.multiplier,
                  kRestarts,
                  kWork,
                  target_of(solution, options),
                  budget);
  if (const std::optional<LocalSearch::Found>& best = search.best()) {
    solution.choice = best->choice;
    solution.status = SolveStatus::kFeasible;
  } else {
    solution.choice = search.closest();
  }
  measure(problem, solution);
  conclude(solution, options.gap);
  solution.limit = solution.status == SolveStatus::kOptimal ? SolveLimit::kNone : budget.limit();
  return solution;
}

}  // namespace

SolverInfo local_search_solver() {
  return {"local",
          "Lourenço, Martin, Stützle 2003",
          "iterated local search with priced rows; bound by mini-buckets and multipliers",
          solve_by_local_search};
}

}  // namespace shardplan::solvers
