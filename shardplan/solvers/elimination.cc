#include "shardplan/solvers/elimination.h"

#include <limits>
#include <utility>

#include "shardplan/solvers/relaxation.h"

namespace shardplan::solvers {

Elimination::Outcome Elimination::minimise(const CostNetwork& network, std::size_t max_cluster) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 28U;  // of tables of earlier calls
  if (store_.bytes() > kMostBytes) {
    store_ = {};
  }
  const Compiled compiled = compile({network, {}}, store_, {});
  Outcome outcome;
  if (compiled.schedule.largest_cluster > static_cast<double>(max_cluster)) {
    return outcome;
  }
  outcome.solved = true;
  outcome.largest_cluster = static_cast<std::size_t>(compiled.schedule.largest_cluster);
  Relaxation relaxation(compiled, store_);
  outcome.solution.cost = relaxation.evaluate({});
  outcome.solution.choice = relaxation.choice();
  return outcome;
}

}  // namespace shardplan::solvers
