#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shardplan::planners {

/// The beginnings, rising from 0, of `count` runs of a chain, none of them empty, whose largest sum
/// is least; of equal cuts the one whose later runs begin earliest. `sums` are running sums of the
/// chain's members, which are not negative, from wherever they begin: one more than it has members.
/// Precondition: at least `count` members. O(members · log(members) · count), but for long runs of
/// members that are 0.
[[nodiscard]] std::vector<std::size_t> even_cut(std::span<const double> sums, std::size_t count);

}  // namespace shardplan::planners
