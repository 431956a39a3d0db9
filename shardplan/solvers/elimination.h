#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

struct CostNetworkSolution {
  double cost = 0;            ///< infinity when every assignment is forbidden
  std::vector<int> choice{};  ///< one a variable
};

/// Exact minimum by variable elimination (Bertelè, Brioschi 1972), variables in greedy order of the
/// smallest cluster. Time and memory grow with the largest cluster: the product of the numbers of
/// choices of a variable and its neighbours at elimination. Equal sub-problems, such as the equal
/// layers of a network, are solved once: results are remembered by the content of what was joined,
/// also across calls of one object. Deterministic.
class Elimination {
 public:
  struct Outcome {
    bool solved = false;  ///< false: some cluster would have had more than `max_cluster` entries
    CostNetworkSolution solution{};
    std::size_t largest_cluster = 0;
  };
  [[nodiscard]] Outcome minimise(const CostNetwork& network,
                                 std::size_t max_cluster = std::size_t{1} << 26U);

  struct Table;   ///< an interned table of any number of variables
  struct Joined;  ///< what remains after a variable was minimised out

 private:
  struct KeyHash {
    std::size_t operator()(const std::vector<std::uint64_t>& key) const;
  };
  std::shared_ptr<const Table> intern(std::vector<double> values);
  std::shared_ptr<const Table> table_of(const CostTable& cost);

  std::unordered_multimap<std::uint64_t, std::shared_ptr<const Table>> interned_;
  std::unordered_map<std::vector<std::uint64_t>, std::shared_ptr<const Joined>, KeyHash> joined_;
  std::unordered_map<const std::vector<double>*, std::pair<CostTable, std::shared_ptr<const Table>>>
      by_pointer_;
  std::uint64_t next_id_ = 1;

  friend class EliminationRun;
};

}  // namespace shardplan::solvers
