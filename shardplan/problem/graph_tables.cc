// The intra-operator problem as numbers: seconds of nodes and of changes of layout. (Bytes at
// program points: memory_rows.cc.) The rules are those of lower(): a change is made once for the
// forward and once for the backward pass where it is not kept, gradients are changed as soon as
// they are made.
#include "shardplan/problem/graph_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "shardplan/ops/op.h"

namespace shardplan::problem {

using ir::Phase;
using ir::ValueKind;
using sharding::ShardingSpec;
using solvers::CostTable;

void Span::add(int op, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      first_forward = first_forward < 0 ? op : std::min(first_forward, op);
      last_forward = std::max(last_forward, op);
      break;
    case Phase::kBackward:
      first_backward = first_backward < 0 ? op : std::min(first_backward, op);
      last_backward = std::max(last_backward, op);
      break;
    case Phase::kUpdate:
      last_update = std::max(last_update, op);
      break;
  }
}

void Span::merge(const Span& other) {
  for (const auto& [op, phase] : {std::pair{other.first_forward, Phase::kForward},
                                  std::pair{other.last_forward, Phase::kForward},
                                  std::pair{other.first_backward, Phase::kBackward},
                                  std::pair{other.last_backward, Phase::kBackward},
                                  std::pair{other.last_update, Phase::kUpdate}}) {
    if (op >= 0) {
      add(op, phase);
    }
  }
}

int Span::last() const {
  return std::max({last_forward, last_backward, last_update});
}

GraphTables::GraphTables(const IntraOpProblem& problem, bool recompute)
    : problem_(problem), step_(*problem.step_), recompute_(recompute) {
  find_spans();
}

bool GraphTables::doubled(int node) const {
  return recompute_ && !problem_.nodes_[static_cast<std::size_t>(node)].block.empty();
}

int GraphTables::copies(int node) const {
  return doubled(node) ? 2 : 1;
}

int GraphTables::choices(int node) const {
  return copies(node) *
         static_cast<int>(problem_.nodes_[static_cast<std::size_t>(node)].type->choices.size());
}

const NodeChoice& GraphTables::choice(int node, int index) const {
  return problem_.nodes_[static_cast<std::size_t>(node)]
      .type->choices[static_cast<std::size_t>(index / copies(node))];
}

void GraphTables::find_spans() {
  span_.resize(step_.values().size());
  own_span_.resize(step_.values().size());
  readers_.resize(step_.values().size());
  for (std::size_t i = step_.ops().size(); i-- > 0;) {
    const ir::Op& op = step_.ops()[i];
    const ops::OpDef& def = ops::get(op.name);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      Span& span = span_[op.inputs[k].index()];
      span.add(static_cast<int>(i), op.phase);
      for (std::size_t r = 0; r < op.outputs.size(); ++r) {
        const bool shares = (def.view && k == 0) ||
                            (r < def.in_place.size() && def.in_place[r] == static_cast<int>(k));
        if (shares) {
          span.merge(span_[op.outputs[r].index()]);
        }
      }
    }
  }
  for (std::size_t e = 0; e < problem_.edges_.size(); ++e) {
    const IntraOpEdge& edge = problem_.edges_[e];
    const auto from = static_cast<std::size_t>(edge.from);
    const ir::ValueId value =
        problem_.nodes_[from].writes[static_cast<std::size_t>(edge.write)].value;
    readers_[value.index()].push_back(static_cast<int>(e));
  }
  std::unordered_map<std::string, int> start;
  std::vector<int> node_of_op(step_.ops().size(), -1);
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    for (const ir::OpId member : problem_.nodes_[n].members) {
      node_of_op[member.index()] = static_cast<int>(n);
    }
  }
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    const ir::Op& op = step_.ops()[i];
    const IntraOpNode& node = problem_.nodes_[static_cast<std::size_t>(node_of_op[i])];
    if (op.phase == Phase::kBackward && !node.block.empty()) {
      start.emplace(node.block, static_cast<int>(i));
    }
    for (const ir::ValueId input : op.inputs) {
      const ir::OpId producer = step_.value(input).producer;
      if (producer.valid() && node_of_op[producer.index()] == node_of_op[i]) {
        own_span_[input.index()].add(static_cast<int>(i), op.phase);
      }
    }
  }
  for (const IntraOpNode& node : problem_.nodes_) {
    const auto it = start.find(node.block);
    backward_start_.push_back(it == start.end() ? std::numeric_limits<int>::max() : it->second);
  }
}

GraphTables::EdgeFacts GraphTables::facts(const IntraOpEdge& edge) const {
  const IntraOpNode& from = problem_.nodes_[static_cast<std::size_t>(edge.from)];
  const IntraOpNode& to = problem_.nodes_[static_cast<std::size_t>(edge.to)];
  const ir::ValueId id = from.writes[static_cast<std::size_t>(edge.write)].value;
  const ir::Value& value = step_.value(id);
  EdgeFacts facts;
  facts.parameter = value.kind == ValueKind::kParameter;
  facts.view = !is_storage(id);
  facts.backward_value =
      value.producer.valid() && step_.op(value.producer).phase != Phase::kForward;
  facts.sole_reader = readers_[id.index()].size() == 1;
  facts.own_reads = own_span_[id.index()].last() >= 0;
  facts.same_block = !from.block.empty() && from.block == to.block;
  facts.recomputable = recompute_ && !from.block.empty() && !facts.backward_value &&
                       !facts.parameter && !problem_.kept_[id.index()];
  facts.reader_reruns = to.rerun;
  for (const int read : edge.reads) {
    facts.phases.push_back(step_.op(to.reads[static_cast<std::size_t>(read)].op).phase);
  }
  return facts;
}

bool GraphTables::is_storage(ir::ValueId value) const {
  const ir::Value& v = step_.value(value);
  if (v.kind != ValueKind::kOpResult) {
    return false;
  }
  const ops::OpDef& def = ops::get(step_.op(v.producer).name);
  const auto result = static_cast<std::size_t>(v.result_index);
  return !def.view && !(result < def.in_place.size() && def.in_place[result] >= 0);
}

double GraphTables::bytes(const ShardingSpec& spec, ir::ValueId value) const {
  return static_cast<double>(
      sharding::local_bytes(spec, step_.type(value), problem_.cost_->mesh()));
}

CostTable GraphTables::node_seconds(int n) {
  const IntraOpNode& node = problem_.nodes_[static_cast<std::size_t>(n)];
  CostTable& known = known_[fmt::format(
      "n{}{}{}", static_cast<const void*>(node.type.get()), doubled(n), node.rerun)];
  if (!known) {
    std::vector<double> seconds;
    for (const NodeChoice& c : node.type->choices) {
      seconds.push_back(c.seconds);
      if (doubled(n)) {
        seconds.push_back(c.seconds + (node.rerun ? c.rerun_seconds : 0));
      }
    }
    known = std::make_shared<const std::vector<double>>(std::move(seconds));
  }
  return known;
}

std::string GraphTables::edge_key(const IntraOpEdge& edge, const EdgeFacts& facts) const {
  const IntraOpNode& from = problem_.nodes_[static_cast<std::size_t>(edge.from)];
  const IntraOpNode& to = problem_.nodes_[static_cast<std::size_t>(edge.to)];
  std::string key = fmt::format("{}.{}>{}.",
                                static_cast<const void*>(from.type.get()),
                                edge.write,
                                static_cast<const void*>(to.type.get()));
  for (const int read : edge.reads) {
    fmt::format_to(std::back_inserter(key), "{},", read);
  }
  fmt::format_to(std::back_inserter(key),
                 "{:d}{:d}{:d}{:d}{:d}{:d}{:d}{:d}{:d}{:d}",
                 facts.parameter,
                 facts.view,
                 facts.backward_value,
                 facts.sole_reader,
                 facts.own_reads,
                 facts.recomputable,
                 facts.reader_reruns,
                 facts.same_block,
                 doubled(edge.from),
                 doubled(edge.to));
  return key;
}

namespace {

/// Distinct layouts of the reads in some of the phases.
std::vector<ShardingSpec> distinct(const std::vector<ShardingSpec>& reads,
                                   const std::vector<Phase>& phases,
                                   bool forward,
                                   bool backward) {
  std::vector<ShardingSpec> out;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const bool wanted =
        (phases[i] == Phase::kForward && forward) || (phases[i] == Phase::kBackward && backward);
    if (wanted && std::find(out.begin(), out.end(), reads[i]) == out.end()) {
      out.push_back(reads[i]);
    }
  }
  return out;
}

}  // namespace

bool GraphTables::settles(const IntraOpEdge& edge,
                          const EdgeFacts& facts,
                          const ShardingSpec& from,
                          const std::vector<ShardingSpec>& reads) const {
  if (!facts.sole_reader || facts.own_reads || facts.parameter || reads.front() == from) {
    return false;
  }
  if (std::any_of(reads.begin(), reads.end(), [&](const ShardingSpec& read) {
        return read != reads.front();
      })) {
    return false;
  }
  const auto producer = static_cast<std::size_t>(edge.from);
  const ir::ValueId value =
      problem_.nodes_[producer].writes[static_cast<std::size_t>(edge.write)].value;
  return bytes(reads.front(), value) <= bytes(from, value);
}

double GraphTables::change_seconds(const IntraOpEdge& edge,
                                   const EdgeFacts& facts,
                                   const ShardingSpec& from,
                                   const std::vector<ShardingSpec>& reads,
                                   bool producer_reruns,
                                   bool reader_reruns) {
  const auto producer = static_cast<std::size_t>(edge.from);
  const ir::ValueId value =
      problem_.nodes_[producer].writes[static_cast<std::size_t>(edge.write)].value;
  const ir::TensorType& type = step_.type(value);
  const auto price = [&](const ShardingSpec& to) {
    const sharding::ReshardCost path = problem_.resharder_->cost(from, to, type);
    return path.possible ? path.price : std::numeric_limits<double>::infinity();
  };
  const std::vector<ShardingSpec> forward = distinct(reads, facts.phases, true, false);
  double microbatch = 0;
  for (const ShardingSpec& to : forward) {
    microbatch += to == from ? 0 : price(to);
  }
  // The changed copy of the forward pass serves the backward pass when it is an activation that is
  // neither made again itself nor dropped with a recomputed reader.
  const bool settled = settles(edge, facts, from, reads);
  const bool kept = !facts.parameter && !facts.backward_value &&
                    !(facts.recomputable && producer_reruns) && (!reader_reruns || settled);
  for (const ShardingSpec& to :
       distinct(reads, facts.phases, reader_reruns && facts.reader_reruns, true)) {
    const bool there = kept && std::find(forward.begin(), forward.end(), to) != forward.end();
    microbatch += to == from || there ? 0 : price(to);
  }
  double update = 0;
  std::vector<ShardingSpec> seen;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (facts.phases[i] == Phase::kUpdate && reads[i] != from &&
        std::find(seen.begin(), seen.end(), reads[i]) == seen.end()) {
      seen.push_back(reads[i]);
      update += price(reads[i]);
    }
  }
  return microbatch * static_cast<double>(step_.microbatches) + update;
}

namespace {

/// Calls fill(index of from-choice, index of to-choice) for a table of the distinct layouts only
/// and spreads it over all choices.
template <class Fill>
std::vector<double> spread(const std::vector<int>& class_of_from,
                           int from_classes,
                           const std::vector<int>& class_of_to,
                           int to_classes,
                           const Fill& fill) {
  std::vector<double> small(static_cast<std::size_t>(from_classes * to_classes));
  std::vector<int> from_member(static_cast<std::size_t>(from_classes));
  std::vector<int> to_member(static_cast<std::size_t>(to_classes));
  for (std::size_t i = class_of_from.size(); i-- > 0;) {
    from_member[static_cast<std::size_t>(class_of_from[i])] = static_cast<int>(i);
  }
  for (std::size_t j = class_of_to.size(); j-- > 0;) {
    to_member[static_cast<std::size_t>(class_of_to[j])] = static_cast<int>(j);
  }
  for (int f = 0; f < from_classes; ++f) {
    for (int t = 0; t < to_classes; ++t) {
      small[static_cast<std::size_t>(f * to_classes + t)] =
          fill(from_member[static_cast<std::size_t>(f)], to_member[static_cast<std::size_t>(t)]);
    }
  }
  std::vector<double> table;
  table.reserve(class_of_from.size() * class_of_to.size());
  for (const int f : class_of_from) {
    for (const int t : class_of_to) {
      table.push_back(small[static_cast<std::size_t>(f * to_classes + t)]);
    }
  }
  return table;
}

}  // namespace

std::vector<sharding::ShardingSpec> GraphTables::edge_reads(const IntraOpEdge& edge,
                                                            int to_choice) const {
  const NodeChoice& to = choice(edge.to, to_choice);
  std::vector<ShardingSpec> reads;
  reads.reserve(edge.reads.size());
  for (const int read : edge.reads) {
    reads.push_back(to.reads[static_cast<std::size_t>(read)]);
  }
  return reads;
}

CostTable GraphTables::edge_table(
    const IntraOpEdge& edge,
    const std::function<double(int from_choice, int to_choice)>& entry) const {
  std::map<std::pair<ShardingSpec, int>, int> from_classes;
  std::vector<int> class_of_from;
  for (int c = 0; c < choices(edge.from); ++c) {
    const auto key = std::pair{choice(edge.from, c).writes[static_cast<std::size_t>(edge.write)],
                               c % copies(edge.from)};
    class_of_from.push_back(
        from_classes.emplace(key, static_cast<int>(from_classes.size())).first->second);
  }
  std::map<std::pair<std::vector<ShardingSpec>, int>, int> to_classes;
  std::vector<int> class_of_to;
  for (int c = 0; c < choices(edge.to); ++c) {
    const auto key = std::pair{edge_reads(edge, c), c % copies(edge.to)};
    class_of_to.push_back(
        to_classes.emplace(key, static_cast<int>(to_classes.size())).first->second);
  }
  return std::make_shared<const std::vector<double>>(spread(class_of_from,
                                                            static_cast<int>(from_classes.size()),
                                                            class_of_to,
                                                            static_cast<int>(to_classes.size()),
                                                            entry));
}

CostTable GraphTables::edge_seconds(const IntraOpEdge& edge, const EdgeFacts& facts) {
  CostTable& known = known_["s" + edge_key(edge, facts)];
  if (!known) {
    known = edge_table(edge, [&](int f, int t) {
      const bool from_again = doubled(edge.from) && f % 2 == 1;
      const bool to_again = doubled(edge.to) && t % 2 == 1;
      if (facts.same_block && recompute_ && from_again != to_again) {
        return std::numeric_limits<double>::infinity();
      }
      return change_seconds(edge,
                            facts,
                            choice(edge.from, f).writes[static_cast<std::size_t>(edge.write)],
                            edge_reads(edge, t),
                            from_again,
                            to_again);
    });
  }
  return known;
}

/// All nodes of a block run again or none: where no edge says so already, one is added.
void GraphTables::tie_blocks(StrategyGraph& graph) const {
  std::vector<int> parent(problem_.nodes_.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int n) {
    while (parent[static_cast<std::size_t>(n)] != n) {
      n = parent[static_cast<std::size_t>(n)];
    }
    return n;
  };
  for (const IntraOpEdge& edge : problem_.edges_) {
    if (facts(edge).same_block) {
      parent[static_cast<std::size_t>(root(edge.from))] = root(edge.to);
    }
  }
  std::unordered_map<std::string, int> first;
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    const int node = static_cast<int>(n);
    if (!doubled(node)) {
      continue;
    }
    const auto [it, fresh] = first.emplace(problem_.nodes_[n].block, node);
    if (fresh || root(it->second) == root(node)) {
      continue;
    }
    parent[static_cast<std::size_t>(root(it->second))] = root(node);
    std::vector<double> table;
    for (int a = 0; a < choices(it->second); ++a) {
      for (int b = 0; b < choices(node); ++b) {
        table.push_back(a % 2 == b % 2 ? 0 : std::numeric_limits<double>::infinity());
      }
    }
    graph.problem.objective.edges.push_back(
        {it->second, node, std::make_shared<const std::vector<double>>(std::move(table))});
  }
}

StrategyGraph GraphTables::make(const std::vector<IntraOpProblem::ProgramPoint>& points) {
  StrategyGraph graph;
  for (std::size_t n = 0; n < problem_.nodes_.size(); ++n) {
    const IntraOpNode& node = problem_.nodes_[n];
    graph.nodes.push_back(
        node.kind == IntraOpNode::Kind::kParameter
            ? step_.value(node.parameter).name
            : fmt::format("{}.{}", step_.op(node.members[0]).name, node.members[0].value));
    graph.problem.objective.unary.push_back(node_seconds(static_cast<int>(n)));
  }
  for (const IntraOpEdge& edge : problem_.edges_) {
    graph.problem.objective.edges.push_back({edge.from, edge.to, edge_seconds(edge, facts(edge))});
  }
  if (recompute_) {
    tie_blocks(graph);
  }
  for (const IntraOpProblem::ProgramPoint& point : points) {
    add_row(graph, point);
  }
  return graph;
}

StrategyGraph IntraOpProblem::strategy_graph(bool recompute,
                                             const std::vector<ProgramPoint>& points) const {
  std::shared_ptr<GraphTables>& tables = tables_[recompute ? 1 : 0];
  if (!tables || !tables->of(*this)) {
    tables = std::make_shared<GraphTables>(*this, recompute);
  }
  return tables->make(points);
}

}  // namespace shardplan::problem
