#pragma once

#include <cstddef>
#include <vector>

namespace shardplan::solvers {

/// In which order the variables of a network are eliminated and what is joined when: a forest of
/// steps, children before parents. Every table is laid out in elimination order, the variable
/// eliminated first outermost, so that a step's own variable is the slowest dimension of all that
/// it joins and what it leaves needs no reordering.
struct Schedule {
  struct Step {
    int variable = -1;            ///< minimised out; -1: the step only joins its children
    std::vector<int> scope{};     ///< of what it leaves, in elimination order
    std::vector<int> factors{};   ///< joined here, by number
    std::vector<int> children{};  ///< steps whose results are joined here
    int parent = -1;
  };
  std::vector<Step> steps{};
  std::vector<int> position{};  ///< of each variable in the elimination order
  double largest_cluster = 0;   ///< entries of the largest join, its own variable included
  double total_entries = 0;     ///< of all joins

  /// Steps without a parent are not joined with each other unless `binary`.
  struct Options {
    bool binary = false;  ///< at most two children a step, and one last step over everything
  };
};

/// Variables with one choice must not appear in any scope. Greedy by least cluster, ties by level
/// (so that equal parts are eliminated side by side and stay equal), then by number; where that
/// gives large clusters, also by least fill, and the cheaper order is taken.
[[nodiscard]] Schedule make_schedule(const std::vector<int>& sizes,
                                     const std::vector<std::vector<int>>& scopes,
                                     const Schedule::Options& options);

}  // namespace shardplan::solvers
