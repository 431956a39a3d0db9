#pragma once

#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// A problem without choices that some optimum does not need.
struct Presolved {
  ConstrainedProblem problem{};
  std::vector<std::vector<int>> kept{};  ///< by variable: the choices that stay, ascending

  /// An assignment of `problem` in the choices of the problem that it came from.
  [[nodiscard]] std::vector<int> original(const std::vector<int>& choice) const;
  /// How many choices were left out.
  [[nodiscard]] std::size_t left_out(const ConstrainedProblem& from) const;
};

/// Leaves out dominated choices: b dominates a choice a of the same variable if changing a to b
/// raises neither the objective nor any row, whatever the neighbours choose (own cost plus the
/// largest rise of each incident factor is at most 0; Goldstein's criterion, 1994). Of choices that
/// are equal in this sense the first stays. Variables one after the other, each on what is left of
/// its neighbours' choices; variables whose tables look alike share the work. Spends at most about
/// `max_work` comparisons; what does not fit is left as it is.
[[nodiscard]] Presolved presolve(const ConstrainedProblem& problem, double max_work);

}  // namespace shardplan::solvers
