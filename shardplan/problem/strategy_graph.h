#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::problem {

/// Pick one choice for each node: node costs, edge cost matrices, memory at program points. The
/// numbers are a solvers::ConstrainedProblem; this adds what a person needs to read them.
struct StrategyGraph {
  std::vector<std::string> nodes{};  ///< names, one a variable
  std::vector<std::string> rows{};   ///< names of the memory rows
  /// Names of each variable's choices; none, or null for a variable, where they have none.
  std::vector<std::shared_ptr<const std::vector<std::string>>> strategies{};
  solvers::ConstrainedProblem problem{};
};

}  // namespace shardplan::problem
