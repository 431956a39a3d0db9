#include "shardplan/solvers/class_network.h"

#include <map>
#include <utility>

namespace shardplan::solvers {

using Factor = ClassNetwork::Factor;

namespace {

/// Classes of the kept choices, numbered anew, and which of the old ones they are.
struct KeptClasses {
  std::shared_ptr<const ChoiceClasses> classes;
  std::vector<std::size_t> old;
};

KeptClasses keep_classes(const ChoiceClasses& classes, const std::vector<int>& keep) {
  KeptClasses kept;
  auto fresh = std::make_shared<ChoiceClasses>();
  std::map<std::uint16_t, std::uint16_t> number;
  for (const int choice : keep) {
    const std::uint16_t old = classes.of[static_cast<std::size_t>(choice)];
    const auto [it, is_new] = number.emplace(old, static_cast<std::uint16_t>(number.size()));
    if (is_new) {
      kept.old.push_back(old);
    }
    fresh->of.push_back(it->second);
  }
  fresh->count = number.size();
  kept.classes = std::move(fresh);
  return kept;
}

std::vector<double> keep_entries(const Factor& factor,
                                 const std::vector<const KeptClasses*>& kept) {
  std::vector<std::size_t> at{0};
  for (std::size_t d = 0; d < kept.size(); ++d) {
    std::vector<std::size_t> next;
    for (const std::size_t index : at) {
      for (const std::size_t old : kept[d]->old) {
        next.push_back(index * factor.classes[d]->count + old);
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

}  // namespace

ClassNetwork restricted(const ClassNetwork& network, const std::vector<std::vector<int>>& keep) {
  ClassNetwork out;
  std::map<const void*, CostTable> unary;
  for (std::size_t v = 0; v < network.unary.size(); ++v) {
    CostTable& known = unary[network.unary[v].get()];
    if (!known) {
      std::vector<double> values;
      for (const int choice : keep[v]) {
        values.push_back((*network.unary[v])[static_cast<std::size_t>(choice)]);
      }
      known = std::make_shared<const std::vector<double>>(std::move(values));
    }
    out.unary.push_back(known);
  }
  std::map<std::pair<const void*, const void*>, KeptClasses> classes;  // by classes and unary table
  std::map<std::vector<const void*>, CostTable> tables;
  for (const Factor& factor : network.factors) {
    Factor kept;
    kept.scope = factor.scope;
    std::vector<const KeptClasses*> of_scope;
    std::vector<const void*> key{factor.cost.get()};
    for (std::size_t d = 0; d < factor.scope.size(); ++d) {
      const auto v = static_cast<std::size_t>(factor.scope[d]);
      KeptClasses& known = classes[{factor.classes[d].get(), network.unary[v].get()}];
      if (!known.classes) {
        known = keep_classes(*factor.classes[d], keep[v]);
      }
      kept.classes.push_back(known.classes);
      of_scope.push_back(&known);
      key.push_back(known.classes.get());
    }
    CostTable& table = tables[key];
    if (!table) {
      table = std::make_shared<const std::vector<double>>(keep_entries(factor, of_scope));
    }
    kept.cost = table;
    out.factors.push_back(std::move(kept));
  }
  return out;
}

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

CostNetwork expand(const ClassNetwork& network) {
  CostNetwork out;
  out.unary = network.unary;
  std::map<std::pair<const void*, std::vector<const void*>>, CostTable> known;
  for (const Factor& factor : network.factors) {
    std::vector<const void*> classes;
    classes.reserve(factor.classes.size());
    for (const auto& each : factor.classes) {
      classes.push_back(each.get());
    }
    CostTable& table = known[{factor.cost.get(), classes}];
    if (!table) {
      table = std::make_shared<const std::vector<double>>(expand(factor));
    }
    out.factors.push_back({factor.scope, table});
  }
  return out;
}

}  // namespace shardplan::solvers
