// Builds the nodes of the intra-operator problem and turns assignments back into plans. Read
// `IntraOpBuilder::run`.
#include "shardplan/problem/intra_op.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "shardplan/problem/node_types.h"

namespace shardplan::problem {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

class IntraOpBuilder {
 public:
  IntraOpBuilder(const ir::Graph& step, IntraOpProblem& problem)
      : step_(step), problem_(problem), node_of_op_(step.ops().size(), -1) {}

  void run(const ChoiceFilter& filter) {
    add_parameters();
    add_ops();
    add_ports();
    find_reruns();
    NodeTypes types(step_, *problem_.cost_, *problem_.resharder_);
    for (IntraOpNode& node : problem_.nodes_) {
      types.assign(node, filter);
    }
  }

 private:
  IntraOpNode& node(int index) { return problem_.nodes_[static_cast<std::size_t>(index)]; }

  void put(OpId op, int node_index) {
    node_of_op_[op.index()] = node_index;
    node(node_index).members.push_back(op);
  }

  /// One node a parameter: sums and accumulations of its gradient, and the update ops that read its
  /// tensors and nothing of another parameter.
  void add_parameters() {
    std::unordered_map<std::int32_t, int> owner;  // by value
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      if (step_.values()[v].kind == ValueKind::kParameter) {
        owner[static_cast<std::int32_t>(v)] = static_cast<int>(problem_.nodes_.size());
        node_of_parameter_[static_cast<std::int32_t>(v)] = static_cast<int>(problem_.nodes_.size());
        IntraOpNode added;
        added.kind = IntraOpNode::Kind::kParameter;
        added.parameter = ValueId(v);
        problem_.nodes_.push_back(std::move(added));
      }
    }
    for (const ir::Write& gradient : step_.gradients) {
      if (const auto it = node_of_parameter_.find(gradient.target.value);
          it != node_of_parameter_.end()) {
        owner[gradient.value.value] = it->second;
        own_gradient(gradient.value, it->second, owner);
      }
    }
    for (const ir::Value& value : step_.values()) {
      if (value.kind == ValueKind::kState && value.init_from.valid()) {
        owner[static_cast<std::int32_t>(&value - step_.values().data())] =
            node_of_parameter_.at(value.init_from.value);
      }
    }
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (node_of_op_[i] < 0 && step_.ops()[i].phase == Phase::kUpdate) {
        own_update(OpId(i), owner);
      }
    }
    for (IntraOpNode& added : problem_.nodes_) {
      std::sort(added.members.begin(), added.members.end());
    }
  }

  /// Ops that sum the gradient of a parameter over its uses and over microbatches.
  void own_gradient(ValueId value, int parameter, std::unordered_map<std::int32_t, int>& owner) {
    const OpId producer = step_.value(value).producer;
    if (!producer.valid() || step_.op(producer).source.valid() ||
        step_.op(producer).phase != Phase::kBackward || node_of_op_[producer.index()] >= 0) {
      return;
    }
    put(producer, parameter);
    for (const ValueId input : step_.op(producer).inputs) {
      own_gradient(input, parameter, owner);
    }
    owner[value.value] = parameter;
  }

  void own_update(OpId op, std::unordered_map<std::int32_t, int>& owner) {
    std::set<int> owners;
    bool whole = false;  // reads a tensor of the parameter's shape, not just a number made from one
    for (const ValueId input : step_.op(op).inputs) {
      if (const auto it = owner.find(input.value); it != owner.end()) {
        owners.insert(it->second);
        whole = whole || step_.type(input).shape == step_.type(node(it->second).parameter).shape;
      }
    }
    if (owners.size() != 1 || !whole) {
      return;
    }
    put(op, *owners.begin());
    for (const ValueId output : step_.op(op).outputs) {
      owner[output.value] = *owners.begin();
    }
  }

  /// One node a forward op, with the backward ops that come from it; one a remaining op.
  void add_ops() {
    std::unordered_map<std::int32_t, int> forward;
    std::unordered_set<std::string_view> seen_blocks;
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (node_of_op_[i] >= 0) {
        continue;
      }
      const ir::Op& op = step_.ops()[i];
      if (op.phase == Phase::kBackward && op.source.valid()) {
        put(OpId(i), forward.at(op.source.value));
        continue;
      }
      forward[static_cast<std::int32_t>(i)] = static_cast<int>(problem_.nodes_.size());
      problem_.nodes_.emplace_back();
      put(OpId(i), static_cast<int>(problem_.nodes_.size() - 1));
      if (op.phase == Phase::kForward) {
        const std::string_view block = plan::block_of(op.layer);
        problem_.nodes_.back().block = block;
        if (!block.empty() && seen_blocks.insert(block).second) {
          problem_.blocks_.emplace_back(block);
        }
      }
    }
  }

  /// Index of the write port of `value` in its node, -1 when it lives on the device (no node).
  std::pair<int, int> write_port(ValueId value) {
    if (const auto it = write_port_.find(value.value); it != write_port_.end()) {
      return it->second;
    }
    const ir::Value& v = step_.value(value);
    int from = -1;
    const Port port{value, v.producer, v.result_index};
    if (v.kind == ValueKind::kOpResult) {
      from = node_of_op_[v.producer.index()];
    } else if (v.kind == ValueKind::kParameter) {
      from = node_of_parameter_.at(value.value);
    } else {
      return {-1, -1};
    }
    node(from).writes.push_back(port);
    const auto made = std::make_pair(from, static_cast<int>(node(from).writes.size()) - 1);
    write_port_.emplace(value.value, made);
    return made;
  }

  void add_ports() {
    for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
      std::map<std::int32_t, std::size_t> edge_of_value;
      for (const OpId member : problem_.nodes_[n].members) {
        const ir::Op& op = step_.op(member);
        for (std::size_t i = 0; i < op.inputs.size(); ++i) {
          add_read(static_cast<int>(n), member, static_cast<int>(i), edge_of_value);
        }
      }
    }
  }

  void add_read(int to, OpId member, int slot, std::map<std::int32_t, std::size_t>& edge_of_value) {
    const ValueId value = step_.op(member).inputs[static_cast<std::size_t>(slot)];
    const ir::Value& v = step_.value(value);
    const bool own = (v.kind == ValueKind::kOpResult && node_of_op_[v.producer.index()] == to) ||
                     (v.kind == ValueKind::kParameter && node_of_parameter_.at(value.value) == to);
    if (own) {
      return;
    }
    const auto [from, write] = write_port(value);
    if (from < 0) {
      return;
    }
    node(to).reads.push_back(Port{value, member, slot});
    const auto [it, fresh] = edge_of_value.emplace(value.value, problem_.edges_.size());
    if (fresh) {
      problem_.edges_.push_back(IntraOpEdge{from, to, write, {}});
    }
    problem_.edges_[it->second].reads.push_back(static_cast<int>(node(to).reads.size()) - 1);
  }

  /// Forward ops that run again when their block is recomputed: those that make, directly or
  /// through other such ops, a value that the backward pass reads and that is not kept (see
  /// lower()).
  void find_reruns() {
    std::vector<bool> kept(step_.values().size(), false);
    std::vector<bool> needed(step_.values().size(), false);
    for (const ir::Op& op : step_.ops()) {
      for (const ValueId input : op.inputs) {
        const OpId producer = step_.value(input).producer;
        if (op.phase == Phase::kBackward) {
          needed[input.index()] = true;
        } else if (op.phase == Phase::kForward && producer.valid() &&
                   plan::block_of(step_.op(producer).layer) != plan::block_of(op.layer)) {
          kept[input.index()] = true;
        }
      }
    }
    for (const ValueId output : step_.outputs) {
      kept[output.index()] = true;
    }
    for (std::size_t i = step_.ops().size(); i-- > 0;) {
      const ir::Op& op = step_.ops()[i];
      IntraOpNode& own = node(node_of_op_[i]);
      if (op.phase != Phase::kForward || own.block.empty()) {
        continue;
      }
      own.rerun = std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
        return needed[output.index()] && !kept[output.index()];
      });
      if (own.rerun) {
        for (const ValueId input : op.inputs) {
          needed[input.index()] = true;
        }
      }
    }
    problem_.kept_ = std::move(kept);
  }

  const ir::Graph& step_;
  IntraOpProblem& problem_;
  std::vector<int> node_of_op_;
  std::unordered_map<std::int32_t, int> node_of_parameter_;
  std::unordered_map<std::int32_t, std::pair<int, int>> write_port_;
};

Result<IntraOpProblem> IntraOpProblem::build(const ir::Graph& step,
                                             const cost::CostModel& cost,
                                             const ChoiceFilter& filter) {
  if (cost.mesh().axes.size() > static_cast<std::size_t>(sharding::kMaxMeshAxes)) {
    return invalid_input("the mesh has more axes than Shardplan supports");
  }
  IntraOpProblem problem;
  problem.step_ = &step;
  problem.cost_ = std::make_shared<cost::CostModel>(cost);
  problem.resharder_ = std::make_shared<sharding::Resharder>(
      cost.mesh(),
      [model = problem.cost_](const sharding::ReshardStep& move, const ir::TensorType& type) {
        return model->reshard_step(move, type);
      });
  IntraOpBuilder(step, problem).run(filter);
  return problem;
}

IntraOpProblem::ProgramPoint IntraOpProblem::point_of(OpId op, bool recompute) const {
  if (!recompute) {
    return {op};
  }
  const std::string_view block = plan::block_of(step_->op(op).layer);
  for (std::size_t i = 0; i < step_->ops().size(); ++i) {
    const ir::Op& candidate = step_->ops()[i];
    if (candidate.phase == Phase::kBackward && candidate.source.valid() &&
        plan::block_of(step_->op(candidate.source).layer) == block) {
      return {OpId(i)};
    }
  }
  return {op};
}

plan::Plan IntraOpProblem::to_plan(const std::vector<int>& choice, bool recompute) const {
  plan::Plan plan;
  plan.cluster = cost_->cluster();
  plan.mesh = cost_->mesh();
  plan.graph_hash = ir::structural_hash(*step_);
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
    if (node.kind == IntraOpNode::Kind::kParameter) {
      plan.layouts[node.parameter] = chosen.stored;
    }
  }
  for (std::size_t v = 0; v < step_->values().size(); ++v) {
    const ir::Value& value = step_->values()[v];
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kState ||
        value.kind == ValueKind::kAccumulator) {
      const auto it = read_layout.find(static_cast<std::int32_t>(v));
      plan.layouts[ValueId(v)] = it == read_layout.end() ? sharding::ShardingSpec{} : it->second;
    } else if (value.kind == ValueKind::kBuffer) {
      plan.layouts[ValueId(v)] = sharding::ShardingSpec{};
    }
  }
  for (std::size_t b = 0; recompute && b < blocks_.size(); ++b) {
    if (choice[nodes_.size() + b] == 1) {
      plan.recompute.push_back(blocks_[b]);
    }
  }
  return plan;
}

}  // namespace shardplan::problem
