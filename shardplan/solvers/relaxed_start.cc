#include "shardplan/solvers/relaxed_start.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/solvers/cost_shift.h"
#include "shardplan/solvers/feasibility.h"

namespace shardplan::solvers {
namespace {

constexpr std::size_t kCoarse = std::size_t{1} << 12U;
constexpr std::size_t kFine = std::size_t{1} << 18U;
constexpr std::size_t kLargest = std::size_t{1} << 21U;
constexpr std::size_t kMostEntries = std::size_t{1} << 23U;
constexpr std::size_t kMostWork = std::size_t{1} << 30U;  // entries times evaluations
constexpr int kEvaluations = 200;
constexpr double kTolerance = 1e-7;

std::size_t entries_of(const CostNetwork& network) {
  std::size_t entries = 0;
  for (const CostNetwork::Factor& factor : network.factors) {
    entries += factor.cost->size();
  }
  return entries;
}

}  // namespace

RelaxedStart::RelaxedStart(const ConstrainedProblem& problem,
                           const SolveOptions& options,
                           const Budget& budget)
    : problem_(problem), relaxation_(std::make_unique<MiniBuckets>(problem, kCoarse)) {
  options.control.report("bound", -1);
  multipliers_ =
      best_multipliers(problem, *relaxation_, options.hint, kEvaluations, kTolerance, budget);
  if (relaxation_->split() && std::isfinite(multipliers_.bound)) {
    constexpr std::size_t kBytesAnEntry = 4 * sizeof(double);
    std::size_t most = 4 * kMostEntries;
    if (options.memory_limit > 0) {
      most = std::min(most, static_cast<std::size_t>(options.memory_limit) / kBytesAnEntry);
    }
    if (!join(most, budget)) {
      shift(std::min(most, kMostEntries), budget);
      enlarge(std::min(most, kMostEntries), budget);
    }
  }
  find_starts(budget);
  root_ = relaxation_->evaluate(multipliers_.value).value;
}

/// Splits nothing, if the tables are not too many; false when they are.
bool RelaxedStart::join(std::size_t most_entries, const Budget& budget) {
  auto whole = std::make_unique<MiniBuckets>(problem_, kLargest);
  if (whole->split() || whole->entries() > most_entries) {
    return false;
  }
  const auto evaluations =
      static_cast<int>(std::min(kMostWork / whole->entries(), std::size_t{200}));
  Multipliers better =
      best_multipliers(problem_, *whole, multipliers_.value, evaluations, kTolerance, budget);
  if (better.bound >= multipliers_.bound) {
    multipliers_ = std::move(better);
    relaxation_ = std::move(whole);
  }
  return true;
}

/// Shifts costs at the multipliers, then adjusts these, in turns until the bound stands.
void RelaxedStart::shift(std::size_t most_entries, const Budget& budget) {
  constexpr int kTurns = 4;
  constexpr int kSweeps = 100;
  constexpr int kFewEvaluations = 50;
  if (entries_of(problem_.objective) > most_entries / 8) {
    return;
  }
  for (int turn = 0; turn < kTurns && !budget.exhausted(); ++turn) {
    auto shifted = std::make_unique<const ConstrainedProblem>(
        shift_costs(problem_, multipliers_.value, kSweeps, budget));
    auto relaxation = std::make_unique<MiniBuckets>(*shifted, kCoarse);
    Multipliers better = best_multipliers(
        *shifted, *relaxation, multipliers_.value, kFewEvaluations, kTolerance, budget);
    const double gain = better.bound - multipliers_.bound;
    if (gain <= 0) {
      return;
    }
    multipliers_ = std::move(better);
    relaxation_ = std::move(relaxation);
    shifted_ = std::move(shifted);
    if (!(gain > kTolerance * std::abs(multipliers_.bound)) || !std::isfinite(gain)) {
      return;
    }
  }
}

/// Replaces the relaxation by one of larger clusters where that has the better bound.
void RelaxedStart::enlarge(std::size_t most_entries, const Budget& budget) {
  const ConstrainedProblem& problem = shifted_ ? *shifted_ : problem_;
  for (std::size_t cluster = kFine; cluster > kCoarse && !budget.exhausted(); cluster /= 4) {
    auto fine = std::make_unique<MiniBuckets>(problem, cluster);
    if (fine->entries() > most_entries) {
      continue;
    }
    constexpr int kFewEvaluations = 8;
    Multipliers better =
        best_multipliers(problem, *fine, multipliers_.value, kFewEvaluations, kTolerance, budget);
    if (better.bound >= multipliers_.bound) {
      multipliers_ = std::move(better);
      relaxation_ = std::move(fine);
    }
    return;
  }
}

Solution RelaxedStart::start() const {
  Solution solution;
  solution.lower_bound = multipliers_.bound;
  solution.multiplier = multipliers_.value;
  if (multipliers_.bound == std::numeric_limits<double>::infinity()) {
    solution.status = SolveStatus::kInfeasible;
  }
  return solution;
}

std::vector<std::size_t> RelaxedStart::add_start(const std::vector<double>& multiplier) {
  static_cast<void>(relaxation_->evaluate(multiplier));
  starts_.push_back(greedy());
  std::vector<std::size_t> violated;
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    if (!meets_limit(evaluate(problem_, problem_.rows[r], starts_.back()),
                     problem_.rows[r].limit)) {
      violated.push_back(r);
    }
  }
  return violated;
}

void RelaxedStart::find_starts(const Budget& budget) {
  constexpr std::size_t kMostStarts = 16;
  constexpr int kBetween = 5;
  const std::size_t most =
      std::clamp(kMostWork / 2 / (relaxation_->entries() + 1), std::size_t{4}, kMostStarts);
  std::vector<double> low = multipliers_.value;  // too small to meet the rows
  std::vector<double> high = low;
  std::vector<std::size_t> violated = add_start(low);
  double step = 0.02;
  while (!violated.empty() && starts_.size() < most && !budget.exhausted()) {
    low = high;
    for (const std::size_t r : violated) {
      const double size =
          std::abs(multipliers_.bound) / std::max(std::abs(problem_.rows[r].limit), 1e-300);
      high[r] += step * std::max(high[r], std::isfinite(size) ? 0.1 * size : 1);
    }
    step *= 2;
    violated = add_start(high);
  }
  for (int i = 0; i < kBetween && violated.empty() && low != high && !budget.exhausted(); ++i) {
    std::vector<double> middle = low;
    for (std::size_t r = 0; r < middle.size(); ++r) {
      middle[r] = 0.5 * (low[r] + high[r]);
    }
    (add_start(middle).empty() ? high : low) = middle;
  }
}

std::vector<int> RelaxedStart::greedy() const {
  std::vector<int> choice(problem_.objective.unary.size(), 0);
  std::vector<int> context;
  std::vector<double> increments;
  for (std::size_t step = 0; step < relaxation_->order().size(); ++step) {
    context.clear();
    for (const int v : relaxation_->context(step)) {
      context.push_back(choice[static_cast<std::size_t>(v)]);
    }
    relaxation_->increments(step, context, increments);
    std::size_t best = 0;
    for (std::size_t c = 0; c < increments.size(); ++c) {
      // Not a number: the context is forbidden already, and any choice is as good.
      best = increments[c] < increments[best] ? c : best;
    }
    choice[static_cast<std::size_t>(relaxation_->order()[step])] = static_cast<int>(best);
  }
  return choice;
}

}  // namespace shardplan::solvers
