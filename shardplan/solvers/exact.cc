// The exact solver. `solve_rows` compiles and searches (see search.cc); `solve_min_max` bisects on
// the largest excess, each trial being a search for the least usage of one row within the others.
#include "shardplan/solvers/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/solvers/local_search.h"
#include "shardplan/solvers/presolve.h"
#include "shardplan/solvers/search.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The objective replaced by a row, which leaves the rows; what was forbidden stays so.
ConstrainedProblem minimise_row(const ConstrainedProblem& problem, std::size_t row, double excess) {
  ConstrainedProblem other;
  const ConstrainedProblem::Row& chosen = problem.rows[row];
  const auto usage = [](const CostTable& cost, const CostTable& part) {
    auto table = std::make_shared<std::vector<double>>(*cost);
    for (std::size_t i = 0; i < table->size(); ++i) {
      double& value = (*table)[i];
      value = value < kInfinity ? (part ? (*part)[i] : 0.0) : kInfinity;
    }
    return table;
  };
  for (std::size_t v = 0; v < problem.objective.unary.size(); ++v) {
    other.objective.unary.push_back(usage(problem.objective.unary[v], chosen.unary[v]));
  }
  for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
    const CostNetwork::Factor& factor = problem.objective.factors[f];
    other.objective.factors.push_back({factor.scope, usage(factor.cost, chosen.factors[f])});
  }
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    if (r != row) {
      other.rows.push_back(problem.rows[r]);
      other.rows.back().limit += excess;
    }
  }
  return other;
}

/// What sums of usages in another order may differ by.
double rounding_of(const ConstrainedProblem& problem) {
  double largest = 0;
  for (const ConstrainedProblem::Row& row : problem.rows) {
    largest = std::max(largest, std::abs(row.limit));
  }
  return 1e-11 * largest;
}

/// What a gap between excesses is relative to.
double scale_of(const ConstrainedProblem& problem, double excess) {
  double scale = 0;
  for (const ConstrainedProblem::Row& row : problem.rows) {
    scale = std::max({scale, std::abs(row.limit + excess), std::abs(row.constant)});
  }
  return scale;
}

double largest_excess(const ConstrainedProblem& problem, const Incumbent::Point& point) {
  if (!(point.objective < kInfinity)) {
    return kInfinity;
  }
  double excess = -kInfinity;
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    excess = std::max(excess, point.usage[r] - problem.rows[r].limit);
  }
  return excess;
}

bool has_unlimited_rows(const ConstrainedProblem& problem) {
  return std::any_of(problem.rows.begin(), problem.rows.end(), [](const auto& row) {
    return row.limit == kInfinity;
  });
}

/// The problem without the rows that allow anything, and the numbers of the others.
std::pair<ConstrainedProblem, std::vector<std::size_t>> without_unlimited_rows(
    const ConstrainedProblem& problem) {
  std::pair<ConstrainedProblem, std::vector<std::size_t>> result;
  result.first.objective = problem.objective;
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    if (problem.rows[r].limit < kInfinity) {
      result.first.rows.push_back(problem.rows[r]);
      result.second.push_back(r);
    }
  }
  return result;
}

SolveOptions with_rows(SolveOptions options, const std::vector<std::size_t>& rows) {
  std::vector<double> hint;
  hint.reserve(rows.size());
  for (const std::size_t r : rows) {
    hint.push_back(r < options.hint.size() ? options.hint[r] : 0.0);
  }
  options.hint = std::move(hint);
  return options;
}

/// Usage and multipliers of all rows again.
Solution with_all_rows(const ConstrainedProblem& problem,
                       const std::vector<std::size_t>& rows,
                       Solution solution) {
  std::vector<double> multiplier(problem.rows.size(), 0.0);
  for (std::size_t i = 0; i < rows.size() && i < solution.multiplier.size(); ++i) {
    multiplier[rows[i]] = solution.multiplier[i];
  }
  solution.multiplier = std::move(multiplier);
  if (!solution.choice.empty()) {
    solution.usage = Incumbent(problem).evaluated(solution.choice).usage;
  }
  return solution;
}

}  // namespace

struct ExactSolver::State {
  TableStore store;

  /// A search that only asks whether the optimum is above a value.
  struct Trial {
    double value = 0;
    double work_left = 0;  ///< of all trials together, in about nanoseconds
  };
  /// Bisection for solve_min_max.
  struct MinMax {
    double low = -kInfinity;
    double high = kInfinity;
    std::vector<int> choice;
    std::vector<double> multiplier;
    SolveLimit limit = SolveLimit::kNone;
    bool forbidden = false;
    bool none_within = false;  ///< proven: no assignment has an excess of 0 or less
  };

  void forget_old_tables() {
    constexpr std::size_t kMostBytes = std::size_t{1} << 28U;
    if (store.bytes() > kMostBytes) {
      store = {};
    }
  }

  Solution solve_rows(const ConstrainedProblem& problem,
                      const SolveOptions& options,
                      const Budget& budget,
                      Trial* trial);
  MinMax min_max(const ConstrainedProblem& problem,
                 const SolveOptions& options,
                 const Budget& budget,
                 bool only_sign);
  void bisect(const ConstrainedProblem& problem,
              const SolveOptions& options,
              const Budget& budget,
              bool only_sign,
              MinMax& result);
};

namespace {

/// Whether elimination stays within the memory. With rows there are several relaxed tables of each
/// step at once, inside and outside.
bool fits(const Compiled& compiled, const Budget& budget) {
  const double tables = compiled.rows > 0 ? 6 : 1;
  return tables * compiled.schedule.total_entries * sizeof(double) <
         static_cast<double>(budget.bytes());
}

/// Too wide for exactness: bound by mini-buckets, assignment by local search.
Solution solve_widely(const ConstrainedProblem& problem,
                      SolveOptions options,
                      const Budget& budget) {
  options.time_limit = budget.seconds_left();
  Solution solution = local_search_solver().solve(problem, options);
  const bool is_decided =
      solution.status == SolveStatus::kOptimal || solution.status == SolveStatus::kInfeasible;
  if (!is_decided && solution.limit == SolveLimit::kNone) {
    solution.limit = SolveLimit::kMemory;
  }
  return solution;
}

}  // namespace

Solution ExactSolver::State::solve_rows(const ConstrainedProblem& problem,
                                        const SolveOptions& options,
                                        const Budget& budget,
                                        Trial* trial) {
  const Compiled compiled = compile(problem, store, {!problem.rows.empty()});
  if (!fits(compiled, budget)) {
    if (options.fall_back) {
      return solve_widely(problem, options, budget);
    }
    Solution nothing;
    nothing.limit = SolveLimit::kMemory;
    nothing.lower_bound = -kInfinity;
    return nothing;
  }
  Search search(problem, compiled, store, options, budget);
  if (trial != nullptr) {
    search.decide(trial->value);
    search.set_work(trial->work_left);
  }
  search.run();
  if (trial != nullptr) {
    if (search.undecided()) {
      search.resume();
    }
    trial->work_left = search.work_left();
  } else if (search.undecided()) {
    const MinMax least = min_max(problem, options, budget, true);
    if (least.none_within) {
      search.set_infeasible();
    }
    if (!least.choice.empty()) {
      search.offer(least.choice);
    }
    search.resume();
  }
  return search.solution();
}

ExactSolver::State::MinMax ExactSolver::State::min_max(const ConstrainedProblem& problem,
                                                       const SolveOptions& options,
                                                       const Budget& budget,
                                                       bool only_sign) {
  constexpr int kEvaluations = 40;
  MinMax result;
  const Compiled compiled = compile(problem, store, {true});
  if (!fits(compiled, budget)) {
    result.limit = SolveLimit::kMemory;
    return result;
  }
  const Incumbent incumbent(problem);
  Dual dual(compiled, store, [&](const Dual::Point& point) {
    const Incumbent::Point exact = incumbent.evaluated(point.choice);
    const double excess = largest_excess(problem, exact);
    if (excess < result.high) {
      result.high = excess;
      result.choice = point.choice;
    }
    return !budget.exhausted() && !(only_sign && result.high <= 0);
  });
  dual.maximise_excess(kEvaluations);
  result.low = std::min(dual.bound(), result.high);
  result.forbidden = dual.bound() == kInfinity;
  result.multiplier = dual.multiplier();
  result.none_within = result.low > rounding_of(problem);
  if (!result.forbidden && !(only_sign && result.none_within)) {
    bisect(problem, options, budget, only_sign, result);
  }
  result.limit = budget.limit();
  return result;
}

void ExactSolver::State::bisect(const ConstrainedProblem& problem,
                                const SolveOptions& options,
                                const Budget& budget,
                                bool only_sign,
                                MinMax& result) {
  constexpr int kTrials = 30;
  constexpr double kTrialWork = 5e7;
  const auto row = static_cast<std::size_t>(
      std::max_element(result.multiplier.begin(), result.multiplier.end()) -
      result.multiplier.begin());
  SolveOptions nested = options;
  nested.gap = 0.25 * options.gap;
  nested.hint.clear();
  nested.cutoff = kInfinity;  // was of the objective, which a row replaces
  const Incumbent incumbent(problem);
  Trial trial_of{0, kTrialWork};
  for (int trial = 0; trial < kTrials && trial_of.work_left > 0 && !budget.exhausted(); ++trial) {
    const double scale = scale_of(problem, result.high);
    if (result.high - result.low <= options.gap * scale || (only_sign && result.high <= 0)) {
      return;
    }
    // Just below the best known, which is often the least; else halfway.
    const double trial_excess =
        trial % 3 == 0 ? result.high - 0.9 * options.gap * scale : 0.5 * (result.low + result.high);
    const double excess = only_sign ? 0.0 : trial_excess;
    const double base = problem.rows[row].constant - problem.rows[row].limit;
    trial_of.value = excess - base;
    const Solution least =
        solve_rows(minimise_row(problem, row, excess), nested, budget, &trial_of);
    double proven = excess;  // when the other rows alone cannot be met
    if (least.status != SolveStatus::kInfeasible) {
      proven = std::min(excess, least.lower_bound + base);
    }
    const double before = result.high - result.low;
    if (!least.choice.empty()) {
      const double found = largest_excess(problem, incumbent.evaluated(least.choice));
      if (found < result.high) {
        result.high = found;
        result.choice = least.choice;
      }
    }
    result.low = std::min(result.high, std::max(result.low, proven));
    if (only_sign) {
      result.none_within = least.status == SolveStatus::kInfeasible ||
                           least.lower_bound + base > rounding_of(problem);
      return;
    }
    if (result.high - result.low >= before) {
      return;  // the trials prove no more
    }
  }
}

ExactSolver::ExactSolver() : state_(std::make_unique<State>()) {}
ExactSolver::~ExactSolver() = default;
ExactSolver::ExactSolver(ExactSolver&&) noexcept = default;
ExactSolver& ExactSolver::operator=(ExactSolver&&) noexcept = default;

Solution ExactSolver::solve(const ConstrainedProblem& problem, const SolveOptions& options) {
  if (has_unlimited_rows(problem)) {
    const auto [limited, rows] = without_unlimited_rows(problem);
    return with_all_rows(problem, rows, solve(limited, with_rows(options, rows)));
  }
  state_->forget_old_tables();
  const Budget budget(options);
  if (!problem.rows.empty()) {
    constexpr double kPresolveWork = 2e7;
    const Presolved presolved = presolve(problem, kPresolveWork);
    if (presolved.left_out(problem) > 0) {
      Solution solution = state_->solve_rows(presolved.problem, options, budget, nullptr);
      solution.choice = presolved.original(solution.choice);
      return solution;
    }
  }
  return state_->solve_rows(problem, options, budget, nullptr);
}

Solution ExactSolver::solve_min_max(const ConstrainedProblem& problem,
                                    const SolveOptions& options) {
  if (has_unlimited_rows(problem)) {
    const auto [limited, rows] = without_unlimited_rows(problem);
    return with_all_rows(problem, rows, solve_min_max(limited, with_rows(options, rows)));
  }
  state_->forget_old_tables();
  if (problem.rows.empty()) {
    Solution free = solve(problem, options);
    free.objective = -kInfinity;
    free.lower_bound = -kInfinity;
    return free;
  }
  const State::MinMax least = state_->min_max(problem, options, Budget(options), false);
  Solution solution;
  solution.limit = least.limit;
  solution.objective = least.high;
  solution.lower_bound = least.low;
  solution.multiplier = least.multiplier;
  solution.choice = least.choice;
  if (least.forbidden) {
    solution.status = SolveStatus::kInfeasible;
    return solution;
  }
  if (solution.choice.empty()) {
    return solution;
  }
  solution.usage = Incumbent(problem).evaluated(least.choice).usage;
  const double scale = scale_of(problem, least.high);
  solution.status = least.high - least.low <= options.gap * scale ? SolveStatus::kOptimal
                                                                  : SolveStatus::kFeasible;
  return solution;
}

}  // namespace shardplan::solvers
