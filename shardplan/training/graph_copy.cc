#include "shardplan/training/graph_copy.h"

#include <algorithm>
#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::training {

GraphCopy::GraphCopy(const ir::Graph& from, const std::vector<bool>* wanted)
    : from_(from), values_(from.values().size()), ops_(from.ops().size()) {
  to_.name = from.name;
  to_.microbatches = from.microbatches;
  for (std::size_t i = 0; i < from.values().size(); ++i) {
    const ir::Value& value = from.values()[i];
    if (value.kind != ir::ValueKind::kOpResult && (wanted == nullptr || (*wanted)[i])) {
      values_[i] = to_.add_value(value);
    }
  }
  // A state may be declared before the parameter that it starts from.
  for (std::size_t i = 0; i < to_.values().size(); ++i) {
    ir::Value& value = to_.value(ir::ValueId{i});
    if (value.init_from.valid()) {
      value.init_from = at(value.init_from);
    }
  }
}

ir::ValueId GraphCopy::at(ir::ValueId original) const {
  const ir::ValueId copy = values_[original.index()];
  SHARDPLAN_CHECK(copy.valid()) << "value " << original.value << " has not been copied";
  return copy;
}

ir::Op GraphCopy::op_like(ir::OpId original) const {
  ir::Op op = from_.op(original);
  for (ir::ValueId& input : op.inputs) {
    input = at(input);
  }
  if (op.source.valid()) {
    op.source = ops_[op.source.index()];
  }
  return op;
}

void GraphCopy::record(ir::OpId original, ir::OpId copy) {
  ops_[original.index()] = copy;
  const std::vector<ir::ValueId>& results = from_.op(original).outputs;
  for (std::size_t r = 0; r < results.size(); ++r) {
    set(results[r], to_.op(copy).outputs[r]);
    to_.value(to_.op(copy).outputs[r]).name = from_.value(results[r]).name;
  }
}

Status GraphCopy::append(ir::OpId original, ir::Op op) {
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId copy, ops::append(to_, std::move(op)));
  record(original, copy);
  return {};
}

void GraphCopy::keep(ir::OpId original) {
  const ops::OpTypes types = ops::op_types(from_, original);
  record(original, to_.add_op(op_like(original), types.results));
}

std::vector<ir::ValueId> GraphCopy::originals() const {
  std::vector<ir::ValueId> out(to_.values().size());
  for (std::size_t v = 0; v < values_.size(); ++v) {
    if (values_[v].valid()) {
      out[values_[v].index()] = ir::ValueId(v);
    }
  }
  return out;
}

ir::Graph GraphCopy::finish() && {
  for (const ir::ValueId output : from_.outputs) {
    to_.outputs.push_back(at(output));
  }
  for (const ir::Write& write : from_.writes) {
    to_.writes.push_back(ir::Write{at(write.target), at(write.value)});
  }
  for (const ir::Write& gradient : from_.gradients) {
    const ir::ValueId target = values_[gradient.target.index()];
    const ir::ValueId value = values_[gradient.value.index()];
    if (target.valid() && value.valid()) {
      to_.gradients.push_back(ir::Write{target, value});
    }
  }
  return std::move(to_);
}

namespace {

bool any_wanted(const ir::Op& op, const std::vector<bool>& wanted) {
  return std::any_of(op.outputs.begin(), op.outputs.end(), [&](ir::ValueId output) {
    return wanted[output.index()];
  });
}

/// Values that outputs and writes depend on, and those that belong to the model.
std::vector<bool> wanted_values(const ir::Graph& graph) {
  std::vector<bool> wanted(graph.values().size(), false);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ir::ValueKind kind = graph.values()[i].kind;
    wanted[i] = kind == ir::ValueKind::kParameter || kind == ir::ValueKind::kBuffer ||
                kind == ir::ValueKind::kInput;
  }
  for (const ir::ValueId output : graph.outputs) {
    wanted[output.index()] = true;
  }
  for (const ir::Write& write : graph.writes) {
    wanted[write.value.index()] = true;
    wanted[write.target.index()] = true;
  }
  for (std::size_t i = graph.ops().size(); i-- > 0;) {
    const ir::Op& op = graph.ops()[i];
    if (any_wanted(op, wanted)) {
      for (const ir::ValueId input : op.inputs) {
        wanted[input.index()] = true;
      }
    }
  }
  return wanted;
}

}  // namespace

ir::Graph without_dead_ops(ir::Graph graph) {
  const std::vector<bool> wanted = wanted_values(graph);
  bool all_alive = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ir::Value& value = graph.values()[i];
    all_alive = all_alive &&
                (value.producer.valid() ? any_wanted(graph.op(value.producer), wanted) : wanted[i]);
  }
  if (all_alive) {
    return graph;
  }
  GraphCopy copy(graph, &wanted);
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    if (any_wanted(graph.ops()[i], wanted)) {
      copy.keep(ir::OpId{i});
    }
  }
  return std::move(copy).finish();
}

}  // namespace shardplan::training
