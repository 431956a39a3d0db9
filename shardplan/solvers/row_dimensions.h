#pragma once

#include <utility>
#include <vector>

#include "shardplan/solvers/compiled.h"

namespace shardplan::solvers {

/// How few usages a partial assignment must carry to tell whether it can still meet all rows.
///
/// Inside a step, rows with equal tables have equal usage and share one dimension. Rows that are
/// equal everywhere outside it matter only through the largest of their excesses and are replaced
/// by that. So the peaks of many blocks, or the prefixes of a chain, need two or three dimensions
/// instead of one a row.
struct RowDimensions {
  /// A usage as the sum of one term an input: a part table of a factor, a dimension of a child, or
  /// kNone.
  static constexpr int kNone = -1;
  using Group = std::vector<int>;
  /// The largest of some groups' usages, each moved by a shift.
  struct Dimension {
    std::vector<std::pair<int, double>> members{};  ///< group, shift
    double multiplier = 0;                          ///< sum over the rows that it stands for
  };
  struct Plan {
    std::vector<Group> groups{};
    std::vector<double> group_multiplier{};  ///< sum over the rows of each group
    std::vector<Dimension> dimensions{};
  };
  std::vector<int> of_step{};  ///< class of each step: equal relaxed class, equal plan
  std::vector<Plan> plans{};   ///< by class
  std::vector<int> first_step{};
  /// Of each dimension of a step without parent: the most that it may use.
  std::vector<double> root_limit{};
};

/// `active`: the rows that count; multipliers are 0 for all others. `relaxed`: the classes at these
/// multipliers. The schedule must end in one step over everything.
[[nodiscard]] RowDimensions make_row_dimensions(const Compiled& compiled,
                                                const StepClasses& relaxed,
                                                const std::vector<int>& active,
                                                const std::vector<double>& multiplier);

}  // namespace shardplan::solvers
