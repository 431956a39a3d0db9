// The problem at fixed multipliers of its memory rows, in classes of layouts: what bounds from
// below on meshes whose tables over choices would be too large.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "shardplan/problem/graph_tables.h"

namespace shardplan::problem {

using solvers::CostTable;

namespace {

/// weight · cost + sum of multiplier times bytes, made once for equal parts.
class WeightedSums {
 public:
  WeightedSums(const std::vector<double>& multiplier, double weight)
      : multiplier_(multiplier), weight_(weight) {}

  CostTable of(const CostTable& cost, const std::vector<CostTable>& bytes) {
    std::string key = fmt::format("{}", static_cast<const void*>(cost.get()));
    bool any = false;
    for (const CostTable& part : bytes) {
      key += fmt::format("/{}", static_cast<const void*>(part.get()));
      any = any || part;
    }
    if (!any && weight_ == 1) {
      return cost;
    }
    CostTable& known = known_[key];
    if (!known) {
      std::vector<double> sum = *cost;
      for (double& value : sum) {
        value = std::isinf(value) ? value : weight_ * value;
      }
      for (std::size_t r = 0; r < bytes.size(); ++r) {
        for (std::size_t i = 0; bytes[r] && i < sum.size(); ++i) {
          sum[i] += multiplier_[r] * (*bytes[r])[i];
        }
      }
      known = std::make_shared<const std::vector<double>>(std::move(sum));
    }
    return known;
  }

 private:
  const std::vector<double>& multiplier_;
  double weight_;
  std::unordered_map<std::string, CostTable> known_;
};

}  // namespace

/// Choices of a node, each once for every way of recomputing its block: choice c under `how` is
/// number how · count + c. Ops of one block agree on it through the edges between them.
class GraphTables::WeightedNetwork {
 public:
  WeightedNetwork(GraphTables& tables,
                  const std::vector<Moment>& moments,
                  const std::vector<double>& multiplier,
                  double weight)
      : tables_(tables),
        moments_(moments),
        multiplier_(multiplier),
        weight_(weight),
        sums_(multiplier, weight) {}

  ClassNetwork make() {
    for (std::size_t i = 0; i < tables_.problem_.nodes_.size(); ++i) {
      add_node(static_cast<int>(i));
    }
    for (std::size_t e = 0; e < tables_.edges_.size(); ++e) {
      add_edge(e);
    }
    return std::move(network_);
  }

 private:
  void add_node(int n) {
    std::vector<CostTable> bytes(moments_.size());
    for (std::size_t r = 0; r < moments_.size(); ++r) {
      bytes[r] = multiplier_[r] > 0 ? tables_.node_bytes(n, moments_[r]) : nullptr;
    }
    if (tables_.block_variable(n) < 0) {
      network_.unary.push_back(sums_.of(tables_.node_seconds(n, 1), bytes));
      return;
    }
    const CostTable once = tables_.node_seconds(n, 1);
    const CostTable again = sums_.of(tables_.again_seconds(n, 1), bytes);
    CostTable& known = unary_[{once.get(), again.get()}];
    if (!known) {
      std::vector<double> sum(again->size());
      for (std::size_t c = 0; c < once->size(); ++c) {
        for (std::size_t how = 0; how < kHows; ++how) {
          sum[how * once->size() + c] = weight_ * (*once)[c] + (*again)[c * kHows + how];
        }
      }
      known = std::make_shared<const std::vector<double>>(std::move(sum));
      kept_.push_back(again);
    }
    network_.unary.push_back(known);
  }

  void add_edge(std::size_t e) {
    const EdgeFacts& facts = tables_.edges_[e];
    const IntraOpEdge& edge = tables_.problem_.edges_[e];
    const ClassNetwork::Factor& seconds = tables_.edge_seconds(e, 1);
    std::vector<CostTable> bytes(moments_.size());
    for (std::size_t r = 0; r < moments_.size(); ++r) {
      const ClassNetwork::Factor* const factor =
          multiplier_[r] > 0 ? tables_.edge_byte_classes(e, moments_[r]) : nullptr;
      bytes[r] = factor == nullptr ? nullptr : factor->cost;
    }
    const int from_block = tables_.block_variable(edge.from);
    const int to_block = tables_.block_variable(edge.to);
    const bool one_block = from_block >= 0 && from_block == to_block;
    bool from_matters = one_block;
    bool to_matters = one_block;
    for (const auto& [from, to] : facts.hows) {
      from_matters = from_matters || from > 0;
      to_matters = to_matters || to > 0;
    }
    ClassNetwork::Factor factor;
    factor.scope = {edge.from, edge.to};
    factor.classes = {expanded(seconds.classes[0], from_block >= 0, from_matters),
                      expanded(seconds.classes[1], to_block >= 0, to_matters)};
    const CostTable sum = sums_.of(seconds.cost, bytes);
    const std::string key = fmt::format("{}{:d}{:d}{:d}{}",
                                        static_cast<const void*>(sum.get()),
                                        one_block,
                                        from_matters,
                                        to_matters,
                                        facts.hows.size());
    CostTable& known = edge_[key];
    if (!known) {
      known = edge_table(*sum,
                         facts,
                         {seconds.classes[0]->count, seconds.classes[1]->count},
                         {from_matters ? kHows : 1, to_matters ? kHows : 1},
                         one_block);
      kept_.push_back(sum);
    }
    factor.cost = known;
    network_.factors.push_back(std::move(factor));
  }

  static CostTable edge_table(const std::vector<double>& sum,
                              const EdgeFacts& facts,
                              std::pair<std::size_t, std::size_t> counts,
                              std::pair<std::size_t, std::size_t> hows,
                              bool one_block) {
    const std::size_t width = hows.second * counts.second;
    std::vector<double> table(hows.first * counts.first * width,
                              std::numeric_limits<double>::infinity());
    for (std::size_t h = 0; h < hows.first * hows.second; ++h) {
      const std::size_t from_how = h / hows.second;
      const std::size_t to_how = h % hows.second;
      if (one_block && from_how != to_how) {
        continue;
      }
      // Where one end's block does not matter, the table has it as not recomputed.
      std::size_t index = 0;
      while (index < facts.hows.size() && !agrees(facts, index, from_how, to_how)) {
        ++index;
      }
      for (std::size_t f = 0; f < counts.first; ++f) {
        double* const row =
            table.data() + (from_how * counts.first + f) * width + to_how * counts.second;
        for (std::size_t t = 0; t < counts.second; ++t) {
          row[t] = sum[(f * counts.second + t) * facts.hows.size() + index];
        }
      }
    }
    return std::make_shared<const std::vector<double>>(std::move(table));
  }

  static bool agrees(const EdgeFacts& facts, std::size_t index, std::size_t from, std::size_t to) {
    const auto fits = [&](int of_table, std::size_t asked, bool first) {
      const bool matters = std::any_of(facts.hows.begin(), facts.hows.end(), [&](const auto& hows) {
        return (first ? hows.first : hows.second) > 0;
      });
      return !matters || of_table == static_cast<int>(asked);
    };
    return fits(facts.hows[index].first, from, true) && fits(facts.hows[index].second, to, false);
  }

  std::shared_ptr<const ChoiceClasses> expanded(const std::shared_ptr<const ChoiceClasses>& classes,
                                                bool has_block,
                                                bool matters) {
    if (!has_block) {
      return classes;
    }
    std::shared_ptr<const ChoiceClasses>& known = classes_[{classes.get(), matters}];
    if (!known) {
      auto made = std::make_shared<ChoiceClasses>();
      made->count = classes->count * (matters ? kHows : 1);
      for (std::size_t how = 0; how < kHows; ++how) {
        for (const std::uint16_t c : classes->of) {
          made->of.push_back(static_cast<std::uint16_t>(c + (matters ? how * classes->count : 0)));
        }
      }
      known = std::move(made);
    }
    return known;
  }

  GraphTables& tables_;
  const std::vector<Moment>& moments_;
  const std::vector<double>& multiplier_;
  double weight_;
  WeightedSums sums_;
  ClassNetwork network_;
  std::vector<CostTable> kept_;  ///< whose addresses are keys
  std::map<std::pair<const void*, const void*>, CostTable> unary_;
  std::map<std::string, CostTable> edge_;
  std::map<std::pair<const void*, bool>, std::shared_ptr<const ChoiceClasses>> classes_;
};

ClassNetwork GraphTables::make_classes(const std::vector<Moment>& moments,
                                       const std::vector<double>& multiplier,
                                       double weight) {
  return WeightedNetwork(*this, moments, multiplier, weight).make();
}

ClassNetwork IntraOpProblem::class_network(const std::vector<Moment>& moments,
                                           const std::vector<double>& multiplier,
                                           double weight) const {
  return tables(true).make_classes(moments, multiplier, weight);
}

}  // namespace shardplan::problem
