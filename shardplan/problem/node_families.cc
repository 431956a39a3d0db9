// Nodes that look alike. Read `NodeFamilies::signature` (what makes two nodes alike) and `tie` (how
// the axes of backward ops follow those of the forward op).
#include "shardplan/problem/node_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

namespace shardplan::problem {

using ir::OpId;
using ir::ValueId;

namespace {

/// In the text of an attribute everything that may change axis maps or work; random seeds and where
/// messages go do not.
void print_attributes(std::string& out, const ir::Attributes& attributes) {
  for (const auto& [name, value] : attributes.entries()) {
    if (name == "seed" || name == "message" || name == "from" || name == "to") {
      continue;
    }
    out += name;
    if (const auto* flag = std::get_if<bool>(&value)) {
      out += *flag ? "+" : "-";
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      fmt::format_to(std::back_inserter(out), "{}", *integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      fmt::format_to(std::back_inserter(out), "{}", *number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      out += *text;
    } else {
      for (const std::int64_t item : std::get<ir::IntList>(value)) {
        fmt::format_to(std::back_inserter(out), ",{}", item);
      }
    }
    out += ';';
  }
}

}  // namespace

NodeFamilies::NodeFamilies(const ir::Graph& step) : step_(step) {
  for (const ir::Write& gradient : step.gradients) {
    gradient_of_.emplace(gradient.target.value, gradient.value);
  }
  for (const ir::Op& op : step.ops()) {
    // What a pipeline stage receives depends on what other stages read.
    const bool received = op.name == "receive";
    const bool constant =
        !received && std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
          const ir::ValueKind kind = step.value(input).kind;
          return kind == ir::ValueKind::kBuffer || kind == ir::ValueKind::kConstant ||
                 constant_.contains(input);
        });
    if (constant) {
      constant_.insert(op.outputs.begin(), op.outputs.end());
    }
  }
}

int NodeFamilies::assign(const IntraOpNode& node) {
  const auto [it, fresh] = known_.emplace(signature(node), static_cast<int>(families_.size()));
  if (fresh) {
    families_.push_back(make(node));
  }
  return it->second;
}

NodeFamily NodeFamilies::make(const IntraOpNode& node) const {
  NodeFamily family;
  family.node = node;
  family.fixed = fixed(node);
  for (const OpId member : node.members) {
    family.maps.push_back(ops::axis_map(step_, member));
    family.types.push_back(ops::op_types(step_, member));
  }
  if (node.kind == IntraOpNode::Kind::kOp) {
    tie(family);
  }
  return family;
}

std::string NodeFamilies::signature(const IntraOpNode& node) const {
  std::string out = node.kind == IntraOpNode::Kind::kParameter ? "P" : "O";
  std::unordered_map<std::int32_t, int> local;
  const auto number = [&](ValueId value) {
    const auto [it, fresh] = local.emplace(value.value, static_cast<int>(local.size()));
    fmt::format_to(std::back_inserter(out), "%{}", it->second);
    if (fresh) {
      const ir::Value& v = step_.value(value);
      fmt::format_to(std::back_inserter(out),
                     "{}k{}t{}",
                     to_string(v.type),
                     static_cast<int>(v.kind),
                     v.trainable);
    }
  };
  if (node.parameter.valid()) {
    number(node.parameter);
  }
  for (const OpId member : node.members) {
    const ir::Op& op = step_.op(member);
    fmt::format_to(std::back_inserter(out), "|{}p{}", op.name, static_cast<int>(op.phase));
    print_attributes(out, op.attributes);
    for (const ValueId input : op.inputs) {
      number(input);
    }
    out += ">";
    for (const ValueId output : op.outputs) {
      number(output);
    }
  }
  for (const Port& port : node.writes) {
    out += 'w';
    number(port.value);
  }
  for (const Port& port : node.reads) {
    out += 'r';
    number(port.value);
  }
  out += fixed(node) ? "F" : "";
  return out;
}

/// Ops that are not worth cutting run whole on every device.
bool NodeFamilies::fixed(const IntraOpNode& node) const {
  if (node.kind != IntraOpNode::Kind::kOp) {
    return false;
  }
  const ir::Op& op = step_.op(node.members.front());
  if (node.members.size() > 1) {
    return false;
  }
  // What crosses stages is as large as what makes or reads it, in every phase; so is the part of a
  // gradient's sum that another stage takes.
  if (op.name == "send" || op.name == "receive" || op.name == "accumulate") {
    return false;
  }
  if (op.phase != ir::Phase::kForward) {
    return true;
  }
  // Index and mask arithmetic, constants, positions.
  const bool integer_result =
      std::none_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
        return ir::is_floating(step_.type(output).dtype);
      });
  return integer_result || constant_.contains(op.outputs.front());
}

/// Axes of the forward op that cut the dimensions of each value around it.
class KnownDimensions {
 public:
  /// Ties axes of an op through a value that it shares: axis `own[d][k]` is the known one there.
  void tie(ValueId value, const ops::DimAxes& own, std::vector<int>& tied) const {
    const auto it = dims_.find(value.value);
    if (it == dims_.end() || it->second.size() != own.size()) {
      return;
    }
    for (std::size_t d = 0; d < own.size(); ++d) {
      for (std::size_t k = 0; k < own[d].size() && own[d].size() == it->second[d].size(); ++k) {
        tied[static_cast<std::size_t>(own[d][k])] = it->second[d][k];
      }
    }
  }

  void add(ValueId value, const ops::DimAxes& dims) { dims_.emplace(value.value, dims); }

  /// Adds a value in the axes of an op, as far as they are tied.
  void add(ValueId value, ops::DimAxes own, const std::vector<int>& tied) {
    for (std::vector<int>& dim : own) {
      for (int& axis : dim) {
        axis = tied[static_cast<std::size_t>(axis)];
      }
      if (std::find(dim.begin(), dim.end(), -1) != dim.end()) {
        dim.clear();
      }
    }
    dims_.emplace(value.value, std::move(own));
  }

 private:
  std::unordered_map<std::int32_t, ops::DimAxes> dims_;
};

/// Where three gradients or more meet, the sums on the way are nobody's gradient: they have the
/// dimensions of what they are summed up to. From the last backward op to the first.
void NodeFamilies::add_by_results(const NodeFamily& family, KnownDimensions& known) const {
  for (std::size_t m = family.node.members.size(); m-- > 1;) {
    const ir::Op& op = step_.op(family.node.members[m]);
    const ops::AxisMap& map = family.maps[m];
    std::vector<int> tied(map.axes.size(), -1);
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      known.tie(op.outputs[r], map.results[r], tied);
    }
    if (std::find(tied.begin(), tied.end(), -1) == tied.end()) {
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        known.add(op.inputs[i], map.inputs[i], tied);
      }
    }
  }
}

void NodeFamilies::tie(NodeFamily& family) const {
  const IntraOpNode& node = family.node;
  KnownDimensions known;
  const auto add_gradient_of = [&](ValueId value, const ops::DimAxes& dims) {
    if (const auto it = gradient_of_.find(value.value); it != gradient_of_.end()) {
      known.add(it->second, dims);
    }
  };
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const ops::AxisMap& map = family.maps[m];
    const ir::Op& op = step_.op(node.members[m]);
    family.tied.emplace_back(map.axes.size(), -1);
    std::vector<int>& tied = family.tied.back();
    if (m == 0) {
      std::iota(tied.begin(), tied.end(), 0);
    }
    for (std::size_t i = 0; m > 0 && i < op.inputs.size(); ++i) {
      known.tie(op.inputs[i], map.inputs[i], tied);
    }
    for (std::size_t r = 0; m > 0 && r < op.outputs.size(); ++r) {
      known.tie(op.outputs[r], map.results[r], tied);
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      known.add(op.inputs[i], map.inputs[i], tied);
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      known.add(op.outputs[r], map.results[r], tied);
    }
    // The gradient of a value has the dimensions of the value.
    for (std::size_t r = 0; m == 0 && r < op.outputs.size(); ++r) {
      add_gradient_of(op.outputs[r], map.results[r]);
    }
    for (std::size_t i = 0; m == 0 && i < op.inputs.size(); ++i) {
      add_gradient_of(op.inputs[i], map.inputs[i]);
    }
    if (m == 0) {
      add_by_results(family, known);
    }
  }
  find_gradient_operands(family);
}

/// Operands of the backward members that come from the gradients of the node's results.
void NodeFamilies::find_gradient_operands(NodeFamily& family) const {
  const IntraOpNode& node = family.node;
  std::set<std::int32_t> gradients;
  for (const Port& port : node.reads) {
    if (step_.op(port.op).phase == ir::Phase::kBackward && is_backward_value(port.value)) {
      gradients.insert(port.value.value);
    }
  }
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    family.gradient_operands.emplace_back();
    const ir::Op& op = step_.op(node.members[m]);
    for (std::size_t i = 0; m > 0 && i < op.inputs.size(); ++i) {
      if (gradients.contains(op.inputs[i].value)) {
        family.gradient_operands.back().push_back(static_cast<int>(i));
      }
    }
    for (std::size_t r = 0; m > 0 && r < op.outputs.size(); ++r) {
      gradients.insert(op.outputs[r].value);
    }
  }
}

bool NodeFamilies::is_backward_value(ValueId value) const {
  const OpId producer = step_.value(value).producer;
  return producer.valid() && step_.op(producer).phase == ir::Phase::kBackward;
}

}  // namespace shardplan::problem
