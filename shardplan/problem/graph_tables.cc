// The intra-operator problem as numbers: seconds of nodes and of changes of layout. (Bytes at
// program points: memory_rows.cc.) The rules are those of lower(): a change is made once for the
// forward and once for the backward pass where it is not kept, gradients are changed as soon as
// they are made.
#include "shardplan/problem/graph_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
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
  std::unordered_map<std::string_view, int> variable;
  for (std::size_t b = 0; recompute && b < problem.blocks_.size(); ++b) {
    variable.emplace(problem.blocks_[b], static_cast<int>(problem.nodes_.size() + b));
  }
  for (const IntraOpNode& n : problem.nodes_) {
    const auto it = variable.find(n.block);
    block_variable_.push_back(it == variable.end() ? -1 : it->second);
  }
}

const IntraOpNode& GraphTables::node(int index) const {
  return problem_.nodes_[static_cast<std::size_t>(index)];
}

const std::vector<NodeChoice>& GraphTables::choices(int n) const {
  return node(n).type->choices;
}

int GraphTables::block_variable(int n) const {
  return block_variable_[static_cast<std::size_t>(n)];
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
  CostTable& known = known_[fmt::format("n{}", static_cast<const void*>(node(n).type.get()))];
  if (!known) {
    std::vector<double> seconds;
    for (const NodeChoice& c : choices(n)) {
      seconds.push_back(c.seconds);
    }
    known = std::make_shared<const std::vector<double>>(std::move(seconds));
  }
  return known;
}

/// Over the node's choice and its block's variable.
CostTable GraphTables::rerun_seconds(int n) {
  CostTable& known =
      known_[fmt::format("r{}{:d}", static_cast<const void*>(node(n).type.get()), node(n).rerun)];
  if (!known) {
    std::vector<double> seconds;
    for (const NodeChoice& c : choices(n)) {
      seconds.push_back(0);
      seconds.push_back(node(n).rerun ? c.rerun_seconds : 0);
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
                 block_matters(edge, facts).first,
                 block_matters(edge, facts).second);
  return key;
}

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

namespace {

/// The layouts that one class of readers asks for, and what they cost from where the value is.
struct Reads {
  const std::vector<int>& layout;        ///< by read: number of its layout
  const std::vector<ir::Phase>& phases;  ///< by read
  const double* price;                   ///< by number; 0 for the layout that is there

  /// Sum over the distinct layouts of the reads in some phases, without those of the reads in
  /// `there`.
  template <class Wanted, class There>
  [[nodiscard]] double sum(const Wanted& wanted, const There& there) const {
    double seconds = 0;
    for (std::size_t i = 0; i < layout.size(); ++i) {
      bool first = wanted(phases[i]);
      for (std::size_t k = 0; first && k < layout.size(); ++k) {
        const bool same = layout[k] == layout[i];
        first = !(same && ((k < i && wanted(phases[k])) || there(phases[k])));
      }
      seconds += first ? price[layout[i]] : 0;
    }
    return seconds;
  }
};

}  // namespace

double GraphTables::change_seconds(const EdgeFacts& facts,
                                   const EdgeLayouts& layouts,
                                   std::size_t from,
                                   std::size_t to,
                                   bool producer_reruns,
                                   bool reader_reruns) const {
  const Reads reads{
      layouts.reads[to], facts.phases, layouts.price.data() + from * layouts.read_bytes.size()};
  const auto is_forward = [](Phase phase) { return phase == Phase::kForward; };
  const auto is_update = [](Phase phase) { return phase == Phase::kUpdate; };
  const auto nowhere = [](Phase) { return false; };
  double microbatch = reads.sum(is_forward, nowhere);
  // The changed copy of the forward pass serves the backward pass when it is an activation that is
  // neither made again itself nor dropped with a recomputed reader.
  const bool kept = !facts.parameter && !facts.backward_value &&
                    !(facts.recomputable && producer_reruns) &&
                    (!reader_reruns || settles(facts, layouts, from, to));
  const bool again = reader_reruns && facts.reader_reruns;
  microbatch += reads.sum(
      [&](Phase phase) { return phase == Phase::kBackward || (again && is_forward(phase)); },
      [&](Phase phase) { return kept && is_forward(phase); });
  return microbatch * static_cast<double>(step_.microbatches) + reads.sum(is_update, nowhere);
}

bool GraphTables::settles(const EdgeFacts& facts,
                          const EdgeLayouts& layouts,
                          std::size_t from,
                          std::size_t to) {
  const std::vector<int>& reads = layouts.reads[to];
  return facts.sole_reader && !facts.own_reads && !facts.parameter &&
         reads.front() != layouts.made[from] &&
         std::all_of(reads.begin(), reads.end(), [&](int read) { return read == reads.front(); }) &&
         layouts.read_bytes[static_cast<std::size_t>(reads.front())] <= layouts.made_bytes[from];
}

GraphTables::EdgeLayouts GraphTables::edge_layouts(const IntraOpEdge& edge) {
  const ir::ValueId value = node(edge.from).writes[static_cast<std::size_t>(edge.write)].value;
  EdgeLayouts out;
  Layouts read;
  std::unordered_map<ShardingSpec, int, sharding::ShardingSpecHash> number;
  for (const int choice : read_classes(edge.to, edge.reads).first) {
    out.reads.emplace_back();
    for (const ShardingSpec& spec : edge_reads(edge, choice)) {
      const auto [it, fresh] = number.emplace(spec, static_cast<int>(read.size()));
      if (fresh) {
        read.push_back(spec);
        out.read_bytes.push_back(bytes(spec, value));
      }
      out.reads.back().push_back(it->second);
    }
  }
  Layouts made;
  for (const int choice : write_classes(edge.from, edge.write).first) {
    made.push_back(choices(edge.from)[static_cast<std::size_t>(choice)]
                       .writes[static_cast<std::size_t>(edge.write)]);
    const auto it = number.find(made.back());
    out.made.push_back(it == number.end() ? -1 : it->second);
    out.made_bytes.push_back(bytes(made.back(), value));
  }
  out.price = problem_.resharder_->prices(made, read, step_.type(value));
  return out;
}

std::vector<ShardingSpec> GraphTables::edge_reads(const IntraOpEdge& edge, int to_choice) const {
  const NodeChoice& to = choices(edge.to)[static_cast<std::size_t>(to_choice)];
  std::vector<ShardingSpec> reads;
  reads.reserve(edge.reads.size());
  for (const int read : edge.reads) {
    reads.push_back(to.reads[static_cast<std::size_t>(read)]);
  }
  return reads;
}

std::pair<bool, bool> GraphTables::block_matters(const IntraOpEdge& edge,
                                                 const EdgeFacts& facts) const {
  return {facts.recomputable, block_variable(edge.to) >= 0 && !facts.backward_value};
}

std::vector<int> GraphTables::edge_scope(const IntraOpEdge& edge, const EdgeFacts& facts) const {
  const auto [from, to] = block_matters(edge, facts);
  std::vector<int> scope{edge.from, edge.to};
  if (from) {
    scope.push_back(block_variable(edge.from));
  }
  if (to && !(from && facts.same_block)) {
    scope.push_back(block_variable(edge.to));
  }
  return scope;
}

namespace {

/// Classes of choices by a key of each.
template <class Key, class Classes>
void sort_into_classes(const std::vector<Key>& keys, Classes& out) {
  auto classes = std::make_shared<ChoiceClasses>();
  std::map<Key, std::uint16_t> known;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto [it, fresh] = known.emplace(keys[i], static_cast<std::uint16_t>(known.size()));
    if (fresh) {
      out.first.push_back(static_cast<int>(i));
    }
    classes->of.push_back(it->second);
  }
  classes->count = known.size();
  out.classes = std::move(classes);
}

}  // namespace

const GraphTables::PortClasses& GraphTables::write_classes(int n, int write) {
  PortClasses& known = port_classes_[{node(n).type.get(), {-1, write}}];
  if (!known.classes) {
    Layouts written;
    for (const NodeChoice& choice : choices(n)) {
      written.push_back(choice.writes[static_cast<std::size_t>(write)]);
    }
    sort_into_classes(written, known);
  }
  return known;
}

const GraphTables::PortClasses& GraphTables::read_classes(int n, const std::vector<int>& reads) {
  PortClasses& known = port_classes_[{node(n).type.get(), reads}];
  if (!known.classes) {
    std::vector<Layouts> read;
    for (const NodeChoice& choice : choices(n)) {
      read.emplace_back();
      for (const int port : reads) {
        read.back().push_back(choice.reads[static_cast<std::size_t>(port)]);
      }
    }
    sort_into_classes(read, known);
  }
  return known;
}

/// Every choice a class of its own.
std::shared_ptr<const ChoiceClasses> GraphTables::every_choice(std::size_t count) {
  std::shared_ptr<const ChoiceClasses>& known = every_choice_[count];
  if (!known) {
    auto classes = std::make_shared<ChoiceClasses>();
    classes->count = count;
    for (std::size_t c = 0; c < count; ++c) {
      classes->of.push_back(static_cast<std::uint16_t>(c));
    }
    known = std::move(classes);
  }
  return known;
}

std::vector<std::pair<bool, bool>> GraphTables::block_states(const IntraOpEdge& edge,
                                                             const EdgeFacts& facts) const {
  const auto [from_matters, to_matters] = block_matters(edge, facts);
  const bool one_variable = from_matters && to_matters && facts.same_block;
  std::vector<std::pair<bool, bool>> again;
  for (const bool f : {false, true}) {
    for (const bool t : {false, true}) {
      if ((f && !from_matters) || (t && !to_matters) || (one_variable && f != t)) {
        continue;
      }
      again.emplace_back(f, t);
    }
  }
  return again;
}

ClassNetwork::Factor GraphTables::edge_factor(const IntraOpEdge& edge,
                                              const EdgeFacts& facts,
                                              const EdgeEntry& entry) {
  const PortClasses& from = write_classes(edge.from, edge.write);
  const PortClasses& to = read_classes(edge.to, edge.reads);
  const std::vector<std::pair<bool, bool>> again = block_states(edge, facts);
  std::vector<double> table;
  table.reserve(from.first.size() * to.first.size() * again.size());
  for (std::size_t f = 0; f < from.first.size(); ++f) {
    for (std::size_t t = 0; t < to.first.size(); ++t) {
      for (const auto& [from_again, to_again] : again) {
        table.push_back(entry(f, t, from_again, to_again));
      }
    }
  }
  ClassNetwork::Factor factor;
  factor.classes = {from.classes, to.classes};
  for (std::size_t count = again.size(); count > 1; count /= 2) {
    factor.classes.push_back(every_choice(2));
  }
  factor.cost = std::make_shared<const std::vector<double>>(std::move(table));
  return factor;
}

CostTable GraphTables::edge_table(const IntraOpEdge& edge,
                                  const EdgeFacts& facts,
                                  const ChoiceEntry& entry) {
  const std::vector<int>& from = write_classes(edge.from, edge.write).first;
  const std::vector<int>& to = read_classes(edge.to, edge.reads).first;
  return std::make_shared<const std::vector<double>>(expand(
      edge_factor(edge, facts, [&](std::size_t f, std::size_t t, bool from_again, bool to_again) {
        return entry(from[f], to[t], from_again, to_again);
      })));
}

const ClassNetwork::Factor& GraphTables::edge_seconds(const IntraOpEdge& edge,
                                                      const EdgeFacts& facts) {
  ClassNetwork::Factor& known = known_seconds_[edge_key(edge, facts)];
  if (!known.cost) {
    const EdgeLayouts layouts = edge_layouts(edge);
    known =
        edge_factor(edge, facts, [&](std::size_t f, std::size_t t, bool from_again, bool to_again) {
          return change_seconds(facts, layouts, f, t, from_again, to_again);
        });
  }
  return known;
}

ClassNetwork GraphTables::make_classes() {
  ClassNetwork network;
  for (std::size_t i = 0; i < problem_.nodes_.size(); ++i) {
    const int n = static_cast<int>(i);
    network.unary.push_back(node_seconds(n));
    if (const int block = block_variable(n); block >= 0) {
      network.factors.push_back(
          {{n, block}, {every_choice(choices(n).size()), every_choice(2)}, rerun_seconds(n)});
    }
  }
  const CostTable nothing = std::make_shared<const std::vector<double>>(2, 0.0);
  for (std::size_t b = 0; recompute_ && b < problem_.blocks_.size(); ++b) {
    network.unary.push_back(nothing);
  }
  for (const IntraOpEdge& edge : problem_.edges_) {
    const EdgeFacts f = facts(edge);
    ClassNetwork::Factor factor = edge_seconds(edge, f);
    factor.scope = edge_scope(edge, f);
    network.factors.push_back(std::move(factor));
  }
  return network;
}

StrategyGraph GraphTables::make(const std::vector<IntraOpProblem::ProgramPoint>& points) {
  StrategyGraph graph;
  solvers::CostNetwork& objective = graph.problem.objective;
  for (std::size_t i = 0; i < problem_.nodes_.size(); ++i) {
    const IntraOpNode& n = problem_.nodes_[i];
    graph.nodes.push_back(
        n.kind == IntraOpNode::Kind::kParameter
            ? step_.value(n.parameter).name
            : fmt::format("{}.{}", step_.op(n.members[0]).name, n.members[0].value));
    objective.unary.push_back(node_seconds(static_cast<int>(i)));
    if (const int block = block_variable(static_cast<int>(i)); block >= 0) {
      objective.factors.push_back(
          {{static_cast<int>(i), block}, rerun_seconds(static_cast<int>(i))});
    }
  }
  const CostTable nothing = std::make_shared<const std::vector<double>>(2, 0.0);
  for (std::size_t b = 0; recompute_ && b < problem_.blocks_.size(); ++b) {
    graph.nodes.push_back("recompute " + problem_.blocks_[b]);
    objective.unary.push_back(nothing);
  }
  for (const IntraOpEdge& edge : problem_.edges_) {
    const EdgeFacts f = facts(edge);
    CostTable& table = known_["s" + edge_key(edge, f)];
    if (!table) {
      table = std::make_shared<const std::vector<double>>(expand(edge_seconds(edge, f)));
    }
    objective.factors.push_back({edge_scope(edge, f), table});
  }
  for (const IntraOpProblem::ProgramPoint& point : points) {
    add_row(graph, point);
  }
  return graph;
}

GraphTables& IntraOpProblem::tables(bool recompute) const {
  std::shared_ptr<GraphTables>& tables = tables_[recompute ? 1 : 0];
  if (!tables || !tables->of(*this)) {
    tables = std::make_shared<GraphTables>(*this, recompute);
  }
  return *tables;
}

StrategyGraph IntraOpProblem::strategy_graph(bool recompute,
                                             const std::vector<ProgramPoint>& points) const {
  return tables(recompute).make(points);
}

ClassNetwork IntraOpProblem::class_network(bool recompute) const {
  return tables(recompute).make_classes();
}

}  // namespace shardplan::problem
