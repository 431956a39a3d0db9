#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// What random problems look like.
struct RandomShape {
  enum Kind { kTree, kChain, kGrid, kDense, kIslands };
  Kind kind = kChain;
  int variables = 7;
  int most_choices = 4;
  int rows = 1;
  double forbidden = 0;    ///< share of entries of factors
  bool has_ties = false;   ///< few distinct costs
  double tightness = 0.5;  ///< of the limits: 0 at the least sum of the tables, 1 at the largest
};

class RandomProblem {
 public:
  RandomProblem(const RandomShape& shape, std::mt19937& rng) : shape_(shape), rng_(rng) {}

  ConstrainedProblem make() {
    for (int v = 0; v < shape_.variables; ++v) {
      problem_.objective.unary.push_back(
          table(static_cast<std::size_t>(uniform(1, shape_.most_choices)), 50, 0));
    }
    add_edges();
    for (int r = 0; r < shape_.rows; ++r) {
      add_row();
    }
    return std::move(problem_);
  }

 private:
  int uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  CostTable table(std::size_t size, int largest, double forbidden) {
    std::vector<double> values(size);
    for (double& value : values) {
      value = uniform(0, shape_.has_ties ? 3 : largest * 1000) / (shape_.has_ties ? 1.0 : 1000.0);
      if (std::bernoulli_distribution(forbidden)(rng_)) {
        value = std::numeric_limits<double>::infinity();
      }
    }
    return std::make_shared<const std::vector<double>>(std::move(values));
  }

  void edge(int a, int b) {
    const std::size_t size = problem_.objective.unary[static_cast<std::size_t>(a)]->size() *
                             problem_.objective.unary[static_cast<std::size_t>(b)]->size();
    problem_.objective.factors.push_back({{a, b}, table(size, 30, shape_.forbidden)});
  }

  void add_edges() {
    const int n = shape_.variables;
    for (int v = 1; v < n; ++v) {
      switch (shape_.kind) {
        case RandomShape::kTree:
          edge(uniform(0, v - 1), v);
          break;
        case RandomShape::kChain:
          edge(v - 1, v);
          if (v > 2 && uniform(0, 2) == 0) {
            edge(v, uniform(0, v - 2));
          }
          break;
        case RandomShape::kGrid:
          if (v % 3 != 0) {
            edge(v - 1, v);
          }
          if (v >= 3) {
            edge(v, v - 3);
          }
          break;
        case RandomShape::kDense:
          for (int w = 0; w < v; ++w) {
            if (uniform(0, 3) != 0) {
              edge(w, v);
            }
          }
          break;
        case RandomShape::kIslands:
          if (uniform(0, 2) == 0) {
            edge(v - 1, v);
          }
          break;
      }
    }
    if (n > 2 && uniform(0, 3) == 0) {
      const std::size_t size = problem_.objective.unary[0]->size() *
                               problem_.objective.unary[1]->size() *
                               problem_.objective.unary[2]->size();
      problem_.objective.factors.push_back({{2, 0, 1}, table(size, 20, 0)});
    }
  }

  void add_row() {
    ConstrainedProblem::Row row;
    double least = row.constant = uniform(-3, 5);
    double most = least;
    const auto part = [&](const CostTable& like, int largest, int one_in) -> CostTable {
      if (uniform(1, one_in) == 1) {
        return nullptr;
      }
      CostTable values = table(like->size(), largest, 0);
      least += *std::min_element(values->begin(), values->end());
      most += *std::max_element(values->begin(), values->end());
      return values;
    };
    for (const CostTable& unary : problem_.objective.unary) {
      row.unary.push_back(part(unary, 40, 8));
    }
    for (const CostNetwork::Factor& factor : problem_.objective.factors) {
      row.factors.push_back(part(factor.cost, 10, 2));
    }
    row.limit = least + shape_.tightness * (most - least);
    problem_.rows.push_back(std::move(row));
  }

  const RandomShape shape_;
  std::mt19937& rng_;
  ConstrainedProblem problem_;
};

/// Calls visit(choice) for every assignment.
template <typename Visit>
void for_each_assignment(const CostNetwork& network, const Visit& visit) {
  std::vector<int> choice(network.unary.size(), 0);
  while (true) {
    visit(choice);
    std::size_t v = 0;
    while (v < choice.size() && ++choice[v] == static_cast<int>(network.unary[v]->size())) {
      choice[v++] = 0;
    }
    if (v == choice.size()) {
      return;
    }
  }
}

/// The obviously right twin: least objective over every assignment within the rows.
inline std::optional<double> brute_force(const ConstrainedProblem& problem) {
  std::optional<double> best;
  for_each_assignment(problem.objective, [&](const std::vector<int>& choice) {
    const double cost = evaluate(problem.objective, choice);
    bool feasible = cost < std::numeric_limits<double>::infinity();
    for (const ConstrainedProblem::Row& row : problem.rows) {
      feasible =
          feasible && evaluate(problem, row, choice) <= row.limit + 1e-12 * std::abs(row.limit);
    }
    if (feasible && (!best || cost < *best)) {
      best = cost;
    }
  });
  return best;
}

/// Least over all assignments of the largest excess over a limit.
inline std::optional<double> brute_force_min_max(const ConstrainedProblem& problem) {
  std::optional<double> best;
  for_each_assignment(problem.objective, [&](const std::vector<int>& choice) {
    if (evaluate(problem.objective, choice) < std::numeric_limits<double>::infinity()) {
      double excess = -std::numeric_limits<double>::infinity();
      for (const ConstrainedProblem::Row& row : problem.rows) {
        excess = std::max(excess, evaluate(problem, row, choice) - row.limit);
      }
      best = std::min(best.value_or(excess), excess);
    }
  });
  return best;
}

}  // namespace shardplan::solvers
