// Bytes at a program point, as a sum over nodes and edges. A value that one other node reads is
// accounted on that edge, in the layout (or layouts) in which lower() keeps it; all other storage
// on the node that makes it. Views cost nothing and prolong the life of what they view.
#include <algorithm>
#include <limits>

#include "shardplan/ops/op.h"
#include "shardplan/problem/graph_tables.h"

namespace shardplan::problem {

using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using sharding::ShardingSpec;
using solvers::CostTable;

namespace {

bool within(int first, int last, int at) {
  return first >= 0 && first <= at && at <= last;
}

}  // namespace

/// Whether a value is live at an op: from its definition to its last read, or, when its block runs
/// again from `rerun_start` on (negative: it does not), to its last forward read and then again.
bool GraphTables::live(int definition, const Span& span, int at, int rerun_start) const {
  if (rerun_start < 0) {
    return within(definition, std::max(definition, span.last()), at);
  }
  return within(definition, std::max(definition, span.last_forward), at) ||
         (span.last_backward >= 0 && within(rerun_start, span.last_backward, at));
}

double GraphTables::workspace(const IntraOpNode& node,
                              const NodeChoice& chosen,
                              std::size_t member) const {
  const ir::OpId id = node.members[member];
  const auto workspace = ops::get(step_.op(id).name).workspace;
  if (workspace == nullptr) {
    return 0;
  }
  ops::OpTypes types = ops::op_types(step_, id);
  const cluster::DeviceMesh& mesh = problem_.cost_->mesh();
  for (std::size_t i = 0; i < types.inputs.size(); ++i) {
    types.inputs[i].shape =
        sharding::local_shape(chosen.layouts[member].inputs[i], types.inputs[i].shape, mesh);
  }
  for (std::size_t r = 0; r < types.results.size(); ++r) {
    types.results[r].shape =
        sharding::local_shape(chosen.layouts[member].results[r], types.results[r].shape, mesh);
  }
  return static_cast<double>(
      workspace(ops::OpView{types.inputs, types.results, step_.op(id).attributes}));
}

/// A stored parameter, its optimizer state and gradient sum, and what its update needs for a
/// moment.
double GraphTables::parameter_bytes(const IntraOpNode& node,
                                    const NodeChoice& chosen,
                                    int at) const {
  double total = bytes(chosen.stored, node.parameter);
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const ir::Op& op = step_.op(node.members[m]);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueKind kind = step_.value(op.inputs[i]).kind;
      const bool own = kind == ValueKind::kState || kind == ValueKind::kAccumulator;
      if (own && step_.type(op.inputs[i]).rank() == step_.type(node.parameter).rank()) {
        total += bytes(chosen.layouts[m].inputs[i], op.inputs[i]);
      }
    }
    if (at == node.members[m].value && op.phase == Phase::kUpdate &&
        chosen.stored != chosen.state) {
      total += bytes(chosen.stored, node.parameter) + bytes(chosen.state, node.parameter);
    }
  }
  return total;
}

double GraphTables::own_bytes(int n, const NodeChoice& chosen, int at, bool rerun) const {
  const IntraOpNode& node = problem_.nodes_[static_cast<std::size_t>(n)];
  double total = 0;
  if (node.kind == IntraOpNode::Kind::kParameter) {
    total += parameter_bytes(node, chosen, at);
  }
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const ir::Op& op = step_.op(node.members[m]);
    const int definition = node.members[m].value;
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      const ValueId value = op.outputs[r];
      if (!is_storage(value) || readers_[value.index()].size() == 1) {
        continue;
      }
      const bool again = rerun && op.phase == Phase::kForward && !problem_.kept_[value.index()];
      const int start = again ? backward_start_[static_cast<std::size_t>(n)] : -1;
      if (live(definition, span_[value.index()], at, start)) {
        total += bytes(chosen.layouts[m].results[r], value);
      }
    }
    if (definition == at) {
      total += workspace(node, chosen, m);
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      // User inputs lie on the device in the layout of their first reader.
      if (step_.value(op.inputs[i]).kind == ValueKind::kInput &&
          span_[op.inputs[i].index()].first_forward == definition) {
        total += bytes(chosen.layouts[m].inputs[i], op.inputs[i]);
      }
    }
  }
  return total;
}

/// Over the node's choice and, where its block may run again, the block's variable.
CostTable GraphTables::node_bytes(int n, int at) {
  std::vector<double> table;
  bool any = false;
  for (const NodeChoice& c : choices(n)) {
    table.push_back(own_bytes(n, c, at, false));
    any = any || table.back() != 0;
    if (block_variable(n) >= 0) {
      table.push_back(own_bytes(n, c, at, true));
      any = any || table.back() != 0;
    }
  }
  return any ? std::make_shared<const std::vector<double>>(std::move(table)) : nullptr;
}

GraphTables::Times GraphTables::times(const IntraOpEdge& edge, const EdgeFacts& facts) const {
  const IntraOpNode& from = problem_.nodes_[static_cast<std::size_t>(edge.from)];
  const IntraOpNode& to = problem_.nodes_[static_cast<std::size_t>(edge.to)];
  const ValueId value = from.writes[static_cast<std::size_t>(edge.write)].value;
  const ir::OpId producer = step_.value(value).producer;
  Times times;
  times.definition = producer.valid() ? producer.value : 0;
  for (const int read : edge.reads) {
    const ir::OpId op = to.reads[static_cast<std::size_t>(read)].op;
    times.reads.add(op.value, step_.op(op).phase);
    if (ops::get(step_.op(op).name).view) {
      times.forward_views = times.forward_views || step_.op(op).phase == Phase::kForward;
      times.reads.merge(span_[step_.op(op).outputs[0].index()]);
    }
  }
  times.own = own_span_[value.index()];
  if (facts.recomputable) {
    times.from_restart = backward_start_[static_cast<std::size_t>(edge.from)];
  }
  if (!to.block.empty()) {
    times.to_restart = backward_start_[static_cast<std::size_t>(edge.to)];
  }
  return times;
}

double GraphTables::value_bytes(const IntraOpEdge& edge,
                                const EdgeFacts& facts,
                                const Times& times,
                                const ShardingSpec& made,
                                const std::vector<ShardingSpec>& reads,
                                bool from_again,
                                bool to_again,
                                int at) const {
  const auto producer = static_cast<std::size_t>(edge.from);
  const ValueId value =
      problem_.nodes_[producer].writes[static_cast<std::size_t>(edge.write)].value;
  const bool again = from_again && facts.recomputable;
  const bool accounted = facts.sole_reader && !facts.view && !facts.parameter;
  if (settles(edge, facts, made, reads)) {
    Span life = times.reads;
    life.merge(times.own);
    const bool there = live(times.definition, life, at, again ? times.from_restart : -1);
    return (there ? bytes(reads.front(), value) : 0) +
           (accounted && at == times.definition ? bytes(made, value) : 0);
  }
  // Until when the layout in which the value was made is needed, by phase.
  Span original = times.own;
  double total = 0;
  std::vector<ShardingSpec> seen;
  for (const ShardingSpec& to : reads) {
    if (std::find(seen.begin(), seen.end(), to) != seen.end()) {
      continue;
    }
    seen.push_back(to);
    const Span part = reads_of(facts, times, reads, to);
    if (to == made) {
      original.merge(part);
    } else if (changed_copy_is_live(facts, times, part, again, to_again, at, original)) {
      total += bytes(to, value);
    }
  }
  if (accounted && live(times.definition, original, at, again ? times.from_restart : -1)) {
    total += bytes(made, value);
  }
  return total;
}

/// Whether a copy in another layout than the value was made in is live; adds to `original` the
/// moments when the change is made.
bool GraphTables::changed_copy_is_live(const EdgeFacts& facts,
                                       const Times& times,
                                       const Span& part,
                                       bool from_again,
                                       bool to_again,
                                       int at,
                                       Span& original) {
  const bool kept = !facts.parameter && !facts.backward_value && !from_again && !to_again &&
                    part.first_forward >= 0;
  int second = part.first_backward;
  if (to_again && facts.reader_reruns && part.first_forward >= 0 && times.to_restart >= 0) {
    second = second < 0 ? times.to_restart : std::min(second, times.to_restart);
  }
  if (part.first_forward >= 0) {
    original.add(part.first_forward, Phase::kForward);
  }
  if (part.last_update >= 0) {
    original.add(part.last_update, Phase::kUpdate);
  }
  if (!kept && second >= 0) {
    original.add(second, Phase::kBackward);
  }
  const bool backward = kept ? within(part.first_forward, part.last_backward, at)
                             : within(second, part.last_backward, at);
  return backward || within(part.first_forward, part.last_forward, at) ||
         (part.last_update >= 0 && at == part.last_update);
}

/// The reads in one layout.
Span GraphTables::reads_of(const EdgeFacts& facts,
                           const Times& times,
                           const std::vector<ShardingSpec>& reads,
                           const ShardingSpec& layout) {
  Span part;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i] != layout) {
      continue;
    }
    switch (facts.phases[i]) {
      case Phase::kForward:
        part.first_forward = times.reads.first_forward;
        part.last_forward = times.reads.last_forward;
        // A view made in the forward pass may be read in the backward pass.
        if (times.forward_views) {
          part.first_backward = times.reads.first_backward;
          part.last_backward = times.reads.last_backward;
        }
        break;
      case Phase::kBackward:
        part.first_backward = times.reads.first_backward;
        part.last_backward = times.reads.last_backward;
        break;
      case Phase::kUpdate:
        part.last_update = times.reads.last_update;
        break;
    }
  }
  return part;
}

CostTable GraphTables::edge_bytes(const IntraOpEdge& edge, const EdgeFacts& facts, int at) {
  const Times times = this->times(edge, facts);
  std::string key = "b" + edge_key(edge, facts) + (times.forward_views ? 'v' : '-');
  for (const int moment : {times.definition,
                           times.reads.first_forward,
                           times.reads.last_forward,
                           times.reads.first_backward,
                           times.reads.last_backward,
                           times.reads.last_update,
                           times.own.last_forward,
                           times.own.last_backward,
                           times.from_restart,
                           times.to_restart}) {
    key += moment < 0 ? 'n' : (at < moment ? '<' : (at == moment ? '=' : '>'));
  }
  const auto [known, fresh] = known_.emplace(key, nullptr);
  if (fresh) {
    CostTable table = edge_table(edge, facts, [&](int f, int t, bool from_again, bool to_again) {
      const NodeChoice& from = choices(edge.from)[static_cast<std::size_t>(f)];
      return value_bytes(edge,
                         facts,
                         times,
                         from.writes[static_cast<std::size_t>(edge.write)],
                         edge_reads(edge, t),
                         from_again,
                         to_again,
                         at);
    });
    const bool any = std::any_of(table->begin(), table->end(), [](double b) { return b != 0; });
    known->second = any ? std::move(table) : nullptr;
  }
  return known->second;
}

void GraphTables::add_row(StrategyGraph& graph, const IntraOpProblem::ProgramPoint& point) {
  solvers::ConstrainedProblem::Row row;
  const int at = point.op.value;
  row.unary.resize(graph.problem.objective.unary.size());
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    CostTable bytes = node_bytes(static_cast<int>(n), at);
    if (block_variable(static_cast<int>(n)) >= 0) {
      row.factors.push_back(std::move(bytes));
    } else {
      row.unary[n] = std::move(bytes);
    }
  }
  for (const IntraOpEdge& edge : problem_.edges_) {
    row.factors.push_back(edge_bytes(edge, facts(edge), at));
  }
  for (const ir::Value& value : step_.values()) {
    if (value.kind == ValueKind::kBuffer || value.kind == ValueKind::kConstant) {
      row.constant += static_cast<double>(value.type.bytes());
    }
  }
  row.limit = std::numeric_limits<double>::infinity();
  const ir::Op& op = step_.op(point.op);
  graph.rows.push_back(op.layer + " " + op.name + "." + std::to_string(at));
  graph.problem.rows.push_back(std::move(row));
}

}  // namespace shardplan::problem
