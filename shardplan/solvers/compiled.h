#pragma once

#include <vector>

#include "shardplan/solvers/cost_network.h"
#include "shardplan/solvers/join.h"
#include "shardplan/solvers/schedule.h"
#include "shardplan/solvers/table_store.h"

namespace shardplan::solvers {

/// A problem made ready for elimination: variables with one choice are folded into constants,
/// tables are interned and laid out in elimination order.
struct Compiled {
  struct Factor {
    std::vector<int> scope{};  ///< not empty, in elimination order
    int cost = 0;              ///< table in the store
    int signature = 0;  ///< equal for factors with equal tables in the objective and all rows
  };
  std::vector<int> sizes{};
  std::vector<Factor> factors{};
  std::size_t rows = 0;
  std::vector<int> parts{};  ///< [factor * rows + r]: table of row r, or TableStore::kZeros
  std::vector<int> first_of_signature{};  ///< a factor with this signature
  double constant = 0;                    ///< of the objective; infinite: everything is forbidden
  std::vector<double> row_constant{};
  std::vector<double> limit{};  ///< of each row, rounding of sums allowed for
  Schedule schedule{};

  [[nodiscard]] int part(std::size_t factor, std::size_t row) const {
    return parts[factor * rows + row];
  }
  [[nodiscard]] std::size_t size(int variable) const {
    return static_cast<std::size_t>(sizes[static_cast<std::size_t>(variable)]);
  }
};

[[nodiscard]] Compiled compile(const ConstrainedProblem& problem,
                               TableStore& store,
                               const Schedule::Options& options);

/// Steps that join equal inputs in the same way form a class and are computed once.
struct StepClasses {
  std::vector<int> of_step{};
  std::vector<Join> joins{};      ///< by class, children before parents
  std::vector<int> first_step{};  ///< a step of each class
};

/// `factor_class`: by factor, equal for factors that hold equal tables.
[[nodiscard]] StepClasses classify(const Compiled& compiled, const std::vector<int>& factor_class);

/// Sum of a row over an assignment.
[[nodiscard]] std::vector<double> usage_of(const Compiled& compiled,
                                           const TableStore& store,
                                           const std::vector<int>& choice);

}  // namespace shardplan::solvers
