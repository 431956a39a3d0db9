#pragma once

#include <cstddef>
#include <vector>

#include "shardplan/solvers/cost_network.h"
#include "shardplan/solvers/table_store.h"

namespace shardplan::solvers {

struct CostNetworkSolution {
  double cost = 0;            ///< infinity when every assignment is forbidden
  std::vector<int> choice{};  ///< one a variable
};

/// Exact minimum by variable elimination (Bertelè, Brioschi 1972), see make_schedule for the order.
/// Time and memory grow with the largest cluster: the product of the numbers of choices of a
/// variable and its neighbours at elimination. Equal sub-problems, such as the equal layers of a
/// network, are solved once. Tables seen by one object are not hashed again. Deterministic.
class Elimination {
 public:
  struct Outcome {
    bool solved = false;  ///< false: some cluster would have had more than `max_cluster` entries
    CostNetworkSolution solution{};
    std::size_t largest_cluster = 0;
  };
  [[nodiscard]] Outcome minimise(const CostNetwork& network,
                                 std::size_t max_cluster = std::size_t{1} << 26U);

 private:
  TableStore store_;
};

}  // namespace shardplan::solvers
