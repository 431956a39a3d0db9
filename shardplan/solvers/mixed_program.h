#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// A mixed-integer linear program: minimise the columns' costs under the rows.
struct MixedProgram {
  struct Column {
    double cost = 0;
    double lower = 0;
    double upper = std::numeric_limits<double>::infinity();
    bool integer = false;
  };
  struct Row {
    std::vector<std::pair<int, double>> terms{};  ///< column and coefficient, each column once
    double lower = -std::numeric_limits<double>::infinity();
    double upper = std::numeric_limits<double>::infinity();
  };
  std::vector<Column> columns{};
  std::vector<Row> rows{};

  /// Appends a column, or a row, and returns its number.
  int add(const Column& column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
  void add(Row row) { rows.push_back(std::move(row)); }
};

struct MixedSolution {
  SolveStatus status = SolveStatus::kUnknown;
  SolveLimit limit = SolveLimit::kNone;
  double objective = std::numeric_limits<double>::infinity();
  double lower_bound = -std::numeric_limits<double>::infinity();
  std::vector<double> values{};  ///< of the best solution, integers rounded; empty: none was found
};

/// Solves by CBC, to a millionth at best (its tolerances). Scale costs and rows to about 1.
[[nodiscard]] MixedSolution solve_mixed(const MixedProgram& program, const SolveOptions& options);

}  // namespace shardplan::solvers
