#include "shardplan/solvers/mixed_program.h"

#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cmath>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/cbc_run.h"

namespace shardplan::solvers {
namespace {

constexpr double kTolerance = 1e-6;  // of what CBC claims, relative

void load(const MixedProgram& program, OsiClpSolverInterface& solver) {
  std::vector<int> rows;
  std::vector<int> columns;
  std::vector<double> elements;
  std::vector<double> row_low;
  std::vector<double> row_high;
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    for (const auto& [column, element] : program.rows[r].terms) {
      rows.push_back(static_cast<int>(r));
      columns.push_back(column);
      elements.push_back(element);
    }
    row_low.push_back(std::max(program.rows[r].lower, -COIN_DBL_MAX));
    row_high.push_back(std::min(program.rows[r].upper, COIN_DBL_MAX));
  }
  std::vector<double> cost;
  std::vector<double> low;
  std::vector<double> high;
  for (const MixedProgram::Column& column : program.columns) {
    cost.push_back(column.cost);
    low.push_back(std::max(column.lower, -COIN_DBL_MAX));
    high.push_back(std::min(column.upper, COIN_DBL_MAX));
  }
  CoinPackedMatrix matrix(false,
                          rows.data(),
                          columns.data(),
                          elements.data(),
                          static_cast<CoinBigIndex>(elements.size()));
  matrix.setDimensions(static_cast<int>(row_low.size()), static_cast<int>(cost.size()));
  solver.loadProblem(matrix, low.data(), high.data(), cost.data(), row_low.data(), row_high.data());
  for (std::size_t c = 0; c < program.columns.size(); ++c) {
    if (program.columns[c].integer) {
      solver.setInteger(static_cast<int>(c));
    }
  }
}

}  // namespace

MixedSolution solve_mixed(const MixedProgram& program, const SolveOptions& options) {
  MixedSolution solution;
  const double gap = std::max(options.gap, kTolerance);
  OsiClpSolverInterface solver;
  solver.messageHandler()->setLogLevel(0);
  load(program, solver);
  const Budget budget(options);
  const CbcRun run = run_cbc(solver, options, budget, gap);
  if (!run.finished) {
    solution.limit = budget.limit();
  }
  if (run.finished && run.infeasible) {
    solution.status = SolveStatus::kInfeasible;
    return solution;
  }
  if (!run.values.empty()) {
    solution.values = run.values;
    solution.objective = 0;
    for (std::size_t c = 0; c < solution.values.size(); ++c) {
      double& value = solution.values[c];
      value = program.columns[c].integer ? std::round(value) : value;
      solution.objective += program.columns[c].cost * value;
    }
    solution.status = run.finished ? SolveStatus::kOptimal : SolveStatus::kFeasible;
  }
  if (std::isfinite(run.bound) && std::abs(run.bound) < COIN_DBL_MAX) {
    solution.lower_bound = run.bound - kTolerance * std::abs(run.bound);
  }
  if (run.finished && !run.values.empty()) {
    solution.lower_bound =
        std::min(solution.lower_bound, solution.objective * (1 - gap) - kTolerance);
  }
  return solution;
}

}  // namespace shardplan::solvers
