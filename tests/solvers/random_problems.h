#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "random_problem.h"
#include "shardplan/solvers/cost_network.h"

// Small problems of every kind; their optimum by looking at everything is brute_force().
namespace shardplan::solvers {

class RandomProblems {
 public:
  explicit RandomProblems(std::uint64_t seed) : random_(seed) {}

  /// Up to `most` variables of one to four choices; chains with skips, single factors of one or
  /// three variables, parallel factors, forbidden and negative entries, up to three rows.
  ConstrainedProblem next(int most) {
    ConstrainedProblem problem;
    whole_ = random_() % 3 == 0;
    const int n = 1 + below(most);
    for (int v = 0; v < n; ++v) {
      problem.objective.unary.push_back(table(static_cast<std::size_t>(1 + below(4)), 10, false));
    }
    for (int v = 1; v < n; ++v) {
      add_factor(problem, {v - 1, v});
      if (v > 1 && below(3) == 0) {
        add_factor(problem, {v, below(v)});
      }
      if (v > 2 && below(4) == 0) {
        add_factor(problem, {v - 3, v, v - 1});
      }
    }
    if (below(4) == 0) {
      add_factor(problem, {below(n)});
    }
    const int rows = below(4);
    for (int r = 0; r < rows; ++r) {
      add_row(problem);
    }
    return problem;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  CostTable table(std::size_t size, double largest, bool forbid) {
    std::uniform_real_distribution<double> cost(below(8) == 0 ? -largest : 0, largest);
    std::vector<double> values(size);
    for (double& value : values) {
      value = whole_ ? std::round(cost(random_)) : cost(random_);
      if (forbid && below(8) == 0) {
        value = std::numeric_limits<double>::infinity();
      }
    }
    return std::make_shared<const std::vector<double>>(std::move(values));
  }

  CostTable bytes(std::size_t size) {
    std::vector<double> values(size);
    for (double& value : values) {
      value = below(30);
    }
    return std::make_shared<const std::vector<double>>(std::move(values));
  }

  void add_factor(ConstrainedProblem& problem, std::vector<int> scope) {
    std::size_t size = 1;
    for (const int v : scope) {
      size *= problem.objective.unary[static_cast<std::size_t>(v)]->size();
    }
    problem.objective.factors.push_back({std::move(scope), table(size, 10, below(5) == 0)});
  }

  void add_row(ConstrainedProblem& problem) {
    ConstrainedProblem::Row row;
    double least = 0;
    double most = 0;
    const auto add = [&](std::vector<CostTable>& tables, std::size_t size, int of_ten) {
      tables.push_back(below(10) < of_ten ? bytes(size) : nullptr);
      if (tables.back()) {
        const auto [low, high] = std::minmax_element(tables.back()->begin(), tables.back()->end());
        least += *low;
        most += *high;
      }
    };
    for (const CostTable& unary : problem.objective.unary) {
      add(row.unary, unary->size(), 9);
    }
    for (const CostNetwork::Factor& factor : problem.objective.factors) {
      add(row.factors, factor.cost->size(), 3);
    }
    row.constant = below(10);
    row.limit = row.constant + std::round(least + (most - least) * below(11) / 10 - 1);
    problem.rows.push_back(std::move(row));
  }

  std::mt19937_64 random_;
  bool whole_ = false;
};

}  // namespace shardplan::solvers
