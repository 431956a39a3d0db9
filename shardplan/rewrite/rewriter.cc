#include "shardplan/rewrite/rewriter.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::rewrite {

using ir::Op;
using ir::OpId;
using ir::Value;
using ir::ValueId;
using ir::ValueKind;

namespace {

/// A rule may emit ops to which rules apply in turn; a longer chain would be a rule that undoes
/// another.
constexpr int kMaxDepth = 64;

std::size_t content_hash(const Op& op) {
  std::size_t hash = std::hash<std::string>{}(op.name);
  const auto mix = [&](std::size_t value) { hash = hash * 1099511628211ULL + value; };
  for (const ValueId input : op.inputs) {
    mix(static_cast<std::size_t>(input.value));
  }
  for (const auto& [name, attribute] : op.attributes.entries()) {
    mix(std::hash<std::string>{}(name));
    if (const auto* const number = std::get_if<std::int64_t>(&attribute)) {
      mix(static_cast<std::size_t>(*number));
    } else if (const auto* const text = std::get_if<std::string>(&attribute)) {
      mix(std::hash<std::string>{}(*text));
    } else if (const auto* const list = std::get_if<ir::IntList>(&attribute)) {
      for (const std::int64_t entry : *list) {
        mix(static_cast<std::size_t>(entry));
      }
    }
  }
  return hash;
}

}  // namespace

bool is_unary_elementwise(const Op& op) {
  const ops::OpDef* const def = ops::find(op.name);
  return def != nullptr && def->elementwise && op.inputs.size() == 1;
}

bool is_broadcasting(const Op& op) {
  const ops::OpDef* const def = ops::find(op.name);
  return def != nullptr && def->elementwise && op.inputs.size() > 1;
}

Rewriter::Rewriter(const ir::Graph& source, std::span<const Rule> rules)
    : source_(source), rules_(rules), new_id_(source.values().size()) {
  graph_.name = source.name;
  graph_.microbatches = source.microbatches;
}

void Rewriter::count_uses() {
  old_uses_.assign(source_.values().size(), 0);
  for (const Op& op : source_.ops()) {
    for (const ValueId input : op.inputs) {
      ++old_uses_[input.index()];
    }
  }
  for (const ValueId output : source_.outputs) {
    ++old_uses_[output.index()];
  }
  for (const ir::Write& write : source_.writes) {
    ++old_uses_[write.value.index()];
  }
}

Result<Rewriter::Outcome> Rewriter::run() {
  count_uses();
  for (std::size_t i = 0; i < source_.values().size(); ++i) {
    if (source_.values()[i].kind != ValueKind::kOpResult) {
      new_id_[i] = graph_.add_value(source_.values()[i]);
    }
  }
  for (const Op& old_op : source_.ops()) {
    if (old_op.phase != ir::Phase::kForward) {
      return invalid_input("canonicalize works on forward graphs, not on whole training steps",
                           old_op.name);
    }
    Op op = old_op;
    op.outputs.clear();
    for (ValueId& input : op.inputs) {
      input = new_id_[input.index()];
    }
    layer_ = op.layer;
    failed_ = false;
    const std::vector<ValueId> results = rewrite(op);
    if (failed_) {
      return invalid_input("the op does not fit its operands", old_op.name);
    }
    map_results(old_op, results);
  }
  for (const ValueId output : source_.outputs) {
    graph_.outputs.push_back(new_id_[output.index()]);
  }
  for (const ir::Write& write : source_.writes) {
    graph_.writes.push_back({new_id_[write.target.index()], new_id_[write.value.index()]});
  }
  Outcome outcome{drop_dead(graph_), changed_};
  outcome.changed = outcome.changed || outcome.graph.ops().size() != source_.ops().size();
  return outcome;
}

void Rewriter::map_results(const Op& old_op, const std::vector<ValueId>& results) {
  uses_.resize(graph_.values().size(), 0);
  for (std::size_t r = 0; r < results.size(); ++r) {
    const ValueId old_id = old_op.outputs[r];
    new_id_[old_id.index()] = results[r];
    uses_[results[r].index()] += old_uses_[old_id.index()];
    Value& value = graph_.value(results[r]);
    if (value.kind == ValueKind::kOpResult && value.name.empty()) {
      value.name = source_.value(old_id).name;
    }
  }
}

const Op* Rewriter::made_by(ValueId value, std::string_view name) const {
  const Value& v = graph_.value(value);
  if (!v.producer.valid() || v.result_index != 0) {
    return nullptr;
  }
  const Op& op = graph_.op(v.producer);
  return op.name == name ? &op : nullptr;
}

bool Rewriter::read_once(ValueId value) const {
  return value.index() < uses_.size() && uses_[value.index()] == 1;
}

ValueId Rewriter::emit(std::string name, std::vector<ValueId> inputs, ir::Attributes attributes) {
  const std::vector<ValueId> results =
      emit_all(std::move(name), std::move(inputs), std::move(attributes));
  return results.empty() ? ValueId{} : results.front();
}

std::vector<ValueId> Rewriter::emit_all(std::string name,
                                        std::vector<ValueId> inputs,
                                        ir::Attributes attributes) {
  const bool complete =
      std::all_of(inputs.begin(), inputs.end(), [](ValueId input) { return input.valid(); });
  if (failed_ || !complete) {
    failed_ = true;
    return {};
  }
  Op op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.attributes = std::move(attributes);
  op.layer = layer_;
  return rewrite(op);
}

ValueId Rewriter::reshape(ValueId value, const ir::Shape& shape) {
  return emit("reshape", {value}, {{"shape", ir::IntList(shape)}});
}

ValueId Rewriter::transpose(ValueId value, const ir::IntList& permutation) {
  return emit("transpose", {value}, {{"permutation", permutation}});
}

std::vector<ValueId> Rewriter::rewrite(const Op& op) {
  if (depth_ < kMaxDepth) {
    ++depth_;
    std::optional<std::vector<ValueId>> replaced = apply_rules(op);
    --depth_;
    if (replaced.has_value()) {
      changed_ = true;
      return std::move(*replaced);
    }
  }
  return append(op);
}

std::optional<std::vector<ValueId>> Rewriter::apply_rules(const Op& op) {
  for (const Rule& rule : rules_) {
    std::optional<std::vector<ValueId>> results = rule.apply(*this, op);
    if (results.has_value() && !failed_) {
      return results;
    }
    failed_ = false;  // what the rule emitted is dead and goes away
  }
  return std::nullopt;
}

std::vector<ValueId> Rewriter::append(const Op& op) {
  const std::size_t hash = content_hash(op);
  const auto [begin, end] = by_content_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    const Op& known = graph_.op(entry->second);
    if (known.name == op.name && known.inputs == op.inputs && known.attributes == op.attributes) {
      return known.outputs;
    }
  }
  Result<OpId> id = ops::append(graph_, op);
  if (!id) {
    failed_ = true;
    return {};
  }
  by_content_.emplace(hash, *id);
  return graph_.op(*id).outputs;
}

ir::Graph drop_dead(const ir::Graph& graph) {
  std::vector<bool> needed(graph.values().size(), false);
  for (const ValueId output : graph.outputs) {
    needed[output.index()] = true;
  }
  for (const ir::Write& write : graph.writes) {
    needed[write.value.index()] = true;
  }
  std::vector<bool> live(graph.ops().size(), false);
  for (std::size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    live[i] = std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
      return needed[output.index()];
    });
    if (live[i]) {
      for (const ValueId input : op.inputs) {
        needed[input.index()] = true;
      }
    }
  }
  ir::Graph out;
  out.name = graph.name;
  out.microbatches = graph.microbatches;
  std::vector<ValueId> new_id(graph.values().size());
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    const ValueKind kind = graph.values()[i].kind;
    if (kind != ValueKind::kOpResult && (kind != ValueKind::kConstant || needed[i])) {
      new_id[i] = out.add_value(graph.values()[i]);
    }
  }
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    if (!live[i]) {
      continue;
    }
    Op op = graph.ops()[i];
    std::vector<ir::TensorType> types;
    types.reserve(op.outputs.size());
    for (const ValueId output : op.outputs) {
      types.push_back(graph.type(output));
    }
    for (ValueId& input : op.inputs) {
      input = new_id[input.index()];
    }
    const std::vector<ValueId> old_outputs = op.outputs;
    const OpId id = out.add_op(std::move(op), types);
    for (std::size_t r = 0; r < old_outputs.size(); ++r) {
      new_id[old_outputs[r].index()] = out.op(id).outputs[r];
      out.value(out.op(id).outputs[r]).name = graph.value(old_outputs[r]).name;
    }
  }
  for (const ValueId output : graph.outputs) {
    out.outputs.push_back(new_id[output.index()]);
  }
  for (const ir::Write& write : graph.writes) {
    out.writes.push_back({new_id[write.target.index()], new_id[write.value.index()]});
  }
  return out;
}

}  // namespace shardplan::rewrite
