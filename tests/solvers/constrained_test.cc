#include "shardplan/solvers/constrained.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>

namespace shardplan::solvers {
namespace {

CostTable random_table(std::mt19937& rng, std::size_t size, int largest) {
  std::uniform_int_distribution<int> cost(0, largest);
  std::vector<double> values(size);
  for (double& value : values) {
    value = cost(rng);
  }
  return std::make_shared<const std::vector<double>>(std::move(values));
}

/// Up to seven variables, a chain with a few skips, one to three rows with limits between the least
/// and the largest usage.
ConstrainedProblem random_problem(std::mt19937& rng) {
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  ConstrainedProblem problem;
  const int n = uniform(1, 7);
  for (int v = 0; v < n; ++v) {
    problem.objective.unary.push_back(
        random_table(rng, static_cast<std::size_t>(uniform(1, 4)), 50));
  }
  const auto add_edge = [&](int a, int b) {
    const std::size_t size = problem.objective.unary[static_cast<std::size_t>(a)]->size() *
                             problem.objective.unary[static_cast<std::size_t>(b)]->size();
    problem.objective.factors.push_back({{a, b}, random_table(rng, size, 30)});
  };
  for (int v = 1; v < n; ++v) {
    add_edge(v - 1, v);
    if (v > 2 && uniform(0, 2) == 0) {
      add_edge(uniform(0, v - 2), v);
    }
  }
  const int rows = uniform(1, 3);
  for (int r = 0; r < rows; ++r) {
    ConstrainedProblem::Row row;
    for (const CostTable& unary : problem.objective.unary) {
      row.unary.push_back(uniform(0, 9) == 0 ? nullptr : random_table(rng, unary->size(), 40));
    }
    for (const CostNetwork::Factor& factor : problem.objective.factors) {
      row.factors.push_back(uniform(0, 1) == 0 ? nullptr
                                               : random_table(rng, factor.cost->size(), 10));
    }
    row.constant = uniform(0, 5);
    row.limit = uniform(5, 40 * n);
    problem.rows.push_back(std::move(row));
  }
  return problem;
}

/// The obviously right twin: least objective over every feasible assignment.
std::optional<double> brute_force(const ConstrainedProblem& problem) {
  std::vector<int> choice(problem.objective.unary.size(), 0);
  std::optional<double> best;
  while (true) {
    bool feasible = true;
    for (const ConstrainedProblem::Row& row : problem.rows) {
      feasible = feasible && evaluate(problem, row, choice) <= row.limit;
    }
    const double cost = evaluate(problem.objective, choice);
    if (feasible && (!best || cost < *best)) {
      best = cost;
    }
    std::size_t v = 0;
    while (v < choice.size() &&
           ++choice[v] == static_cast<int>(problem.objective.unary[v]->size())) {
      choice[v++] = 0;
    }
    if (v == choice.size()) {
      return best;
    }
  }
}

TEST(Constrained, BoundIsBelowAndResultAboveTheOptimum) {
  std::mt19937 rng(1974);
  Elimination elimination;
  int exact = 0;
  int feasible = 0;
  int possible = 0;
  for (int round = 0; round < 1500; ++round) {
    const ConstrainedProblem problem = random_problem(rng);
    const std::optional<double> optimum = brute_force(problem);
    const Solution solution = solve_constrained(problem, elimination);
    SCOPED_TRACE("round " + std::to_string(round));
    if (!optimum) {
      ASSERT_NE(solution.status, SolveStatus::kOptimal);
      ASSERT_NE(solution.status, SolveStatus::kFeasible);
      continue;
    }
    ++possible;
    ASSERT_NE(solution.status, SolveStatus::kInfeasible);
    ASSERT_LE(solution.lower_bound, *optimum + 1e-6);
    if (solution.status == SolveStatus::kUnknown) {
      continue;
    }
    ++feasible;
    ASSERT_EQ(evaluate(problem.objective, solution.choice), solution.objective);
    for (std::size_t r = 0; r < problem.rows.size(); ++r) {
      ASSERT_LE(evaluate(problem, problem.rows[r], solution.choice),
                problem.rows[r].limit * (1 + 1e-9));
    }
    ASSERT_GE(solution.objective, *optimum - 1e-9);
    exact += solution.objective <= *optimum + 1e-9 ? 1 : 0;
    if (solution.status == SolveStatus::kOptimal) {
      ASSERT_NEAR(solution.objective, *optimum, 1e-3 * std::max(1.0, *optimum));
    }
  }
  // Relaxation and moves are no exact method on such tiny, jagged problems, but mostly hit.
  EXPECT_GT(feasible, possible * 9 / 10);
  EXPECT_GT(exact, feasible * 3 / 4);
}

TEST(Constrained, IsExactWhenNoRowBinds) {
  std::mt19937 rng(7);
  Elimination elimination;
  for (int round = 0; round < 300; ++round) {
    ConstrainedProblem problem = random_problem(rng);
    for (ConstrainedProblem::Row& row : problem.rows) {
      row.limit = 1e6;
    }
    const Solution solution = solve_constrained(problem, elimination);
    ASSERT_EQ(solution.status, SolveStatus::kOptimal);
    ASSERT_EQ(solution.objective, brute_force(problem).value_or(-1));
    ASSERT_EQ(solution.lower_bound, solution.objective);
  }
}

TEST(Constrained, ProvesThatARowCannotBeMet) {
  ConstrainedProblem problem;
  problem.objective.unary = {
      std::make_shared<const std::vector<double>>(std::vector<double>{1, 2})};
  ConstrainedProblem::Row row;
  row.unary = {std::make_shared<const std::vector<double>>(std::vector<double>{10, 8})};
  row.limit = 7;
  problem.rows = {row};
  Elimination elimination;
  EXPECT_EQ(solve_constrained(problem, elimination).status, SolveStatus::kInfeasible);
  problem.rows[0].limit = 8;
  const Solution solution = solve_constrained(problem, elimination);
  EXPECT_EQ(solution.choice, std::vector<int>{1});
  EXPECT_EQ(solution.objective, 2);
}

}  // namespace
}  // namespace shardplan::solvers
