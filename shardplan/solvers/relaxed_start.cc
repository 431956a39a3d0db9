#include "shardplan/solvers/relaxed_start.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/solvers/cost_shift.h"

namespace shardplan::solvers {
namespace {

constexpr std::size_t kCoarse = std::size_t{1} << 12U;
constexpr std::size_t kFine = std::size_t{1} << 18U;
constexpr std::size_t kMostEntries = std::size_t{1} << 23U;
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
    std::size_t most = kMostEntries;
    if (options.memory_limit > 0) {
      most = std::min(most, static_cast<std::size_t>(options.memory_limit) / kBytesAnEntry);
    }
    if (entries_of(problem.objective) <= most) {
      shift(budget);
    }
    enlarge(most, budget);
  }
  root_ = relaxation_->evaluate(multipliers_.value).value;
}

/// Shifts costs at the multipliers, then adjusts these, in turns until the bound stands.
void RelaxedStart::shift(const Budget& budget) {
  constexpr int kTurns = 4;
  constexpr int kSweeps = 100;
  constexpr int kFewEvaluations = 50;
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
