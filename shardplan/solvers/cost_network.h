#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace shardplan::solvers {

/// Costs of joint choices of some variables, row-major: the last variable's choice varies fastest.
/// Infinity forbids.
using CostTable = std::shared_ptr<const std::vector<double>>;

/// A cost network (weighted constraint network): minimise the sum of its tables over one choice for
/// each variable.
struct CostNetwork {
  struct Factor {
    std::vector<int> scope{};  ///< distinct variables, in the order of the table's dimensions
    CostTable cost{};          ///< factors over the same variables add up
  };
  std::vector<CostTable> unary{};  ///< one a variable; its size is the number of choices (>= 1)
  std::vector<Factor> factors{};
};

/// Index of an assignment into a factor's table.
[[nodiscard]] std::size_t table_index(const CostNetwork& network,
                                      const CostNetwork::Factor& factor,
                                      const std::vector<int>& choice);

/// A cost network with upper limits on sums of the same form. A null table counts as zeros.
struct ConstrainedProblem {
  struct Row {
    std::vector<CostTable> unary{};    ///< one a variable
    std::vector<CostTable> factors{};  ///< one a factor of the objective, of the same shape
    double constant = 0;
    double limit = 0;
  };
  CostNetwork objective{};
  std::vector<Row> rows{};
};

/// Sum of a row (or of the objective, with constant 0) for one assignment.
[[nodiscard]] double evaluate(const CostNetwork& network, const std::vector<int>& choice);
[[nodiscard]] double evaluate(const ConstrainedProblem& problem,
                              const ConstrainedProblem::Row& row,
                              const std::vector<int>& choice);

}  // namespace shardplan::solvers
