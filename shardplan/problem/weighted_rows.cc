// The problem at fixed multipliers of its memory rows, in classes of layouts: what bounds from
// below on meshes whose tables over choices would be too large.
#include <fmt/format.h>

#include <unordered_map>

#include "shardplan/problem/graph_tables.h"

namespace shardplan::problem {

using solvers::CostTable;

namespace {

/// cost + sum of multiplier times bytes, made once for equal parts.
class WeightedSums {
 public:
  explicit WeightedSums(const std::vector<double>& multiplier) : multiplier_(multiplier) {}

  CostTable of(const CostTable& cost, const std::vector<CostTable>& bytes) {
    std::string key = fmt::format("{}", static_cast<const void*>(cost.get()));
    bool any = false;
    for (const CostTable& part : bytes) {
      key += fmt::format("/{}", static_cast<const void*>(part.get()));
      any = any || part;
    }
    if (!any) {
      return cost;
    }
    CostTable& known = known_[key];
    if (!known) {
      std::vector<double> sum = *cost;
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
  std::unordered_map<std::string, CostTable> known_;
};

}  // namespace

ClassNetwork GraphTables::make_classes(double exposed,
                                       const std::vector<Moment>& moments,
                                       const std::vector<double>& multiplier) {
  ClassNetwork network = make_classes(exposed);
  WeightedSums sums(multiplier);
  std::vector<CostTable> bytes(moments.size());
  std::size_t f = 0;
  for (std::size_t i = 0; i < problem_.nodes_.size(); ++i) {
    const int n = static_cast<int>(i);
    for (std::size_t r = 0; r < moments.size(); ++r) {
      bytes[r] = multiplier[r] > 0 ? node_bytes(n, moments[r]) : nullptr;
    }
    CostTable& cost = block_variable(n) >= 0 ? network.factors[f++].cost : network.unary[i];
    cost = sums.of(cost, bytes);
  }
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    for (std::size_t r = 0; r < moments.size(); ++r) {
      const ClassNetwork::Factor* const factor =
          multiplier[r] > 0 ? edge_byte_classes(e, moments[r]) : nullptr;
      bytes[r] = factor == nullptr ? nullptr : factor->cost;
    }
    CostTable& cost = network.factors[f++].cost;
    cost = sums.of(cost, bytes);
  }
  return network;
}

ClassNetwork IntraOpProblem::class_network(const std::vector<Moment>& moments,
                                           const std::vector<double>& multiplier) const {
  return tables(true).make_classes(1, moments, multiplier);
}

double IntraOpProblem::constant_bytes() const {
  double bytes = 0;
  for (const ir::Value& value : step_->values()) {
    if (value.kind == ir::ValueKind::kBuffer || value.kind == ir::ValueKind::kConstant) {
      bytes += static_cast<double>(value.type.bytes());
    }
  }
  return bytes;
}

IntraOpProblem IntraOpProblem::restricted(const std::vector<std::vector<int>>& assignments) const {
  std::unordered_map<const NodeType*, std::vector<bool>> kept;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const NodeType* const type = nodes_[n].type.get();
    std::vector<bool>& keep = kept[type];
    keep.resize(type->choices.size(), false);
    for (const std::vector<int>& assignment : assignments) {
      keep[static_cast<std::size_t>(assignment[n])] = true;
    }
  }
  IntraOpProblem problem = *this;
  problem.tables_ = {};
  std::unordered_map<const NodeType*, std::shared_ptr<const NodeType>> made;
  for (IntraOpNode& node : problem.nodes_) {
    std::shared_ptr<const NodeType>& type = made[node.type.get()];
    if (!type) {
      auto smaller = std::make_shared<NodeType>();
      const std::vector<bool>& keep = kept.at(node.type.get());
      for (std::size_t c = 0; c < keep.size(); ++c) {
        if (keep[c]) {
          smaller->choices.push_back(node.type->choices[c]);
        }
      }
      type = std::move(smaller);
    }
    node.type = type;
  }
  return problem;
}

std::size_t IntraOpProblem::largest_edge() const {
  std::size_t largest = 0;
  for (const IntraOpEdge& edge : edges_) {
    largest = std::max(largest,
                       nodes_[static_cast<std::size_t>(edge.from)].type->choices.size() *
                           nodes_[static_cast<std::size_t>(edge.to)].type->choices.size());
  }
  return largest;
}

}  // namespace shardplan::problem
