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

CostTable GraphTables::node_bytes(int n, int at) {
  std::vector<double> table;
  bool any = false;
  for (int c = 0; c < choices(n); ++c) {
    table.push_back(own_bytes(n, choice(n, c), at, doubled(n) && c % 2 == 1));
    any = any || table.back() != 0;
  }
  return any ? std::make_shared<const std::vector<double>>(std::move(table)) : nullptr;
}

GraphTables::Presence GraphTables::presence(const IntraOpEdge& edge,
                                            const EdgeFacts& facts,
                                            int at) const {
  const IntraOpNode& from = problem_.nodes_[static_cast<std::size_t>(edge.from)];
  const IntraOpNode& to = problem_.nodes_[static_cast<std::size_t>(edge.to)];
  const ValueId value = from.writes[static_cast<std::size_t>(edge.write)].value;
  const ir::OpId producer = step_.value(value).producer;
  const int definition = producer.valid() ? producer.value : 0;
  Span reads;
  for (const int read : edge.reads) {
    const ir::OpId op = to.reads[static_cast<std::size_t>(read)].op;
    reads.add(op.value, step_.op(op).phase);
    if (ops::get(step_.op(op).name).view) {
      reads.merge(span_[step_.op(op).outputs[0].index()]);
    }
  }
  const int from_start =
      facts.recomputable ? backward_start_[static_cast<std::size_t>(edge.from)] : -1;
  const int to_start = to.block.empty() ? -1 : backward_start_[static_cast<std::size_t>(edge.to)];
  Presence presence;
  presence.at_definition = definition == at && producer.valid();
  int first = reads.first_forward;
  first = first < 0 ? reads.first_backward : first;
  first = first < 0 ? reads.last_update : first;
  for (int f = 0; f < 2; ++f) {
    const int restart = f == 1 ? from_start : -1;
    presence.own[f] = facts.own_reads && live(definition, span_[value.index()], at, restart);
    presence.before_change[f] = within(definition, first, at);
    for (int t = 0; t < 2; ++t) {
      presence.whole[f][t] = live(definition, span_[value.index()], at, restart);
      bool changed = false;
      if (facts.parameter) {
        const int again = t == 1 && facts.reader_reruns ? to_start : reads.first_backward;
        changed = within(reads.first_forward, reads.last_forward, at) ||
                  within(again, reads.last_backward, at);
      } else {
        const int again = restart >= 0 ? restart : (t == 1 ? to_start : -1);
        changed = live(first, reads, at, facts.backward_value ? -1 : again);
        // An original that a recomputed reader changes again must still be there.
        presence.before_change[f] =
            presence.before_change[f] || (t == 1 && again >= 0 && within(definition, again, at));
      }
      presence.changed[f][t] = changed;
    }
  }
  return presence;
}

CostTable GraphTables::edge_bytes(const IntraOpEdge& edge, const EdgeFacts& facts, int at) {
  const Presence p = presence(edge, facts, at);
  std::string key = "b" + edge_key(edge, facts);
  bool any = p.at_definition;
  for (int f = 0; f < 2; ++f) {
    key += static_cast<char>('0' + (p.own[f] ? 1 : 0) + (p.before_change[f] ? 2 : 0));
    any = any || p.own[f] || p.before_change[f];
    for (int t = 0; t < 2; ++t) {
      key += static_cast<char>('0' + (p.whole[f][t] ? 1 : 0) + (p.changed[f][t] ? 2 : 0));
      any = any || p.whole[f][t] || p.changed[f][t];
    }
  }
  key += p.at_definition ? 'd' : '-';
  if (!any) {
    return nullptr;
  }
  CostTable& known = known_[key];
  if (known) {
    return known;
  }
  const auto producer = static_cast<std::size_t>(edge.from);
  const ValueId value =
      problem_.nodes_[producer].writes[static_cast<std::size_t>(edge.write)].value;
  known = edge_table(edge, [&](int fc, int tc) {
    const int f = doubled(edge.from) && fc % 2 == 1 ? 1 : 0;
    const int t = doubled(edge.to) && tc % 2 == 1 ? 1 : 0;
    const ShardingSpec& from = choice(edge.from, fc).writes[static_cast<std::size_t>(edge.write)];
    const std::vector<ShardingSpec> reads = edge_reads(edge, tc);
    std::vector<ShardingSpec> changed;
    for (const ShardingSpec& read : reads) {
      if (read != from && std::find(changed.begin(), changed.end(), read) == changed.end()) {
        changed.push_back(read);
      }
    }
    const bool accounted = facts.sole_reader && !facts.view && !facts.parameter;
    double total = 0;
    if (settles(edge, facts, from, reads)) {
      total += p.whole[f][t] ? bytes(reads.front(), value) : 0;
      return total + (accounted && p.at_definition ? bytes(from, value) : 0);
    }
    for (const ShardingSpec& read : changed) {
      total += p.changed[f][t] ? bytes(read, value) : 0;
    }
    if (accounted) {
      const bool unchanged_read =
          std::any_of(reads.begin(), reads.end(), [&](const auto& read) { return read == from; });
      const bool there = unchanged_read ? p.whole[f][t] : p.own[f] || p.before_change[f];
      total += there ? bytes(from, value) : 0;
    }
    return total;
  });
  return known;
}

void GraphTables::add_row(StrategyGraph& graph, const IntraOpProblem::ProgramPoint& point) {
  solvers::ConstrainedProblem::Row row;
  const int at = point.op.value;
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    row.unary.push_back(node_bytes(static_cast<int>(n), at));
  }
  for (const IntraOpEdge& edge : problem_.edges_) {
    row.edges.push_back(edge_bytes(edge, facts(edge), at));
  }
  row.edges.resize(graph.problem.objective.edges.size());
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
