#include "shardplan/solvers/elimination.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace shardplan::solvers {
namespace {

CostTable table(std::vector<double> values) {
  return std::make_shared<const std::vector<double>>(std::move(values));
}

double cost_of(const CostNetwork& problem, const std::vector<int>& choice) {
  double total = 0;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    total += (*problem.unary[v])[static_cast<std::size_t>(choice[v])];
  }
  for (const auto& factor : problem.factors) {
    total += (*factor.cost)[table_index(problem, factor, choice)];
  }
  return total;
}

/// The obviously right twin: tries every assignment.
double brute_force(const CostNetwork& problem) {
  std::vector<int> choice(problem.unary.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  while (true) {
    best = std::min(best, cost_of(problem, choice));
    std::size_t v = 0;
    while (v < choice.size() && ++choice[v] == static_cast<int>(problem.unary[v]->size())) {
      choice[v++] = 0;
    }
    if (v == choice.size()) {
      return best;
    }
  }
}

CostNetwork random_problem(std::mt19937& rng) {
  std::uniform_int_distribution<int> nodes(1, 7);
  std::uniform_int_distribution<int> choices(1, 4);
  std::uniform_int_distribution<int> cost(0, 20);
  std::bernoulli_distribution forbidden(0.05);
  const int n = nodes(rng);
  CostNetwork problem;
  for (int v = 0; v < n; ++v) {
    std::vector<double> unary(static_cast<std::size_t>(choices(rng)));
    for (double& c : unary) {
      c = cost(rng);
    }
    problem.unary.push_back(table(std::move(unary)));
  }
  const int factors = std::uniform_int_distribution<int>(0, 2 * n)(rng);
  for (int f = 0; f < factors; ++f) {
    // Up to three distinct variables in any order.
    std::vector<int> scope(static_cast<std::size_t>(n));
    std::iota(scope.begin(), scope.end(), 0);
    std::shuffle(scope.begin(), scope.end(), rng);
    scope.resize(std::min<std::size_t>(scope.size(), 1 + rng() % 3));
    std::size_t entries = 1;
    for (const int v : scope) {
      entries *= problem.unary[static_cast<std::size_t>(v)]->size();
    }
    std::vector<double> values(entries);
    for (double& c : values) {
      c = forbidden(rng) ? std::numeric_limits<double>::infinity() : cost(rng);
    }
    problem.factors.push_back({scope, table(std::move(values))});
  }
  return problem;
}

TEST(Elimination, EqualsBruteForceOnRandomProblems) {
  std::mt19937 rng(20230206);
  Elimination elimination;
  for (int round = 0; round < 2000; ++round) {
    const CostNetwork problem = random_problem(rng);
    const Elimination::Outcome outcome = elimination.minimise(problem);
    ASSERT_TRUE(outcome.solved);
    ASSERT_EQ(outcome.solution.cost, brute_force(problem)) << "round " << round;
    ASSERT_EQ(cost_of(problem, outcome.solution.choice), outcome.solution.cost);
  }
}

TEST(Elimination, AddsParallelFactorsInBothDirections) {
  CostNetwork problem;
  problem.unary = {table({0, 0}), table({0, 0})};
  problem.factors = {{{0, 1}, table({5, 1, 0, 9})}, {{1, 0}, table({5, 0, 1, 9})}};
  const auto outcome = Elimination().minimise(problem);
  EXPECT_EQ(outcome.solution.cost, 0 + 0);
  EXPECT_EQ(outcome.solution.choice, (std::vector<int>{1, 0}));
}

TEST(Elimination, SaysWhenAClusterIsTooLarge) {
  CostNetwork problem;
  problem.unary = {table({0, 0}), table({0, 0})};
  problem.factors = {{{0, 1}, table({1, 2, 3, 4})}};
  EXPECT_FALSE(Elimination().minimise(problem, 3).solved);
  EXPECT_TRUE(Elimination().minimise(problem, 4).solved);
}

TEST(Elimination, VariablesWithOneChoiceJoinNothing) {
  // A hub with one choice between twenty variables: a cluster of 3^20 entries if it were joined.
  CostNetwork problem;
  problem.unary.push_back(table({5}));
  for (int v = 1; v <= 20; ++v) {
    problem.unary.push_back(table({3, 1, 2}));
    problem.factors.push_back({{v, 0}, table({0, 4, 1})});
  }
  const auto outcome = Elimination().minimise(problem, 1000);
  ASSERT_TRUE(outcome.solved);
  EXPECT_EQ(outcome.solution.cost, 5 + 20 * 3);
}

TEST(Elimination, LongChainIsExact) {
  // Known by hand: staying at choice 0 costs 1 a node, every change costs 10.
  CostNetwork problem;
  const CostTable unary = table({1, 2});
  const CostTable edge = table({0, 10, 10, 0});
  for (int v = 0; v < 5000; ++v) {
    problem.unary.push_back(unary);
    if (v > 0) {
      problem.factors.push_back({{v - 1, v}, edge});
    }
  }
  EXPECT_EQ(Elimination().minimise(problem).solution.cost, 5000);
}

}  // namespace
}  // namespace shardplan::solvers
