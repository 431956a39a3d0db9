#include "shardplan/solvers/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardplan/solvers/constrained.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The weighted sum of the rows; infinite entries of the objective stay.
CostNetwork weighted_rows(const ConstrainedProblem& problem, const std::vector<double>& weight) {
  CostNetwork sum = problem.objective;
  const auto add = [&](CostTable& table, auto part_of) {
    auto total = std::make_shared<std::vector<double>>(*table);
    for (double& value : *total) {
      value = value < kInfinity ? 0 : value;
    }
    for (std::size_t r = 0; r < weight.size(); ++r) {
      const CostTable& part = part_of(problem.rows[r]);
      for (std::size_t i = 0; part && i < total->size(); ++i) {
        (*total)[i] += weight[r] * (*part)[i];
      }
    }
    table = std::move(total);
  };
  for (std::size_t v = 0; v < sum.unary.size(); ++v) {
    add(sum.unary[v], [v](const auto& row) -> const auto& { return row.unary[v]; });
  }
  for (std::size_t f = 0; f < sum.factors.size(); ++f) {
    add(sum.factors[f].cost, [f](const auto& row) -> const auto& { return row.factors[f]; });
  }
  return sum;
}

}  // namespace

struct ExactSolver::State {
  Elimination elimination;
};

ExactSolver::ExactSolver() : state_(std::make_unique<State>()) {}
ExactSolver::~ExactSolver() = default;
ExactSolver::ExactSolver(ExactSolver&&) noexcept = default;
ExactSolver& ExactSolver::operator=(ExactSolver&&) noexcept = default;

Solution ExactSolver::solve(const ConstrainedProblem& problem, const SolveOptions& options) {
  return solve_constrained(problem, state_->elimination, options);
}

/// Fictitious play between the assignment and the rows: the row of the largest excess gains weight.
Solution ExactSolver::solve_min_max(const ConstrainedProblem& problem,
                                    const SolveOptions& options) {
  constexpr int kRounds = 60;
  Solution best;
  best.objective = kInfinity;
  best.lower_bound = -kInfinity;
  const std::size_t rows = problem.rows.size();
  std::vector<double> count(rows, 1);
  for (int round = 0; round < kRounds && rows > 0 && !options.control.interrupted(); ++round) {
    std::vector<double> weight = count;
    for (double& w : weight) {
      w /= static_cast<double>(rows) + round;
    }
    const auto outcome = state_->elimination.minimise(weighted_rows(problem, weight));
    if (!outcome.solved) {
      best.limit = SolveLimit::kMemory;
      break;
    }
    if (outcome.solution.cost == kInfinity) {
      best.status = SolveStatus::kInfeasible;
      break;
    }
    double bound = outcome.solution.cost;
    std::size_t worst = 0;
    double excess = -kInfinity;
    std::vector<double> usage(rows);
    double scale = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const ConstrainedProblem::Row& row = problem.rows[r];
      bound += weight[r] * (row.constant - row.limit);
      usage[r] = evaluate(problem, row, outcome.solution.choice);
      if (usage[r] - row.limit > excess) {
        excess = usage[r] - row.limit;
        worst = r;
      }
    }
    best.lower_bound = std::max(best.lower_bound, bound);
    if (excess < best.objective) {
      best.objective = excess;
      best.choice = outcome.solution.choice;
      best.usage = usage;
      best.multiplier = weight;
    }
    for (const ConstrainedProblem::Row& row : problem.rows) {
      scale = std::max(scale, std::abs(row.limit + best.objective));
    }
    best.status = best.objective - best.lower_bound <= options.gap * scale ? SolveStatus::kOptimal
                                                                           : SolveStatus::kFeasible;
    if (best.status == SolveStatus::kOptimal) {
      break;
    }
    count[worst] += 1;
  }
  return best;
}

}  // namespace shardplan::solvers
