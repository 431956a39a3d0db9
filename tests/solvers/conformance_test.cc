// What every solver of the registry has to keep.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "shardplan/solvers/registry.h"
#include "tests/solvers/random_problems.h"

namespace shardplan::solvers {
namespace {

class Conformance : public ::testing::TestWithParam<SolverInfo> {
 protected:
  static Solution solve(const ConstrainedProblem& problem, const SolveOptions& options = {}) {
    return GetParam().solve(problem, options);
  }
  static bool found(const Solution& solution) {
    return solution.status == SolveStatus::kOptimal || solution.status == SolveStatus::kFeasible;
  }
};

bool meets(double usage, double limit) {
  return usage <= limit + 1e-9 * std::abs(limit);
}

TEST_P(Conformance, SaysNothingThatIsNotTrue) {
  RandomProblems problems(11);
  const int rounds = GetParam().name == "milp" ? 60 : 150;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const ConstrainedProblem problem = problems.next(8);
    const std::optional<double> optimum = brute_force(problem);
    const Solution solution = solve(problem);
    if (!optimum) {
      ASSERT_FALSE(found(solution));
      continue;
    }
    ASSERT_NE(solution.status, SolveStatus::kInfeasible);
    ASSERT_LE(solution.lower_bound, *optimum + 1e-9 * std::abs(*optimum));
    if (!found(solution)) {
      continue;
    }
    ASSERT_EQ(solution.choice.size(), problem.objective.unary.size());
    ASSERT_EQ(solution.objective, evaluate(problem.objective, solution.choice));
    ASSERT_GE(solution.objective, *optimum - 1e-9 * std::abs(*optimum));
    ASSERT_EQ(solution.usage.size(), problem.rows.size());
    for (std::size_t r = 0; r < problem.rows.size(); ++r) {
      ASSERT_EQ(solution.usage[r], evaluate(problem, problem.rows[r], solution.choice));
      ASSERT_TRUE(meets(solution.usage[r], problem.rows[r].limit));
    }
    if (solution.status == SolveStatus::kOptimal) {
      ASSERT_LE(solution.objective, *optimum + 1.1e-4 * std::abs(*optimum));
    }
  }
}

TEST_P(Conformance, SolvesWhatHasNoVariablesOrNoChoice) {
  const ConstrainedProblem nothing;
  const Solution empty = solve(nothing);
  EXPECT_EQ(empty.status, SolveStatus::kOptimal);
  EXPECT_EQ(empty.objective, 0);
  ConstrainedProblem one;
  one.objective.unary = {std::make_shared<const std::vector<double>>(1, 3.5)};
  EXPECT_EQ(solve(one).objective, 3.5);
  one.rows.push_back({{one.objective.unary[0]}, {}, 1, 4.5});
  EXPECT_EQ(solve(one).status, SolveStatus::kOptimal);
  one.rows[0].limit = 4;
  EXPECT_FALSE(found(solve(one)));
}

TEST_P(Conformance, GivesTheSameAnswerForTheSameSeed) {
  RandomProblems problems(12);
  SolveOptions options;
  options.seed = 5;
  for (int round = 0; round < 10; ++round) {
    const ConstrainedProblem problem = problems.next(20);
    const Solution first = solve(problem, options);
    const Solution second = solve(problem, options);
    EXPECT_EQ(first.status, second.status);
    EXPECT_EQ(first.choice, second.choice);
    EXPECT_EQ(first.lower_bound, second.lower_bound);
  }
}

/// A grid of 12 by 12 with three choices, rows that bind: too much for a moment.
ConstrainedProblem hard_problem() {
  constexpr int kSide = 12;
  std::mt19937_64 random(13);
  const auto table = [&](std::size_t size) {
    std::vector<double> values(size);
    for (double& value : values) {
      value = static_cast<double>(random() % 1000);
    }
    return std::make_shared<const std::vector<double>>(std::move(values));
  };
  ConstrainedProblem problem;
  ConstrainedProblem::Row row;
  for (int v = 0; v < kSide * kSide; ++v) {
    problem.objective.unary.push_back(table(3));
    row.unary.push_back(table(3));
  }
  for (int v = 0; v < kSide * kSide; ++v) {
    if (v % kSide + 1 < kSide) {
      problem.objective.factors.push_back({{v, v + 1}, table(9)});
    }
    if (v + kSide < kSide * kSide) {
      problem.objective.factors.push_back({{v, v + kSide}, table(9)});
    }
  }
  row.factors.resize(problem.objective.factors.size());
  row.limit = 350 * kSide * kSide;
  problem.rows.assign(2, row);
  std::rotate(problem.rows[1].unary.begin(),
              problem.rows[1].unary.begin() + 1,
              problem.rows[1].unary.end());
  return problem;
}

double seconds_of(const ConstrainedProblem& problem,
                  const SolverInfo& solver,
                  const SolveOptions& options,
                  Solution& solution) {
  const auto start = std::chrono::steady_clock::now();
  solution = solver.solve(problem, options);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_P(Conformance, KeepsItsTimeLimit) {
  SolveOptions options;
  options.gap = 0;
  options.time_limit = 0.3;
  Solution solution;
  // Much more than the limit only where the machine is busy.
  EXPECT_LT(seconds_of(hard_problem(), GetParam(), options, solution), 5);
  if (found(solution)) {
    EXPECT_LE(solution.lower_bound, solution.objective);
  }
}

TEST_P(Conformance, StopsWhenAsked) {
  const std::atomic<bool> asked{true};
  SolveOptions options;
  options.gap = 0;
  options.control.interrupt = &asked;
  Solution solution;
  EXPECT_LT(seconds_of(hard_problem(), GetParam(), options, solution), 5);
  EXPECT_NE(solution.status, SolveStatus::kInfeasible);
}

INSTANTIATE_TEST_SUITE_P(Solvers,
                         Conformance,
                         ::testing::ValuesIn(registry()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Registry, FindsByNameAndSuggests) {
  for (const SolverInfo& solver : registry()) {
    const Result<const SolverInfo*> found = find_solver(std::string(solver.name));
    ASSERT_TRUE(found);
    EXPECT_EQ((*found)->name, solver.name);
    EXPECT_FALSE(solver.reference.empty());
  }
  const Result<const SolverInfo*> unknown = find_solver("exakt");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().text().find("did you mean 'exact'?"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::solvers
