// The problem on one mesh: gives its nodes their choices and turns assignments back into plans.
// What does not depend on the mesh comes from step_structure.cc.
#include "shardplan/problem/intra_op.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "shardplan/problem/node_types.h"
#include "shardplan/problem/step_structure.h"

namespace shardplan::problem {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

Result<IntraOpProblem> IntraOpProblem::build(const ir::Graph& step,
                                             const cost::CostModel& cost,
                                             const ChoiceFilter& filter) {
  return build(std::make_shared<const StepStructure>(step), cost, filter);
}

Result<IntraOpProblem> IntraOpProblem::build(std::shared_ptr<const StepStructure> structure,
                                             const cost::CostModel& cost,
                                             const ChoiceFilter& filter) {
  if (cost.mesh().axes.size() > static_cast<std::size_t>(sharding::kMaxMeshAxes)) {
    return invalid_input("the mesh has more axes than Shardplan supports");
  }
  IntraOpProblem problem;
  problem.structure_ = std::move(structure);
  problem.step_ = &problem.structure_->step();
  problem.cost_ = std::make_shared<cost::CostModel>(cost);
  problem.resharder_ = std::make_shared<sharding::Resharder>(cost.mesh(), cost::step_price(cost));
  problem.nodes_ = problem.structure_->nodes();
  problem.edges_ = problem.structure_->edges();
  problem.blocks_ = problem.structure_->blocks();
  NodeTypes types(*problem.structure_, *problem.cost_, *problem.resharder_);
  for (std::size_t n = 0; n < problem.nodes_.size(); ++n) {
    types.assign(problem.nodes_[n], problem.structure_->family(n), filter);
  }
  return problem;
}

void IntraOpProblem::forget_tables() {
  tables_ = {};
  resharder_->forget();
}

namespace {

/// How the op's block is recomputed, as an index into kRecomputes.
int how_of(const ir::Op& op, const plan::Plan& plan) {
  const std::string_view block = plan::block_of(op.layer);
  for (const plan::RecomputedBlock& recomputed : plan.recompute) {
    if (recomputed.block == block) {
      return static_cast<int>(std::find(kRecomputes.begin(), kRecomputes.end(), recomputed.how) -
                              kRecomputes.begin());
    }
  }
  return 0;
}

}  // namespace

Moment IntraOpProblem::moment_of(const lower::ProgramPoint& point, const plan::Plan& plan) const {
  return structure_->timeline().at(point, how_of(step_->op(point.op), plan));
}

std::vector<Moment> IntraOpProblem::alike_moments(const lower::ProgramPoint& point,
                                                  const plan::Plan& plan) const {
  const int how = how_of(step_->op(point.op), plan);
  std::vector<Moment> moments;
  for (const OpId op : structure_->alike(point.op)) {
    lower::ProgramPoint other = point;
    other.op = op;
    if (!point.again || structure_->timeline().again(op, how) >= 0) {
      moments.push_back(structure_->timeline().at(other, how));
    }
  }
  return moments;
}

bool IntraOpNode::updates(const ir::Graph& step) const {
  return kind == Kind::kParameter && std::any_of(members.begin(), members.end(), [&](OpId member) {
           return step.op(member).name != "receive";
         });
}

plan::Plan IntraOpProblem::to_plan(const std::vector<int>& choice, bool recompute) const {
  plan::Plan plan;
  plan.cluster = cost_->cluster();
  plan.mesh = cost_->mesh();
  plan.graph_hash = structure_->graph_hash();
  plan.strategies.resize(step_->ops().size());
  std::unordered_map<std::int32_t, sharding::ShardingSpec> read_layout;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const IntraOpNode& node = nodes_[n];
    const NodeChoice& chosen = node.type->choices[static_cast<std::size_t>(choice[n])];
    for (std::size_t m = 0; m < node.members.size(); ++m) {
      const OpId member = node.members[m];
      plan.strategies[member.index()] = chosen.strategies[m];
      const ir::Op& op = step_->op(member);
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        read_layout.emplace(op.inputs[i].value, chosen.layouts[m].inputs[i]);
      }
    }
    if (node.kind != IntraOpNode::Kind::kOp) {
      plan.layouts[node.parameter] = chosen.stored;
    }
  }
  for (std::size_t v = 0; v < step_->values().size(); ++v) {
    const ir::Value& value = step_->values()[v];
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kState ||
        value.kind == ValueKind::kAccumulator) {
      const auto it = read_layout.find(static_cast<std::int32_t>(v));
      plan.layouts.try_emplace(ValueId(v),
                               it == read_layout.end() ? sharding::ShardingSpec{} : it->second);
    } else if (value.kind == ValueKind::kBuffer) {
      plan.layouts[ValueId(v)] = sharding::ShardingSpec{};
    }
  }
  for (std::size_t b = 0; recompute && b < blocks_.size(); ++b) {
    const plan::Recompute how = kRecomputes[static_cast<std::size_t>(choice[nodes_.size() + b])];
    if (how != plan::Recompute::kNone) {
      plan.recompute.push_back({blocks_[b], how});
    }
  }
  return plan;
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
      keep[static_cast<std::size_t>(assignment[n]) % keep.size()] = true;
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

Seconds IntraOpProblem::least_kernel_seconds() const {
  std::unordered_map<const NodeType*, Seconds> known;
  Seconds total = 0;
  for (const IntraOpNode& node : nodes_) {
    const auto [it, fresh] =
        known.emplace(node.type.get(), std::numeric_limits<Seconds>::infinity());
    for (std::size_t c = 0; fresh && c < node.type->choices.size(); ++c) {
      it->second = std::min(it->second, node.type->choices[c].kernel_seconds);
    }
    total += it->second;
  }
  return total;
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
