#pragma once

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "shardplan/solvers/assignment.h"
#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Iterated local search (Lourenço, Martin, Stützle 2003): single and pair moves to a local optimum
/// of the objective and the priced excess of the rows, then a kick to a few neighbouring variables.
/// Prices rise while rows are violated and fall while they are met. Keeps a reference to the
/// problem.
class LocalSearch {
 public:
  struct Found {
    double objective = 0;
    std::vector<int> choice{};
  };

  LocalSearch(const ConstrainedProblem& problem, std::uint64_t seed);

  /// Takes an assignment as it is.
  void offer(std::vector<int> choice);

  /// Searches from `start`, with first prices of the rows near `multiplier`, for `kicks` kicks;
  /// ends early when the best is down to `target`.
  void run(std::vector<int> start,
           const std::vector<double>& multiplier,
           std::int64_t kicks,
           std::int64_t work,
           double target,
           const Budget& budget);

  /// Searches from the best of `starts`, then from what disturbing the best gives.
  void run_from(const std::vector<std::vector<int>>& starts,
                const std::vector<double>& multiplier,
                int restarts,
                std::int64_t work,
                double target,
                const Budget& budget);

  /// The best feasible assignment of all runs.
  [[nodiscard]] const std::optional<Found>& best() const { return best_; }
  /// Without one, an assignment of little excess.
  [[nodiscard]] const std::vector<int>& closest() const { return closest_; }

 private:
  [[nodiscard]] double priced(double objective, const std::vector<double>& usage) const;
  [[nodiscard]] double priced_change(const Assignment::Changes& changes, std::size_t choice) const;
  [[nodiscard]] bool feasible() const;
  bool improve_single(int variable);
  bool improve_pair(int first, int second);
  void descend(std::vector<int> waiting, const Budget& budget);
  [[nodiscard]] std::vector<int> kick();
  void move(int variable, int to);
  void keep();
  void adjust_prices();

  const ConstrainedProblem& problem_;
  std::mt19937_64 random_;
  Assignment now_;
  std::vector<int> movable_;                ///< variables with a choice
  std::vector<std::pair<int, int>> trail_;  ///< moves since home: variable, choice before
  std::vector<double> price_;
  std::optional<Found> best_;
  std::vector<int> closest_;
  double closest_excess_ = 0;
  Assignment::Changes changes_;
  Assignment::Changes second_;
};

[[nodiscard]] SolverInfo local_search_solver();

}  // namespace shardplan::solvers
