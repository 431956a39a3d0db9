// Bytes at a moment of the step, as a sum over nodes and edges. A value that one other node reads
// is counted on that edge, in the layout (or layouts) in which lower() keeps it; all other storage
// on the node that makes it, and copies in other layouts on the edge to their reader. Views cost
// nothing and prolong the life of what they view.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardplan/lower/local_op.h"
#include "shardplan/ops/op.h"
#include "shardplan/problem/graph_tables.h"

namespace shardplan::problem {

using ir::OpId;
using ir::ValueId;
using ir::ValueKind;
using sharding::ShardingSpec;
using solvers::CostTable;

namespace {

bool within(Moment first, Moment last, Moment at) {
  return first >= 0 && first <= at && at <= last;
}

/// Where each of the moments lies, seen from `at`.
void add_relations(std::string& key, const std::vector<Moment>& moments, Moment at) {
  for (const Moment moment : moments) {
    key += moment < 0 ? 'n' : (at < moment ? '<' : (at == moment ? '=' : '>'));
  }
}

}  // namespace

const NodeFamily& GraphTables::family_of(int n) const {
  const int family = problem_.structure_->family(static_cast<std::size_t>(n));
  return problem_.structure_->families()[static_cast<std::size_t>(family)];
}

double GraphTables::run_bytes(
    int n, const NodeChoice& chosen, std::size_t member, Moment run, Moment at) const {
  const NodeFamily& family = family_of(n);
  const ir::Op& op = step_.op(node(n).members[member]);
  const ops::OpDef& def = ops::get(op.name);
  const ops::AxisMap& map = family.maps[member];
  const bool halos = at == Timeline::halo(run, 0) || at == Timeline::halo(run, 1);
  if ((!halos && at != run) || (halos && map.halos.empty()) ||
      (map.halos.empty() && def.workspace == nullptr)) {
    return 0;
  }
  const lower::LocalOp local = lower::local_op(def,
                                               map,
                                               family.types[member],
                                               op.attributes,
                                               chosen.layouts[member],
                                               problem_.cost_->mesh());
  Bytes total = halos ? 0 : local.workspace;
  for (const lower::HaloExchange& halo : local.exchanges) {
    if (Timeline::halo(run, halo.operand) <= at) {
      total += halo.made.bytes();
      total += Timeline::halo(run, halo.operand) == at ? halo.workspace : 0;
    }
  }
  return static_cast<double>(total);
}

/// Bytes of a value that are there while it changes layout, besides the value as it was made.
double GraphTables::change_bytes(const ValueUse& use,
                                 const ShardingSpec& made,
                                 const ShardingSpec& to,
                                 bool last_use_of_made) {
  const ir::TensorType& type = step_.type(use.value);
  const cluster::DeviceMesh& mesh = problem_.cost_->mesh();
  const auto local = [&](const ShardingSpec& spec) {
    return ir::TensorType{type.dtype, sharding::local_shape(spec, type.shape, mesh)};
  };
  double most = 0;
  bool first = true;
  for (const sharding::ReshardStep& step : problem_.resharder_->path(made, to, type).steps) {
    const ir::TensorType in = local(step.from);
    const ir::TensorType out = local(step.to);
    auto now = static_cast<double>(out.bytes() + lower::collective_workspace(step, in, out, mesh));
    if (!first) {
      now += static_cast<double>(in.bytes());
      now -= last_use_of_made && use.accounted ? bytes(made, use.value) : 0;
    }
    most = std::max(most, now);
    first = false;
  }
  return most;
}

double GraphTables::value_bytes(const ValueUse& use,
                                const EdgeLayouts& layouts,
                                std::size_t from,
                                std::size_t to,
                                const ValueLife& life,
                                Moment at) {
  double total = 0;
  const auto there = [&](const auto& span) { return within(span.first, span.second, at); };
  if (use.accounted && (there(life.original[0]) || there(life.original[1]))) {
    total += layouts.made_bytes[from];
  }
  for (const CopyLife& copy : life.copies) {
    const auto number = static_cast<std::size_t>(layouts.reads[to][copy.read]);
    if (at == copy.change) {
      const bool last = at == life.original[0].second || at == life.original[1].second;
      total += change_bytes(use, layouts.made_spec[from], layouts.read_spec[number], last);
    } else if (within(copy.change, copy.end, at)) {
      total += layouts.read_bytes[number];
    }
  }
  return total;
}

const ClassNetwork::Factor* GraphTables::edge_byte_classes(std::size_t edge, Moment at) {
  const EdgeFacts& facts = edges_[edge];
  std::string key = facts.key;
  add_relations(key, facts.known.moments, at);
  const auto [known, fresh] = known_bytes_.emplace(std::move(key), ClassNetwork::Factor{});
  if (fresh) {
    const EdgeLayouts layouts = edge_layouts(problem_.edges_[edge], false);
    EdgeLives lives(facts, layouts);
    ClassNetwork::Factor factor = edge_classes(
        problem_.edges_[edge], facts, [&](std::size_t from, std::size_t to, std::size_t hows) {
          return value_bytes(facts.known.use, layouts, from, to, lives.of(from, to, hows), at);
        });
    if (std::any_of(factor.cost->begin(), factor.cost->end(), [](double b) { return b != 0; })) {
      known->second = std::move(factor);
    }
  }
  return known->second.cost ? &known->second : nullptr;
}

CostTable GraphTables::edge_bytes(std::size_t edge, Moment at) {
  const ClassNetwork::Factor* const factor = edge_byte_classes(edge, at);
  if (factor == nullptr) {
    return nullptr;
  }
  CostTable& known = known_[fmt::format("b{}", static_cast<const void*>(factor->cost.get()))];
  if (!known) {
    known = std::make_shared<const std::vector<double>>(expand(*factor));
  }
  return known;
}

GraphTables::InnerValue GraphTables::inner_value(int n, int member, ValueId value) const {
  const IntraOpNode& node = this->node(n);
  const lower::Readers& readers = readers_[value.index()];
  InnerValue inner;
  inner.member = member;
  ValueUse use = use_of(value);
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const ir::Op& op = step_.op(node.members[m]);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (op.inputs[k] == value) {
        inner.reads.emplace_back(static_cast<int>(m), static_cast<int>(k));
        use.reads.push_back(read_by(node.members[m], static_cast<int>(k)));
      }
    }
  }
  if (written_[value.index()] >= 0) {
    ValueRead write;
    write.phase = ir::Phase::kUpdate;
    write.reader = lower::kWritesReader;
    write.operand = -1;
    write.change = written_[value.index()];
    write.end = write.change;
    inner.reads.emplace_back(-1, -1);
    use.reads.push_back(write);
  }
  use.settles = use.settles && inner_[value.index()];
  use.accounted = use.accounted && inner_[value.index()];
  if (member >= 0 && !shares_storage(value) && !use.accounted) {
    // Otherwise an edge to the only reader counts it.
    inner.counted = readers.several || readers.first == lower::kNoReader || inner_[value.index()];
    const std::size_t v = value.index();
    for (std::size_t how = 0; how < kHows; ++how) {
      const std::size_t known = recompute_ ? how : 0;
      const Moment later = std::max(backward_end_[known][v], update_end_[v]);
      inner.first_end[how] = std::max({use.made, forward_end_[v], use.dropped[how] ? -1 : later});
      inner.second_end[how] = std::max(use.again[how], later);
    }
    inner.rerun_is_brief =
        std::any_of(use.again.begin(), use.again.end(), [](Moment again) { return again >= 0; });
  }
  inner.known = known(std::move(use));
  return inner;
}

GraphTables::NodeFacts GraphTables::node_facts(int n) const {
  const IntraOpNode& node = this->node(n);
  NodeFacts facts;
  const auto add = [&](int member, ValueId value) {
    InnerValue inner = inner_value(n, member, value);
    facts.key += '|' + inner.known.key;
    facts.key += inner.counted ? 'c' : '-';
    facts.moments.insert(
        facts.moments.end(), inner.known.moments.begin(), inner.known.moments.end());
    for (const auto* ends : {&inner.first_end, &inner.second_end}) {
      facts.moments.insert(facts.moments.end(), ends->begin(), ends->end());
    }
    facts.values.push_back(std::move(inner));
  };
  if (node.parameter.valid()) {
    add(-1, node.parameter);
  }
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const OpId member = node.members[m];
    const bool halos = !family_of(n).maps[m].halos.empty();
    const auto add_run = [&](Moment run) {
      for (int i = 0; halos && i < 2; ++i) {
        facts.moments.push_back(run < 0 ? run : Timeline::halo(run, i));
      }
      facts.moments.push_back(run);
    };
    add_run(Timeline::run(member));
    for (std::size_t how = 0; recompute_ && how < kHows; ++how) {
      add_run(timeline_.again(member, static_cast<int>(how)));
    }
    for (const int operand : lies_here_[member.index()]) {
      facts.key += static_cast<char>('A' + operand);
    }
    facts.key += ';';
    for (const ValueId output : step_.op(member).outputs) {
      add(static_cast<int>(m), output);
    }
  }
  facts.key = fmt::format(
      "{}/{}{}", static_cast<const void*>(node.type.get()), block_variable(n) >= 0, facts.key);
  return facts;
}

/// A stored parameter, and the inputs and states that lie as this node reads them.
double GraphTables::resident_bytes(int n, const NodeChoice& chosen) const {
  const IntraOpNode& node = this->node(n);
  double total = node.parameter.valid() ? bytes(chosen.stored, node.parameter) : 0;
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    for (const int operand : lies_here_[node.members[m].index()]) {
      const auto k = static_cast<std::size_t>(operand);
      total += bytes(chosen.layouts[m].inputs[k], step_.op(node.members[m]).inputs[k]);
    }
  }
  return total;
}

/// The layouts of one choice, as the only class of writes and of reads.
GraphTables::EdgeLayouts GraphTables::inner_layouts(int n,
                                                    const InnerValue& inner,
                                                    const NodeChoice& chosen,
                                                    const ShardingSpec& made) const {
  const ValueId value = inner.known.use.value;
  EdgeLayouts out;
  out.made_spec = {made};
  out.made_bytes = {bytes(made, value)};
  out.reads.emplace_back();
  for (const auto& [member, operand] : inner.reads) {
    const bool stored = member < 0 && target_[value.index()] == node(n).parameter;
    const ShardingSpec& spec = member >= 0 ? chosen.layouts[static_cast<std::size_t>(member)]
                                                 .inputs[static_cast<std::size_t>(operand)]
                               : stored ? chosen.stored
                                        : made;
    const auto known = std::find(out.read_spec.begin(), out.read_spec.end(), spec);
    out.reads.back().push_back(static_cast<int>(known - out.read_spec.begin()));
    if (known == out.read_spec.end()) {
      out.read_spec.push_back(spec);
      out.read_bytes.push_back(bytes(spec, value));
    }
  }
  const auto same = std::find(out.read_spec.begin(), out.read_spec.end(), made);
  out.made = {same == out.read_spec.end() ? -1 : static_cast<int>(same - out.read_spec.begin())};
  return out;
}

double GraphTables::inner_bytes(
    int n, const InnerValue& inner, const NodeChoice& chosen, Moment at, int how) {
  const ValueUse& use = inner.known.use;
  const auto h = static_cast<std::size_t>(how);
  const ShardingSpec& made = inner.member < 0
                                 ? chosen.stored
                                 : chosen.layouts[static_cast<std::size_t>(inner.member)]
                                       .results[static_cast<std::size_t>(use.result)];
  double total = 0;
  if (inner.counted) {
    const bool twice = use.dropped[h] && use.again[h] >= 0;
    const bool there = within(use.made, inner.first_end[h], at) ||
                       (twice && within(use.again[h], inner.second_end[h], at));
    total += there ? bytes(made, use.value) : 0;
  }
  if (inner.rerun_is_brief && !use.dropped[h] && at == use.again[h]) {
    total += bytes(made, use.value);  // a second result beside the kept one
  }
  if (!inner.reads.empty()) {
    const EdgeLayouts layouts = inner_layouts(n, inner, chosen, made);
    total += value_bytes(use, layouts, 0, 0, life(use, layouts, 0, 0, {how, how}), at);
  }
  return total;
}

double GraphTables::own_bytes(int n, const NodeChoice& chosen, Moment at, int how) {
  const IntraOpNode& node = this->node(n);
  double total = resident_bytes(n, chosen);
  for (const InnerValue& inner : nodes_[static_cast<std::size_t>(n)].values) {
    total += inner_bytes(n, inner, chosen, at, how);
  }
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    total += run_bytes(n, chosen, m, Timeline::run(node.members[m]), at);
    const Moment again = recompute_ ? timeline_.again(node.members[m], how) : -1;
    total += again >= 0 ? run_bytes(n, chosen, m, again, at) : 0;
  }
  return total;
}

/// Over the node's choice and, where its block may be recomputed, the block's variable.
CostTable GraphTables::node_bytes(int n, Moment at) {
  while (nodes_.size() <= static_cast<std::size_t>(n)) {
    nodes_.push_back(node_facts(static_cast<int>(nodes_.size())));
  }
  const NodeFacts& facts = nodes_[static_cast<std::size_t>(n)];
  std::string key = "o" + facts.key;
  add_relations(key, facts.moments, at);
  const auto [known, fresh] = known_.emplace(key, nullptr);
  if (fresh) {
    std::vector<double> table;
    const int hows = block_variable(n) >= 0 ? static_cast<int>(kHows) : 1;
    for (const NodeChoice& c : choices(n)) {
      for (int how = 0; how < hows; ++how) {
        table.push_back(own_bytes(n, c, at, how));
      }
    }
    const bool any = std::any_of(table.begin(), table.end(), [](double b) { return b != 0; });
    known->second = any ? std::make_shared<const std::vector<double>>(std::move(table)) : nullptr;
  }
  return known->second;
}

void GraphTables::add_row(StrategyGraph& graph, Moment at) {
  solvers::ConstrainedProblem::Row row;
  row.unary.resize(graph.problem.objective.unary.size());
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    CostTable bytes = node_bytes(static_cast<int>(n), at);
    if (block_variable(static_cast<int>(n)) >= 0) {
      row.factors.push_back(std::move(bytes));
    } else {
      row.unary[n] = std::move(bytes);
    }
  }
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    row.factors.push_back(edge_bytes(e, at));
  }
  row.constant = problem_.constant_bytes();
  row.limit = std::numeric_limits<double>::infinity();
  const ir::Op& op = step_.op(Timeline::op_at(at));
  graph.rows.push_back(fmt::format("{} {}.{}", op.layer, op.name, Timeline::op_at(at).value));
  graph.problem.rows.push_back(std::move(row));
}

}  // namespace shardplan::problem
