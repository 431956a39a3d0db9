// Builds the nodes of the intra-operator problem. Read `StepBuilder::run`.
#include "shardplan/problem/step_structure.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "shardplan/lower/readers.h"

namespace shardplan::problem {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

class StepBuilder {
 public:
  explicit StepBuilder(StepStructure& out)
      : step_(out.step_), out_(out), node_of_op_(step_.ops().size(), -1) {}

  void run() {
    add_parameters();
    add_ops();
    add_ports();
    NodeFamilies families(step_);
    for (const IntraOpNode& node : out_.nodes_) {
      out_.family_.push_back(families.assign(node));
    }
    out_.families_ = families.take();
    find_parts();
  }

 private:
  IntraOpNode& node(int index) { return out_.nodes_[static_cast<std::size_t>(index)]; }

  void put(OpId op, int node_index) {
    node_of_op_[op.index()] = node_index;
    node(node_index).members.push_back(op);
  }

  /// One node a parameter: sums and accumulations of its gradient, and the update ops that read its
  /// tensors and nothing of another parameter; of a copy, what brings the new weight.
  void add_parameters() {
    std::unordered_map<std::int32_t, int> owner;  // by value
    const std::vector<lower::Readers> readers = lower::find_readers(step_);
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      const bool input = step_.values()[v].kind == ValueKind::kInput && readers[v].several;
      if (input || step_.values()[v].kind == ValueKind::kParameter) {
        owner[static_cast<std::int32_t>(v)] = static_cast<int>(out_.nodes_.size());
        node_of_parameter_[static_cast<std::int32_t>(v)] = static_cast<int>(out_.nodes_.size());
        IntraOpNode added;
        added.kind = input ? IntraOpNode::Kind::kInput : IntraOpNode::Kind::kParameter;
        added.parameter = ValueId(v);
        out_.nodes_.push_back(std::move(added));
      }
    }
    for (const ir::Write& gradient : step_.gradients) {
      if (const auto it = node_of_parameter_.find(gradient.target.value);
          it != node_of_parameter_.end()) {
        owner[gradient.value.value] = it->second;
        own_gradient(gradient.value, it->second, owner);
      }
    }
    for (const ir::Write& write : step_.writes) {
      const auto it = node_of_parameter_.find(write.target.value);
      const OpId producer = step_.value(write.value).producer;
      if (it != node_of_parameter_.end() && step_.op(producer).name == "receive") {
        put(producer, it->second);
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
    for (IntraOpNode& added : out_.nodes_) {
      std::sort(added.members.begin(), added.members.end());
    }
  }

  /// Ops that sum the gradient of a parameter over its uses, over microbatches and over stages.
  void own_gradient(ValueId value, int parameter, std::unordered_map<std::int32_t, int>& owner) {
    const OpId producer = step_.value(value).producer;
    if (!producer.valid() || node_of_op_[producer.index()] >= 0) {
      return;
    }
    const ir::Op& op = step_.op(producer);
    const bool sums = op.phase == Phase::kBackward ? op.name != "receive"
                                                   : op.phase == Phase::kUpdate && op.name == "add";
    if (op.source.valid() || !sums) {
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
      forward[static_cast<std::int32_t>(i)] = static_cast<int>(out_.nodes_.size());
      out_.nodes_.emplace_back();
      put(OpId(i), static_cast<int>(out_.nodes_.size() - 1));
      if (op.phase == Phase::kForward) {
        const std::string_view block = plan::block_of(op.layer);
        out_.nodes_.back().block = block;
        if (!block.empty() && seen_blocks.insert(block).second) {
          out_.blocks_.emplace_back(block);
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
    } else if (const auto owner = node_of_parameter_.find(value.value);
               owner != node_of_parameter_.end()) {
      from = owner->second;
    } else {
      return {-1, -1};
    }
    node(from).writes.push_back(port);
    const auto made = std::make_pair(from, static_cast<int>(node(from).writes.size()) - 1);
    write_port_.emplace(value.value, made);
    return made;
  }

  void add_ports() {
    for (std::size_t n = 0; n < out_.nodes_.size(); ++n) {
      std::map<std::int32_t, std::size_t> edge_of_value;
      for (const OpId member : out_.nodes_[n].members) {
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
    const auto [it, fresh] = edge_of_value.emplace(value.value, out_.edges_.size());
    if (fresh) {
      out_.edges_.push_back(IntraOpEdge{from, to, write, {}});
    }
    out_.edges_[it->second].reads.push_back(static_cast<int>(node(to).reads.size()) - 1);
  }

  /// Ops with the same name and phase at the same place below their blocks, counted in each block.
  void find_parts() {
    std::unordered_map<std::string, int> number;
    std::unordered_map<std::string, int> seen;
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      const std::string_view block = plan::block_of(op.layer);
      const std::string place = std::string(op.layer.substr(block.size())) + '|' + op.name +
                                static_cast<char>('0' + static_cast<int>(op.phase));
      const int ordinal = seen[std::string(block) + '#' + place]++;
      std::string key = place + std::to_string(ordinal);
      if (block.empty()) {
        key += '#';
      }
      const auto [it, fresh] = number.emplace(std::move(key), static_cast<int>(number.size()));
      if (fresh) {
        out_.parts_.emplace_back();
      }
      out_.part_.push_back(it->second);
      out_.parts_[static_cast<std::size_t>(it->second)].push_back(OpId(i));
    }
  }

  const ir::Graph& step_;
  StepStructure& out_;
  std::vector<int> node_of_op_;
  std::unordered_map<std::int32_t, int> node_of_parameter_;
  std::unordered_map<std::int32_t, std::pair<int, int>> write_port_;
};

StepStructure::StepStructure(const ir::Graph& step)
    : step_(step),
      timeline_(step),
      meanings_(axis_meanings(step)),
      graph_hash_(ir::structural_hash(step)) {
  StepBuilder(*this).run();
}

}  // namespace shardplan::problem
