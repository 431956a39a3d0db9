#include "shardplan/solvers/exact.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <limits>
#include <string>

#include "random_problem.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CostTable table(std::vector<double> values) {
  return std::make_shared<const std::vector<double>>(std::move(values));
}

RandomShape random_shape(int seed) {
  constexpr std::array<int, 5> kRows = {0, 1, 2, 3, 8};
  const auto s = static_cast<std::size_t>(seed);
  RandomShape shape;
  shape.kind = static_cast<RandomShape::Kind>(s % 5);
  shape.rows = kRows[s / 5 % 5];
  shape.has_ties = s / 25 % 3 == 0;
  shape.forbidden = s / 75 % 2 == 0 ? 0 : 0.25;
  shape.tightness = 0.1 + 0.1 * static_cast<double>(s / 150 % 8);
  shape.variables = 1 + static_cast<int>(s * 7 % 8);
  shape.most_choices = shape.variables > 6 ? 3 : 4;
  return shape;
}

void expect_within_rows(const ConstrainedProblem& problem, const Solution& solution) {
  ASSERT_EQ(solution.choice.size(), problem.objective.unary.size());
  ASSERT_EQ(evaluate(problem.objective, solution.choice), solution.objective);
  ASSERT_EQ(solution.usage.size(), problem.rows.size());
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    const double usage = evaluate(problem, problem.rows[r], solution.choice);
    ASSERT_EQ(usage, solution.usage[r]);
    ASSERT_LE(usage, problem.rows[r].limit + 1e-12 * std::abs(problem.rows[r].limit));
  }
}

TEST(ExactSolver, EqualsBruteForceOnRandomProblems) {
  constexpr int kProblems = 6000;
  ExactSolver solver;
  int feasible = 0;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(static_cast<unsigned>(seed));
    const ConstrainedProblem problem = RandomProblem(random_shape(seed), rng).make();
    const std::optional<double> optimum = brute_force(problem);
    SolveOptions options;
    options.gap = seed % 2 == 0 ? 1e-9 : 1e-3;
    const Solution solution = solver.solve(problem, options);
    if (!optimum) {
      ASSERT_EQ(solution.status, SolveStatus::kInfeasible);
      continue;
    }
    ++feasible;
    ASSERT_EQ(solution.status, SolveStatus::kOptimal);
    ASSERT_EQ(solution.limit, SolveLimit::kNone);
    ASSERT_NO_FATAL_FAILURE(expect_within_rows(problem, solution));
    ASSERT_LE(solution.lower_bound, *optimum + 1e-9 * std::abs(*optimum));
    ASSERT_LE(solution.objective, *optimum + options.gap * std::abs(*optimum) + 1e-9);
    ASSERT_GE(solution.objective, *optimum - 1e-9 * std::abs(*optimum));
  }
  EXPECT_GT(feasible, kProblems / 2);
  EXPECT_LT(feasible, kProblems);
}

TEST(ExactSolver, LeastLimitEqualsBruteForce) {
  constexpr int kProblems = 2000;
  ExactSolver solver;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(static_cast<unsigned>(seed));
    ConstrainedProblem problem = RandomProblem(random_shape(seed), rng).make();
    if (problem.rows.empty()) {
      continue;
    }
    if (seed % 2 == 0) {
      for (ConstrainedProblem::Row& row : problem.rows) {
        row.limit = 0;
      }
    }
    SolveOptions options;
    options.gap = 1e-3;
    const std::optional<double> least = brute_force_min_max(problem);
    const Solution solution = solver.solve_min_max(problem, options);
    if (!least) {
      ASSERT_EQ(solution.status, SolveStatus::kInfeasible);
      continue;
    }
    double scale = 0;
    for (const ConstrainedProblem::Row& row : problem.rows) {
      scale = std::max({scale, std::abs(row.limit + *least), std::abs(row.constant)});
    }
    ASSERT_EQ(solution.status, SolveStatus::kOptimal);
    ASSERT_LE(solution.lower_bound, *least + 1e-9 * scale);
    ASSERT_GE(solution.objective, *least - 1e-9 * scale);
    ASSERT_LE(solution.objective, *least + 1.1e-3 * scale);
  }
}

TEST(ExactSolver, ProvesThatARowCannotBeMet) {
  ConstrainedProblem problem;
  problem.objective.unary = {table({1, 2})};
  ConstrainedProblem::Row row;
  row.unary = {table({10, 8})};
  row.limit = 7;
  problem.rows = {row};
  ExactSolver solver;
  Solution solution = solver.solve(problem);
  EXPECT_EQ(solution.status, SolveStatus::kInfeasible);
  EXPECT_EQ(solution.choice, std::vector<int>{1}) << "the least violating one";
  problem.rows[0].limit = 8;
  solution = solver.solve(problem);
  EXPECT_EQ(solution.status, SolveStatus::kOptimal);
  EXPECT_EQ(solution.choice, std::vector<int>{1});
  EXPECT_EQ(solution.objective, 2);
}

TEST(ExactSolver, ProvesThatTwoRowsExcludeEachOther) {
  // Each row can be met, and so can their mean, but not both by one assignment.
  ConstrainedProblem problem;
  problem.objective.unary = {table({1, 1})};
  ConstrainedProblem::Row first;
  first.unary = {table({0, 10})};
  first.limit = 6;
  ConstrainedProblem::Row second;
  second.unary = {table({10, 0})};
  second.limit = 6;
  problem.rows = {first, second};
  EXPECT_EQ(ExactSolver().solve(problem).status, SolveStatus::kInfeasible);
  EXPECT_NEAR(ExactSolver().solve_min_max(problem).objective, 4, 1e-9);
}

TEST(ExactSolver, RowsWithoutALimitAllowAnything) {
  std::mt19937 rng(5);
  RandomShape shape;
  shape.rows = 2;
  ConstrainedProblem problem = RandomProblem(shape, rng).make();
  problem.rows[0].limit = kInfinity;
  const Solution solution = ExactSolver().solve(problem);
  ASSERT_EQ(solution.status, SolveStatus::kOptimal);
  ASSERT_NO_FATAL_FAILURE(expect_within_rows(problem, solution));
  const std::optional<double> optimum = brute_force(problem);
  ASSERT_TRUE(optimum.has_value());
  EXPECT_NEAR(solution.objective, optimum.value_or(0), 1e-3);
  EXPECT_EQ(solution.multiplier.size(), 2);
  problem.rows[1].limit = kInfinity;
  const std::optional<double> free = brute_force(problem);
  ASSERT_TRUE(free.has_value());
  EXPECT_EQ(ExactSolver().solve(problem).lower_bound, free.value_or(0));
}

TEST(ExactSolver, ForbiddenEverywhereIsInfeasible) {
  ConstrainedProblem problem;
  problem.objective.unary = {table({0, 0}), table({0, 0})};
  problem.objective.factors = {{{0, 1}, table({kInfinity, kInfinity, kInfinity, kInfinity})}};
  EXPECT_EQ(ExactSolver().solve(problem).status, SolveStatus::kInfeasible);
}

TEST(ExactSolver, InterruptAndMemoryLimitEndTheSearchWithWhatIsKnown) {
  std::mt19937 rng(3);
  RandomShape shape;
  shape.kind = RandomShape::kChain;
  shape.variables = 60;
  shape.rows = 2;
  const ConstrainedProblem problem = RandomProblem(shape, rng).make();
  const std::atomic<bool> interrupt = true;
  SolveOptions options;
  options.control.interrupt = &interrupt;
  EXPECT_EQ(ExactSolver().solve(problem, options).limit, SolveLimit::kInterrupted);
  options = {};
  options.memory_limit = 64;
  EXPECT_EQ(ExactSolver().solve(problem, options).limit, SolveLimit::kMemory);
}

}  // namespace
}  // namespace shardplan::solvers
