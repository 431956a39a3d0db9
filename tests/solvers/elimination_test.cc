#include "shardplan/solvers/elimination.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace shardplan::solvers {
namespace {

CostTable table(std::vector<double> values) {
  return std::make_shared<const std::vector<double>>(std::move(values));
}

double cost_of(const PairwiseProblem& problem, const std::vector<int>& choice) {
  double total = 0;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    total += (*problem.unary[v])[static_cast<std::size_t>(choice[v])];
  }
  for (const auto& edge : problem.edges) {
    const std::size_t columns = problem.unary[static_cast<std::size_t>(edge.b)]->size();
    total +=
        (*edge.cost)[static_cast<std::size_t>(choice[static_cast<std::size_t>(edge.a)]) * columns +
                     static_cast<std::size_t>(choice[static_cast<std::size_t>(edge.b)])];
  }
  return total;
}

/// The obviously right twin: tries every assignment.
double brute_force(const PairwiseProblem& problem) {
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

PairwiseProblem random_problem(std::mt19937& rng) {
  std::uniform_int_distribution<int> nodes(1, 7);
  std::uniform_int_distribution<int> choices(1, 4);
  std::uniform_int_distribution<int> cost(0, 20);
  std::bernoulli_distribution forbidden(0.05);
  const int n = nodes(rng);
  PairwiseProblem problem;
  for (int v = 0; v < n; ++v) {
    std::vector<double> unary(static_cast<std::size_t>(choices(rng)));
    for (double& c : unary) {
      c = cost(rng);
    }
    problem.unary.push_back(table(std::move(unary)));
  }
  std::uniform_int_distribution<int> any(0, n - 1);
  const int edges = std::uniform_int_distribution<int>(0, 2 * n)(rng);
  for (int e = 0; e < edges; ++e) {
    const int a = any(rng);
    const int b = any(rng);
    std::vector<double> values(problem.unary[static_cast<std::size_t>(a)]->size() *
                               problem.unary[static_cast<std::size_t>(b)]->size());
    for (double& c : values) {
      c = forbidden(rng) ? std::numeric_limits<double>::infinity() : cost(rng);
    }
    problem.edges.push_back({a, b, table(std::move(values))});
  }
  return problem;
}

TEST(Elimination, EqualsBruteForceOnRandomProblems) {
  std::mt19937 rng(20230206);
  Elimination elimination;
  for (int round = 0; round < 2000; ++round) {
    const PairwiseProblem problem = random_problem(rng);
    const Elimination::Outcome outcome = elimination.minimise(problem);
    ASSERT_TRUE(outcome.solved);
    ASSERT_EQ(outcome.solution.cost, brute_force(problem)) << "round " << round;
    ASSERT_EQ(cost_of(problem, outcome.solution.choice), outcome.solution.cost);
  }
}

TEST(Elimination, AddsParallelEdgesInBothDirections) {
  PairwiseProblem problem;
  problem.unary = {table({0, 0}), table({0, 0})};
  problem.edges = {{0, 1, table({5, 1, 0, 9})}, {1, 0, table({5, 0, 1, 9})}};
  const auto outcome = Elimination().minimise(problem);
  EXPECT_EQ(outcome.solution.cost, 0 + 0);
  EXPECT_EQ(outcome.solution.choice, (std::vector<int>{1, 0}));
}

TEST(Elimination, SaysWhenAClusterIsTooLarge) {
  PairwiseProblem problem;
  problem.unary = {table({0, 0}), table({0, 0})};
  problem.edges = {{0, 1, table({1, 2, 3, 4})}};
  EXPECT_FALSE(Elimination().minimise(problem, 3).solved);
  EXPECT_TRUE(Elimination().minimise(problem, 4).solved);
}

TEST(Elimination, LongChainIsExact) {
  // Known by hand: staying at choice 0 costs 1 a node, every change costs 10.
  PairwiseProblem problem;
  const CostTable unary = table({1, 2});
  const CostTable edge = table({0, 10, 10, 0});
  for (int v = 0; v < 5000; ++v) {
    problem.unary.push_back(unary);
    if (v > 0) {
      problem.edges.push_back({v - 1, v, edge});
    }
  }
  EXPECT_EQ(Elimination().minimise(problem).solution.cost, 5000);
}

}  // namespace
}  // namespace shardplan::solvers
