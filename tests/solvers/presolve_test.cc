#include "shardplan/solvers/presolve.h"

#include <gtest/gtest.h>

#include <string>

#include "random_problem.h"

namespace shardplan::solvers {
namespace {

constexpr double kPlenty = 1e9;

CostTable table(std::vector<double> values) {
  return std::make_shared<const std::vector<double>>(std::move(values));
}

TEST(Presolve, KeepsTheOptimumOfRandomProblems) {
  std::size_t left_out = 0;
  for (int seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(static_cast<unsigned>(seed));
    RandomShape shape;
    shape.kind = static_cast<RandomShape::Kind>(seed % 5);
    shape.rows = seed / 5 % 4;
    shape.has_ties = seed / 20 % 2 == 0;
    shape.forbidden = seed / 40 % 2 == 0 ? 0 : 0.25;
    const ConstrainedProblem problem = RandomProblem(shape, rng).make();
    const Presolved presolved = presolve(problem, kPlenty);
    left_out += presolved.left_out(problem);
    const std::optional<double> before = brute_force(problem);
    const std::optional<double> after = brute_force(presolved.problem);
    ASSERT_EQ(before.has_value(), after.has_value());
    if (before && after) {
      ASSERT_NEAR(*before, *after, 1e-9 * std::abs(*before));
    }
    const std::vector<int> first(problem.objective.unary.size(), 0);
    ASSERT_EQ(evaluate(presolved.problem.objective, first),
              evaluate(problem.objective, presolved.original(first)));
  }
  EXPECT_GT(left_out, 1000U);
}

TEST(Presolve, LeavesOutDominatedAndEqualChoices) {
  ConstrainedProblem problem;
  problem.objective.unary = {table({1, 2, 1, 9}), table({0, 0})};
  // Choice 1 costs more whatever the neighbour does; 2 equals 0; 3 is worth it with choice 1 there.
  problem.objective.factors = {{{0, 1}, table({5, 9, 5, 9, 5, 9, 5, 0})}};
  const Presolved presolved = presolve(problem, kPlenty);
  EXPECT_EQ(presolved.kept[0], (std::vector<int>{0, 3}));
  EXPECT_EQ(presolved.left_out(problem), 2U);
}

TEST(Presolve, KeepsWhatARowNeeds) {
  ConstrainedProblem problem;
  problem.objective.unary = {table({1, 2})};
  ConstrainedProblem::Row row;
  row.unary = {table({8, 4})};
  row.limit = 5;
  problem.rows = {row};
  EXPECT_EQ(presolve(problem, kPlenty).left_out(problem), 0U);
}

TEST(Presolve, SpendsNoMoreThanItMay) {
  ConstrainedProblem problem;
  problem.objective.unary = {table({1, 2})};
  EXPECT_EQ(presolve(problem, 0).left_out(problem), 0U);
  EXPECT_EQ(presolve(problem, kPlenty).left_out(problem), 1U);
}

}  // namespace
}  // namespace shardplan::solvers
