#include "shardplan/solvers/mini_buckets.h"

#include <gtest/gtest.h>

#include <random>

#include "shardplan/solvers/elimination.h"
#include "shardplan/solvers/multipliers.h"
#include "tests/solvers/random_problems.h"

namespace shardplan::solvers {
namespace {

/// objective + Σ multiplier · (row − limit), by the definition.
double relaxed_cost(const ConstrainedProblem& problem,
                    const std::vector<double>& multiplier,
                    const std::vector<int>& choice) {
  double total = evaluate(problem.objective, choice);
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    total += multiplier[r] * (evaluate(problem, problem.rows[r], choice) - problem.rows[r].limit);
  }
  return total;
}

std::vector<int> random_choice(const ConstrainedProblem& problem, std::mt19937_64& random) {
  std::vector<int> choice;
  choice.reserve(problem.objective.unary.size());
  for (const CostTable& table : problem.objective.unary) {
    choice.push_back(static_cast<int>(random() % table->size()));
  }
  return choice;
}

TEST(MiniBuckets, AreEliminationWhereNothingIsSplit) {
  RandomProblems problems(1);
  Elimination elimination;
  for (int round = 0; round < 300; ++round) {
    const ConstrainedProblem problem = problems.next(9);
    MiniBuckets relaxation(problem, std::size_t{1} << 20U);
    EXPECT_FALSE(relaxation.split());
    const double exact = elimination.minimise(problem.objective).solution.cost;
    const double bound = relaxation.evaluate(std::vector<double>(problem.rows.size(), 0)).value;
    if (std::isfinite(exact)) {
      ASSERT_NEAR(bound, exact, 1e-9) << "round " << round;
    } else {
      ASSERT_EQ(bound, exact);
    }
  }
}

TEST(MiniBuckets, AreBelowEveryAssignmentHoweverSmallTheClusters) {
  RandomProblems problems(2);
  std::mt19937_64 random(3);
  int split = 0;
  for (int round = 0; round < 300; ++round) {
    const ConstrainedProblem problem = problems.next(12);
    for (const std::size_t largest : {1U, 8U, 40U}) {
      MiniBuckets relaxation(problem, largest);
      split += relaxation.split() ? 1 : 0;
      std::vector<double> multiplier;
      for (std::size_t r = 0; r < problem.rows.size(); ++r) {
        multiplier.push_back(static_cast<double>(random() % 8) / 4);
      }
      const MiniBuckets::Bound bound = relaxation.evaluate(multiplier);
      for (int k = 0; k < 50; ++k) {
        const std::vector<int> choice = random_choice(problem, random);
        ASSERT_LE(bound.value, relaxed_cost(problem, multiplier, choice) + 1e-9);
      }
    }
  }
  EXPECT_GT(split, 200);
}

TEST(MiniBuckets, IncrementsAddUpToTheRelaxedCost) {
  RandomProblems problems(4);
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const ConstrainedProblem problem = problems.next(10);
    MiniBuckets relaxation(problem, 16);
    const std::vector<double> multiplier(problem.rows.size(), 0.5);
    const double root = relaxation.evaluate(multiplier).value;
    const std::vector<int> choice = random_choice(problem, random);
    const double expected = relaxed_cost(problem, multiplier, choice);
    if (!std::isfinite(root) || !std::isfinite(expected)) {
      continue;
    }
    double total = root;
    std::vector<double> increments;
    for (std::size_t step = 0; step < relaxation.order().size(); ++step) {
      std::vector<int> context;
      for (const int v : relaxation.context(step)) {
        context.push_back(choice[static_cast<std::size_t>(v)]);
      }
      relaxation.increments(step, context, increments);
      const auto own = static_cast<std::size_t>(relaxation.order()[step]);
      const double increment = increments[static_cast<std::size_t>(choice[own])];
      ASSERT_GE(increment, -1e-9);
      total += increment;
    }
    ASSERT_NEAR(total, expected, 1e-9) << "round " << round;
  }
}

/// value(other) <= value + (usage − limit) · (other − multiplier)
TEST(MiniBuckets, UsageIsASupergradient) {
  RandomProblems problems(6);
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const ConstrainedProblem problem = problems.next(10);
    MiniBuckets relaxation(problem, 16);
    std::vector<double> at;
    std::vector<double> other;
    for (std::size_t r = 0; r < problem.rows.size(); ++r) {
      at.push_back(static_cast<double>(random() % 100) / 20);
      other.push_back(static_cast<double>(random() % 100) / 20);
    }
    const MiniBuckets::Bound bound = relaxation.evaluate(at);
    if (!std::isfinite(bound.value)) {
      continue;
    }
    double plane = bound.value;
    for (std::size_t r = 0; r < at.size(); ++r) {
      plane += (bound.usage[r] - problem.rows[r].limit) * (other[r] - at[r]);
    }
    ASSERT_LE(relaxation.evaluate(other).value, plane + 1e-7) << "round " << round;
  }
}

TEST(Multipliers, ReachTheLargestBound) {
  RandomProblems problems(8);
  std::mt19937_64 random(9);
  const SolveOptions options;
  const Budget budget(options);
  for (int round = 0; round < 200; ++round) {
    const ConstrainedProblem problem = problems.next(8);
    MiniBuckets relaxation(problem, std::size_t{1} << 20U);
    const Multipliers best = best_multipliers(problem, relaxation, {}, 300, 1e-9, budget);
    const std::optional<double> optimum = brute_force(problem);
    if (!optimum) {
      continue;
    }
    ASSERT_LE(best.bound, *optimum + 1e-9 * std::abs(*optimum)) << "round " << round;
    ASSERT_EQ(best.value.size(), problem.rows.size());
    for (int k = 0; k < 30; ++k) {
      std::vector<double> other = best.value;
      for (double& multiplier : other) {
        multiplier = std::max(0.0, multiplier + (static_cast<double>(random() % 200) - 100) / 500);
      }
      ASSERT_LE(relaxation.evaluate(other).value, best.bound + 1e-5) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace shardplan::solvers
