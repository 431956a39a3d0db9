#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// An assignment that changes one variable at a time, with its objective and usage kept up to date:
/// a change costs the factors of the variable. Forbidden entries count as `forbidden()` each, more
/// than any feasible objective. Sums drift by rounding; reset() makes them exact. Keeps a reference
/// to the problem.
class Assignment {
 public:
  explicit Assignment(const ConstrainedProblem& problem);
  Assignment(const Assignment&) = delete;
  Assignment& operator=(const Assignment&) = delete;

  void reset(std::vector<int> choice);
  [[nodiscard]] const std::vector<int>& choice() const { return choice_; }
  [[nodiscard]] double objective() const { return objective_; }
  [[nodiscard]] const std::vector<double>& usage() const { return usage_; }
  [[nodiscard]] double forbidden() const { return forbidden_; }

  /// What each choice of a variable would add to the objective and, row by row, to the usage (both
  /// 0 for its present choice). `usage[r]` holds one number a choice.
  struct Changes {
    std::vector<double> objective{};
    std::vector<std::vector<double>> usage{};
  };
  void changes(int variable, Changes& out) const;
  void change(int variable, int to);

  /// Entries of tables that were read so far: a clock that is the same on every machine.
  [[nodiscard]] std::int64_t work() const { return work_; }

  [[nodiscard]] const std::vector<int>& neighbours(int variable) const {
    return neighbours_[static_cast<std::size_t>(variable)];
  }
  [[nodiscard]] int choices(int variable) const {
    return static_cast<int>(problem_.objective.unary[static_cast<std::size_t>(variable)]->size());
  }

 private:
  struct Incidence {
    std::size_t factor = 0;
    std::size_t stride = 0;  ///< of the variable in the factor's table
  };
  [[nodiscard]] static const std::vector<double>* finite(const CostTable& table,
                                                         double forbidden,
                                                         std::deque<std::vector<double>>& copies);

  const ConstrainedProblem& problem_;
  double forbidden_ = 0;
  std::deque<std::vector<double>> copies_;  ///< of tables with forbidden entries
  std::vector<const std::vector<double>*> unary_;
  std::vector<const std::vector<double>*> factor_;
  std::vector<std::vector<Incidence>> incidences_;  ///< by variable
  std::vector<std::vector<int>> neighbours_;
  std::vector<int> choice_;
  std::vector<std::size_t> index_;  ///< by factor: the entry in use
  double objective_ = 0;
  std::vector<double> usage_;
  Changes scratch_;
  mutable std::int64_t work_ = 0;
};

}  // namespace shardplan::solvers
