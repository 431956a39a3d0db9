#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

std::size_t table_index(const CostNetwork& network,
                        const CostNetwork::Factor& factor,
                        const std::vector<int>& choice) {
  std::size_t index = 0;
  for (const int v : factor.scope) {
    const auto variable = static_cast<std::size_t>(v);
    index = index * network.unary[variable]->size() + static_cast<std::size_t>(choice[variable]);
  }
  return index;
}

double evaluate(const CostNetwork& network, const std::vector<int>& choice) {
  double total = 0;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    total += (*network.unary[v])[static_cast<std::size_t>(choice[v])];
  }
  for (const CostNetwork::Factor& factor : network.factors) {
    total += (*factor.cost)[table_index(network, factor, choice)];
  }
  return total;
}

double evaluate(const ConstrainedProblem& problem,
                const ConstrainedProblem::Row& row,
                const std::vector<int>& choice) {
  double total = row.constant;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    if (row.unary[v]) {
      total += (*row.unary[v])[static_cast<std::size_t>(choice[v])];
    }
  }
  for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
    if (row.factors[f]) {
      total +=
          (*row.factors[f])[table_index(problem.objective, problem.objective.factors[f], choice)];
    }
  }
  return total;
}

}  // namespace shardplan::solvers
