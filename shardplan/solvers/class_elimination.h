#pragma once

#include <limits>
#include <vector>

#include "shardplan/solvers/class_network.h"

namespace shardplan::solvers {

struct ClassOptions {
  double max_work = 3e10;    ///< sums of the largest join that is made
  double max_entries = 5e7;  ///< of all tables that are made, 8 bytes each
  /// Sums from which on a join is avoided: instead, what is known of the variable is parted, and
  /// each part may choose for itself (mini-buckets, Dechter and Rish 2003). So is one whose table
  /// would take a large part of the entries that are left. Infinite: never.
  double split_work = std::numeric_limits<double>::infinity();
};

struct ClassSolution {
  bool solved = false;        ///< false: it would have taken more work or memory than allowed
  double cost = 0;            ///< of the choice; infinity when every assignment is forbidden
  double lower_bound = 0;     ///< no assignment costs less; the cost itself unless parts were split
  std::vector<int> choice{};  ///< one a variable
};

/// Exact minimum by variable elimination over classes. Where all that is known of a variable's
/// neighbours falls into two parts that share none, joining them is a (min, +) matrix product over
/// the classes in which one part sees the variable; so a chain of ops costs a matrix product an op,
/// with the number of layouts as dimensions. Equal sub-problems (equal layers) are solved once.
/// With `split_work` the largest joins are relaxed: a bound, and a choice that is near it (often at
/// it). Deterministic.
[[nodiscard]] ClassSolution minimise(const ClassNetwork& network, const ClassOptions& options = {});

}  // namespace shardplan::solvers
