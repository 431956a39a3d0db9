#include "shardplan/problem/class_network.h"

#include <map>
#include <utility>

namespace shardplan::problem {

using Factor = ClassNetwork::Factor;

std::vector<double> expand(const Factor& factor) {
  std::vector<std::size_t> at{0};
  for (const auto& classes : factor.classes) {
    std::vector<std::size_t> next;
    next.reserve(at.size() * classes->of.size());
    for (const std::size_t index : at) {
      for (const std::uint16_t c : classes->of) {
        next.push_back(index * classes->count + c);
      }
    }
    at = std::move(next);
  }
  std::vector<double> table;
  table.reserve(at.size());
  for (const std::size_t index : at) {
    table.push_back((*factor.cost)[index]);
  }
  return table;
}

double evaluate(const ClassNetwork& network, const std::vector<int>& choice) {
  double sum = 0;
  for (std::size_t v = 0; v < network.unary.size(); ++v) {
    sum += (*network.unary[v])[static_cast<std::size_t>(choice[v])];
  }
  for (const Factor& factor : network.factors) {
    std::size_t index = 0;
    for (std::size_t d = 0; d < factor.scope.size(); ++d) {
      const auto variable = static_cast<std::size_t>(factor.scope[d]);
      const ChoiceClasses& classes = *factor.classes[d];
      index = index * classes.count + classes.of[static_cast<std::size_t>(choice[variable])];
    }
    sum += (*factor.cost)[index];
  }
  return sum;
}

solvers::CostNetwork expand(const ClassNetwork& network) {
  solvers::CostNetwork out;
  out.unary = network.unary;
  std::map<std::pair<const void*, std::vector<const void*>>, solvers::CostTable> known;
  for (const Factor& factor : network.factors) {
    std::vector<const void*> classes;
    for (const auto& each : factor.classes) {
      classes.push_back(each.get());
    }
    solvers::CostTable& table = known[{factor.cost.get(), classes}];
    if (!table) {
      table = std::make_shared<const std::vector<double>>(expand(factor));
    }
    out.factors.push_back({factor.scope, table});
  }
  return out;
}

}  // namespace shardplan::problem
