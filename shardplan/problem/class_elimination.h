#pragma once

#include <vector>

#include "shardplan/problem/class_network.h"

namespace shardplan::problem {

struct ClassSolution {
  bool solved = false;        ///< false: the search would have taken more than `max_work` sums
  double cost = 0;            ///< infinity when every assignment is forbidden
  std::vector<int> choice{};  ///< one a variable
};

/// Exact minimum by variable elimination over classes. Where all that is known of a variable's
/// neighbours falls into two parts that share none, joining them is a (min, +) matrix product over
/// the classes in which one part sees the variable; so a chain of ops costs a matrix product an op,
/// with the number of layouts as dimensions. Equal sub-problems (equal layers) are solved once.
/// Deterministic. `max_work` limits the sums of the largest join.
[[nodiscard]] ClassSolution minimise(const ClassNetwork& network, double max_work = 3e10);

}  // namespace shardplan::problem
