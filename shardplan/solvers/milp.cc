// The linear program is built column by column in `Program`; `solve_milp` runs CBC on it and takes
// what CBC says with a grain of salt: every assignment is evaluated again, and the bound is lowered
// by CBC's tolerances.
#include "shardplan/solvers/milp.h"

#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/cbc_run.h"
#include "shardplan/solvers/feasibility.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-6;  // of what CBC claims, relative

/// The columns and rows of a problem. Costs and rows are scaled to sizes that CBC's absolute
/// tolerances are meant for.
class Program {
 public:
  explicit Program(const ConstrainedProblem& problem) : problem_(problem) {
    scale_costs();
    add_choices();
    for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
      add_factor(f);
    }
    for (std::size_t r = 0; r < problem.rows.size(); ++r) {
      add_memory(r);
    }
  }

  void load(OsiClpSolverInterface& solver) const {
    const CoinPackedMatrix matrix(false,
                                  row_index_.data(),
                                  column_index_.data(),
                                  element_.data(),
                                  static_cast<CoinBigIndex>(element_.size()));
    CoinPackedMatrix whole = matrix;
    whole.setDimensions(static_cast<int>(row_low_.size()), static_cast<int>(cost_.size()));
    const std::vector<double> low(cost_.size(), 0);
    solver.loadProblem(
        whole, low.data(), upper_.data(), cost_.data(), row_low_.data(), row_high_.data());
    for (int column = 0; column < choices_; ++column) {
      solver.setInteger(column);
    }
  }

  [[nodiscard]] std::vector<int> decode(const double* values) const {
    std::vector<int> choice(first_.size(), 0);
    for (std::size_t v = 0; v < first_.size(); ++v) {
      const double* begin = values + first_[v];
      const auto size = static_cast<std::ptrdiff_t>(problem_.objective.unary[v]->size());
      choice[v] = static_cast<int>(std::max_element(begin, begin + size) - begin);
    }
    return choice;
  }

  /// Of CBC's objective, in the problem's own unit.
  [[nodiscard]] double unscaled(double objective) const { return objective / cost_scale_; }

 private:
  /// The costs of the choices that are cheapest one by one become 1e4.
  void scale_costs() {
    double total = 0;
    double largest = 0;
    const auto look_at = [&](const CostTable& table, bool sum) {
      double least = kInfinity;
      for (const double x : *table) {
        if (std::isfinite(x)) {
          least = std::min(least, std::abs(x));
          largest = std::max(largest, std::abs(x));
        }
      }
      total += sum && std::isfinite(least) ? least : 0;
    };
    for (const CostTable& table : problem_.objective.unary) {
      look_at(table, true);
    }
    for (const CostNetwork::Factor& factor : problem_.objective.factors) {
      look_at(factor.cost, false);
    }
    constexpr double kTarget = 1e4;
    const double size = std::max(total, largest);
    cost_scale_ = size > 0 ? kTarget / size : 1;
  }

  int add_column(double cost) {
    cost_.push_back(std::isfinite(cost) ? cost * cost_scale_ : 0);
    upper_.push_back(std::isfinite(cost) ? 1 : 0);
    return static_cast<int>(cost_.size()) - 1;
  }

  int add_row(double low, double high) {
    row_low_.push_back(low);
    row_high_.push_back(high);
    return static_cast<int>(row_low_.size()) - 1;
  }

  void add_element(int row, int column, double value) {
    row_index_.push_back(row);
    column_index_.push_back(column);
    element_.push_back(value);
  }

  void add_choices() {
    for (const CostTable& table : problem_.objective.unary) {
      first_.push_back(static_cast<int>(cost_.size()));
      const int one = add_row(1, 1);
      for (const double cost : *table) {
        add_element(one, add_column(cost), 1);
      }
    }
    choices_ = static_cast<int>(cost_.size());
  }

  void add_factor(std::size_t f) {
    const CostNetwork::Factor& factor = problem_.objective.factors[f];
    factor_first_.push_back(static_cast<int>(cost_.size()));
    for (const double cost : *factor.cost) {
      add_column(cost);
    }
    std::size_t stride = factor.cost->size();
    for (const int v : factor.scope) {
      const auto variable = static_cast<std::size_t>(v);
      const std::size_t size = problem_.objective.unary[variable]->size();
      stride /= size;
      const int rows = static_cast<int>(row_low_.size());
      for (std::size_t s = 0; s < size; ++s) {
        add_element(add_row(0, 0), first_[variable] + static_cast<int>(s), -1);
      }
      for (std::size_t i = 0; i < factor.cost->size(); ++i) {
        add_element(rows + static_cast<int>(i / stride % size),
                    factor_first_.back() + static_cast<int>(i),
                    1);
      }
    }
  }

  void add_memory(std::size_t r) {
    const ConstrainedProblem::Row& row = problem_.rows[r];
    double largest = 0;
    const auto look_at = [&](const CostTable& table) {
      for (std::size_t i = 0; table && i < table->size(); ++i) {
        largest = std::max(largest, std::abs((*table)[i]));
      }
    };
    std::for_each(row.unary.begin(), row.unary.end(), look_at);
    std::for_each(row.factors.begin(), row.factors.end(), look_at);
    const double scale = largest > 0 ? 1 / largest : 1;
    const int index = add_row(-COIN_DBL_MAX, (row.limit - row.constant) * scale);
    const auto add = [&](const CostTable& table, int first) {
      for (std::size_t i = 0; table && i < table->size(); ++i) {
        if ((*table)[i] != 0) {
          add_element(index, first + static_cast<int>(i), (*table)[i] * scale);
        }
      }
    };
    for (std::size_t v = 0; v < row.unary.size(); ++v) {
      add(row.unary[v], first_[v]);
    }
    for (std::size_t f = 0; f < row.factors.size(); ++f) {
      add(row.factors[f], factor_first_[f]);
    }
  }

  const ConstrainedProblem& problem_;
  double cost_scale_ = 1;
  int choices_ = 0;
  std::vector<int> first_;         ///< by variable: its first column
  std::vector<int> factor_first_;  ///< by factor
  std::vector<double> cost_;
  std::vector<double> upper_;
  std::vector<double> row_low_;
  std::vector<double> row_high_;
  std::vector<int> row_index_;
  std::vector<int> column_index_;
  std::vector<double> element_;
};

/// CBC knows no problem without columns.
Solution without_choices(const ConstrainedProblem& problem, Solution solution) {
  measure(problem, solution);
  solution.status =
      is_feasible(problem, solution) ? SolveStatus::kOptimal : SolveStatus::kInfeasible;
  solution.lower_bound = kInfinity;
  if (solution.status == SolveStatus::kOptimal) {
    solution.lower_bound = solution.objective;
  }
  return solution;
}

Solution solve_milp(const ConstrainedProblem& problem, const SolveOptions& options) {
  Solution solution;
  solution.lower_bound = -kInfinity;
  solution.multiplier.assign(problem.rows.size(), 0);
  if (problem.objective.unary.empty()) {
    return without_choices(problem, solution);
  }
  const double gap = std::max(options.gap, kTolerance);
  OsiClpSolverInterface solver;
  const Program program(problem);
  solver.messageHandler()->setLogLevel(0);
  program.load(solver);
  const Budget budget(options);
  const CbcRun run = run_cbc(solver, options, budget, gap / 2);
  if (run.finished && run.infeasible) {
    solution.status = SolveStatus::kInfeasible;
    solution.lower_bound = kInfinity;
    return solution;
  }
  if (!run.finished) {
    solution.limit = budget.limit();
  }
  if (!run.values.empty()) {
    solution.choice = program.decode(run.values.data());
    measure(problem, solution);
    if (is_feasible(problem, solution)) {
      solution.status = SolveStatus::kFeasible;
    }
  }
  double bound = program.unscaled(run.bound);
  if (run.finished && solution.status == SolveStatus::kFeasible) {
    // The search has proven its gap; its "best possible" may claim more.
    bound = std::min(bound, solution.objective - gap / 2 * std::abs(solution.objective));
  }
  if (std::isfinite(bound) && std::abs(bound) < COIN_DBL_MAX) {
    solution.lower_bound = bound - kTolerance / 2 * std::abs(bound);
  }
  conclude(solution, std::max(gap, 2 * kTolerance));
  return solution;
}

}  // namespace

SolverInfo milp_solver() {
  return {"milp",
          "Liu et al., MAP, arXiv 2302.02599; Forrest, Lougee-Heimer, CBC",
          "mixed-integer linear program, by CBC",
          solve_milp};
}

}  // namespace shardplan::solvers
