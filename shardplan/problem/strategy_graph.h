#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shardplan/solvers/constrained.h"
#include "shardplan/support/ids.h"

namespace shardplan::problem {

/// Pick one choice for each node: node costs, edge cost matrices, memory at program points. The
/// numbers are a solvers::ConstrainedProblem; this adds what a person needs to read them.
struct StrategyGraph {
  std::vector<std::string> nodes{};  ///< names, one a variable
  std::vector<std::string> rows{};   ///< names of the memory rows
  solvers::ConstrainedProblem problem{};
};

}  // namespace shardplan::problem
