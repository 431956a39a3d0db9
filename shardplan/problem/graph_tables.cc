// The intra-operator problem as numbers: seconds of nodes and of changes of layout. (Bytes at
// moments of the step: memory_rows.cc.) What lower() does with a value between two nodes is in
// value_life.cc; here it is priced.
#include "shardplan/problem/graph_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "shardplan/ops/op.h"

namespace shardplan::problem {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using sharding::ShardingSpec;
using solvers::CostTable;

GraphTables::GraphTables(const IntraOpProblem& problem, bool recompute)
    : problem_(problem),
      step_(*problem.step_),
      recompute_(recompute),
      timeline_(problem.structure_->timeline()),
      readers_(lower::find_readers(step_)) {
  std::unordered_map<std::string_view, int> variable;
  for (std::size_t b = 0; recompute && b < problem.blocks_.size(); ++b) {
    variable.emplace(problem.blocks_[b], static_cast<int>(problem.nodes_.size() + b));
  }
  node_of_op_.assign(step_.ops().size(), -1);
  for (std::size_t n = 0; n < problem.nodes_.size(); ++n) {
    const auto it = variable.find(problem.nodes_[n].block);
    block_variable_.push_back(it == variable.end() ? -1 : it->second);
    for (const OpId member : problem.nodes_[n].members) {
      node_of_op_[member.index()] = static_cast<int>(n);
    }
  }
  find_writes();
  find_ends();
  find_inner();
  find_residents();
  for (const IntraOpEdge& edge : problem.edges_) {
    edges_.push_back(edge_facts(edge));
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

void GraphTables::find_writes() {
  written_.assign(step_.values().size(), -1);
  target_.assign(step_.values().size(), ValueId{});
  const std::vector<OpId> points = lower::write_points(step_);
  for (std::size_t w = 0; w < points.size(); ++w) {
    const ir::Write& write = step_.writes[w];
    written_[write.value.index()] = Timeline::write(Timeline::run(points[w]));
    target_[write.value.index()] = write.target;
  }
}

bool GraphTables::shares_storage(ValueId value) const {
  const ir::Value& v = step_.value(value);
  return v.kind == ValueKind::kOpResult &&
         ops::storage_operand(ops::get(step_.op(v.producer).name),
                              static_cast<std::size_t>(v.result_index)) >= 0;
}

/// Last reads of every value and of all that shares its storage.
void GraphTables::find_ends() {
  const std::size_t values = step_.values().size();
  forward_end_.assign(values, -1);
  update_end_ = written_;
  // The loss is read after the backward pass, and stays.
  backward_end_.fill(std::vector<Moment>(values, -1));
  for (auto& ends : backward_end_) {
    for (const ValueId output : step_.outputs) {
      ends[output.index()] = std::numeric_limits<Moment>::max();
    }
  }
  const auto later = [](Moment& end, Moment moment) { end = std::max(end, moment); };
  for (std::size_t i = step_.ops().size(); i-- > 0;) {
    const ir::Op& op = step_.ops()[i];
    const ops::OpDef& def = ops::get(op.name);
    const Moment run = Timeline::run(OpId(i));
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const std::size_t v = op.inputs[k].index();
      const OpId producer = step_.value(op.inputs[k]).producer;
      const bool same_block =
          producer.valid() && plan::block_of(step_.op(producer).layer) == plan::block_of(op.layer);
      later(op.phase == Phase::kForward ? forward_end_[v] : update_end_[v],
            op.phase == Phase::kBackward ? -1 : run);
      for (std::size_t how = 0; how < kHows; ++how) {
        if (op.phase == Phase::kBackward) {
          later(backward_end_[how][v], run);
        } else if (same_block) {
          later(backward_end_[how][v], timeline_.again(OpId(i), static_cast<int>(how)));
        }
      }
      for (std::size_t r = 0; r < op.outputs.size(); ++r) {
        if (ops::storage_operand(def, r) == static_cast<int>(k)) {
          const std::size_t view = op.outputs[r].index();
          later(forward_end_[v], forward_end_[view]);
          later(update_end_[v], update_end_[view]);
          for (std::size_t how = 0; how < kHows; ++how) {
            later(backward_end_[how][v], backward_end_[how][view]);
          }
        }
      }
    }
  }
}

void GraphTables::find_inner() {
  inner_.assign(step_.values().size(), false);
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    for (const ValueId input : step_.ops()[i].inputs) {
      const OpId producer = step_.value(input).producer;
      const bool own =
          producer.valid() && lower::reader_of(step_, OpId(i)) == lower::reader_of(step_, producer);
      if (!own) {
        inner_[input.index()] = producer.valid() && node_of_op_[producer.index()] == node_of_op_[i];
      }
    }
  }
  for (const ir::Write& write : step_.writes) {
    inner_[write.value.index()] = true;
  }
}

/// User inputs and states lie as their first reader, in the order of nodes, reads them.
void GraphTables::find_residents() {
  lies_here_.resize(step_.ops().size());
  std::vector<bool> laid(step_.values().size(), false);
  for (const IntraOpNode& n : problem_.nodes_) {
    if (n.parameter.valid()) {
      laid[n.parameter.index()] = true;
    }
  }
  for (const IntraOpNode& n : problem_.nodes_) {
    for (const OpId member : n.members) {
      const ir::Op& op = step_.op(member);
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const ValueKind kind = step_.value(op.inputs[k]).kind;
        const bool lies = kind == ValueKind::kInput || kind == ValueKind::kState ||
                          kind == ValueKind::kAccumulator;
        if (lies && !laid[op.inputs[k].index()]) {
          laid[op.inputs[k].index()] = true;
          lies_here_[member.index()].push_back(static_cast<int>(k));
        }
      }
    }
  }
}

ValueUse GraphTables::use_of(ValueId id) const {
  const ir::Value& value = step_.value(id);
  const lower::Readers& readers = readers_[id.index()];
  ValueUse use;
  use.value = id;
  use.parameter = value.kind == ValueKind::kParameter;
  use.made_by_op = value.producer.valid();
  if (!use.made_by_op) {
    return use;
  }
  use.made = Timeline::run(value.producer);
  use.made_in = step_.op(value.producer).phase;
  use.result = value.result_index;
  use.settles = !readers.several && !readers.own;
  use.accounted = !readers.several && !shares_storage(id);
  for (std::size_t how = 0; recompute_ && how < kHows; ++how) {
    use.dropped[how] = timeline_.dropped(id, static_cast<int>(how));
    use.again[how] = timeline_.again(value.producer, static_cast<int>(how));
  }
  return use;
}

ValueRead GraphTables::read_by(OpId id, int operand) const {
  const ir::Op& op = step_.op(id);
  const ops::OpDef& def = ops::get(op.name);
  ValueRead read;
  read.phase = op.phase;
  read.reader = lower::reader_of(step_, id);
  read.operand = operand;
  read.end = Timeline::run(id);
  read.change = Timeline::operand(read.end, operand);
  for (std::size_t how = 0; recompute_ && how < kHows; ++how) {
    read.again[how] = timeline_.again(id, static_cast<int>(how));
    read.member[how] = timeline_.member(id, static_cast<int>(how));
  }
  for (std::size_t r = 0; r < op.outputs.size(); ++r) {
    if (ops::storage_operand(def, r) != operand) {
      continue;
    }
    const std::size_t view = op.outputs[r].index();
    read.view = true;
    read.view_forward = std::max(read.view_forward, forward_end_[view]);
    read.view_update = std::max(read.view_update, update_end_[view]);
    for (std::size_t how = 0; how < kHows; ++how) {
      const std::size_t known = recompute_ ? how : 0;
      read.view_backward[how] = std::max(read.view_backward[how], backward_end_[known][view]);
      read.view_dropped[how] =
          recompute_ && timeline_.dropped(op.outputs[r], static_cast<int>(how));
    }
  }
  return read;
}

/// Equal keys and equal answers to "before, at or after each of the moments?" make equal tables.
GraphTables::KnownUse GraphTables::known(ValueUse use) {
  KnownUse known;
  known.moments = use.moments();
  std::vector<std::size_t> order(known.moments.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return known.moments[a] < known.moments[b];
  });
  std::string& key = known.key;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool tie = i > 0 && known.moments[order[i]] == known.moments[order[i - 1]];
    key += tie ? '=' : '<';
    key += static_cast<char>('0' + order[i]);
  }
  const auto flag = [&](bool value) { key += value ? '1' : '0'; };
  flag(!known.moments.empty() && known.moments[order.front()] < 0);
  for (const bool value : {use.parameter, use.made_by_op, use.settles, use.accounted}) {
    flag(value);
  }
  key += static_cast<char>('0' + static_cast<int>(use.made_in));
  key += static_cast<char>('0' + use.result);
  for (const bool dropped : use.dropped) {
    flag(dropped);
  }
  int readers = 0;
  for (std::size_t i = 0; i < use.reads.size(); ++i) {
    const ValueRead& read = use.reads[i];
    key += static_cast<char>('0' + static_cast<int>(read.phase));
    key += static_cast<char>('A' + read.operand);
    readers += i > 0 && read.reader != use.reads[i - 1].reader ? 1 : 0;
    key += static_cast<char>('0' + readers);
    flag(read.view);
    for (std::size_t how = 0; how < kHows; ++how) {
      flag(read.member[how]);
      flag(read.view_dropped[how]);
    }
  }
  known.use = std::move(use);
  return known;
}

/// Last read of a node's value by other ops of the node; -1 = there is none.
Moment GraphTables::own_end(const IntraOpNode& node, const ValueUse& use) const {
  Moment end = -1;
  if (!use.made_by_op || !readers_[use.value.index()].own) {
    return end;
  }
  const OpId producer = step_.value(use.value).producer;
  for (const OpId member : node.members) {
    const std::vector<ValueId>& inputs = step_.op(member).inputs;
    for (std::size_t k = 0; member != producer && k < inputs.size(); ++k) {
      if (inputs[k] == use.value) {
        const ValueRead own = read_by(member, static_cast<int>(k));
        end = std::max({end, own.end, own.view_backward[0], own.view_update});
      }
    }
  }
  return end;
}

GraphTables::EdgeFacts GraphTables::edge_facts(const IntraOpEdge& edge) const {
  const IntraOpNode& from = node(edge.from);
  const IntraOpNode& to = node(edge.to);
  ValueUse use = use_of(from.writes[static_cast<std::size_t>(edge.write)].value);
  use.own_end = own_end(from, use);
  bool reader_matters = false;
  for (const int index : edge.reads) {
    const Port& port = to.reads[static_cast<std::size_t>(index)];
    use.reads.push_back(read_by(port.op, port.slot));
    for (std::size_t how = 1; how < kHows; ++how) {
      reader_matters = reader_matters || use.reads.back().member[how];
    }
  }
  const bool producer_matters =
      block_variable(edge.from) >= 0 && (use.dropped[1] || use.dropped[2]);
  reader_matters = reader_matters && block_variable(edge.to) >= 0;
  EdgeFacts facts;
  facts.scope = {edge.from, edge.to};
  if (producer_matters) {
    facts.scope.push_back(block_variable(edge.from));
  }
  const bool one_variable =
      producer_matters && reader_matters && block_variable(edge.from) == block_variable(edge.to);
  if (reader_matters && !one_variable) {
    facts.scope.push_back(block_variable(edge.to));
  }
  const int count = static_cast<int>(kHows);
  for (int f = 0; f < (producer_matters ? count : 1); ++f) {
    for (int t = 0; t < (reader_matters ? count : 1); ++t) {
      if (!one_variable || f == t) {
        facts.hows.emplace_back(f, t);
      }
    }
  }
  facts.known = known(std::move(use));
  facts.key = fmt::format("{}.{}>{}.{}.{}",
                          static_cast<const void*>(from.type.get()),
                          edge.write,
                          static_cast<const void*>(to.type.get()),
                          facts.hows.size(),
                          one_variable ? 1 : (producer_matters ? 2 : 3));
  for (const int read : edge.reads) {
    fmt::format_to(std::back_inserter(facts.key), ",{}", read);
  }
  facts.key += facts.known.key;
  return facts;
}

double GraphTables::bytes(const ShardingSpec& spec, ValueId value) const {
  return static_cast<double>(
      sharding::local_bytes(spec, step_.type(value), problem_.cost_->mesh()));
}

CostTable GraphTables::node_seconds(int n, double exposed) {
  CostTable& known =
      known_[fmt::format("n{}/{}", static_cast<const void*>(node(n).type.get()), exposed)];
  if (!known) {
    std::vector<double> seconds;
    for (const NodeChoice& c : choices(n)) {
      seconds.push_back(exposed == 1 ? c.seconds
                                     : c.kernel_seconds + exposed * (c.seconds - c.kernel_seconds));
    }
    known = std::make_shared<const std::vector<double>>(std::move(seconds));
  }
  return known;
}

/// Over the node's choice and its block's variable.
CostTable GraphTables::again_seconds(int n, double exposed) {
  std::array<bool, kHows> again{};
  std::string key = fmt::format("r{}/{}", static_cast<const void*>(node(n).type.get()), exposed);
  for (std::size_t how = 0; how < kHows; ++how) {
    again[how] = timeline_.again(node(n).members.front(), static_cast<int>(how)) >= 0;
    key += again[how] ? '1' : '0';
  }
  CostTable& known = known_[key];
  if (!known) {
    std::vector<double> seconds;
    for (const NodeChoice& c : choices(n)) {
      for (const bool runs : again) {
        const Seconds all = exposed == 1 ? c.rerun_seconds
                                         : c.rerun_kernel_seconds +
                                               exposed * (c.rerun_seconds - c.rerun_kernel_seconds);
        seconds.push_back(runs ? all : 0);
      }
    }
    known = std::make_shared<const std::vector<double>>(std::move(seconds));
  }
  return known;
}

ValueLife GraphTables::life(const ValueUse& use,
                            const EdgeLayouts& layouts,
                            std::size_t from,
                            std::size_t to,
                            std::pair<int, int> hows) {
  const std::vector<int>& reads = layouts.reads[to];
  const bool no_larger =
      layouts.read_bytes[static_cast<std::size_t>(reads.front())] <= layouts.made_bytes[from];
  return life_of(use, layouts.made[from], reads, no_larger, hows.first, hows.second);
}

namespace {

/// Which of some numbers are equal: by position the first position with the same number.
std::vector<int> equal_numbers(const std::vector<int>& numbers) {
  std::vector<int> out;
  out.reserve(numbers.size());
  for (const int number : numbers) {
    out.push_back(
        static_cast<int>(std::find(numbers.begin(), numbers.end(), number) - numbers.begin()));
  }
  return out;
}

}  // namespace

GraphTables::EdgeLives::EdgeLives(const EdgeFacts& facts, const EdgeLayouts& layouts)
    : facts_(facts), layouts_(layouts) {
  std::map<std::vector<int>, std::size_t> known;
  for (const std::vector<int>& reads : layouts.reads) {
    pattern_.push_back(known.emplace(equal_numbers(reads), known.size()).first->second);
  }
  // A read of each in the layout as made (or none), and whether that is the smaller one.
  matches_ = facts.known.use.reads.size() + 1;
  lives_.resize(known.size() * matches_ * 2 * facts.hows.size());
}

const ValueLife& GraphTables::EdgeLives::of(std::size_t from, std::size_t to, std::size_t hows) {
  const std::vector<int>& reads = layouts_.reads[to];
  const auto match = static_cast<std::size_t>(
      std::find(reads.begin(), reads.end(), layouts_.made[from]) - reads.begin());
  const bool no_larger =
      layouts_.read_bytes[static_cast<std::size_t>(reads.front())] <= layouts_.made_bytes[from];
  std::optional<ValueLife>& known =
      lives_[((pattern_[to] * matches_ + match) * 2 + (no_larger ? 1 : 0)) * facts_.hows.size() +
             hows];
  if (!known) {
    known = life(facts_.known.use, layouts_, from, to, facts_.hows[hows]);
  }
  return *known;
}

GraphTables::EdgeLayouts GraphTables::edge_layouts(const IntraOpEdge& edge, bool priced) {
  const ValueId value = node(edge.from).writes[static_cast<std::size_t>(edge.write)].value;
  EdgeLayouts out;
  std::unordered_map<ShardingSpec, int, sharding::ShardingSpecHash> number;
  for (const int choice : read_classes(edge.to, edge.reads).first) {
    out.reads.emplace_back();
    const NodeChoice& reader = choices(edge.to)[static_cast<std::size_t>(choice)];
    for (const int read : edge.reads) {
      const ShardingSpec& spec = reader.reads[static_cast<std::size_t>(read)];
      const auto [it, fresh] = number.emplace(spec, static_cast<int>(out.read_spec.size()));
      if (fresh) {
        out.read_spec.push_back(spec);
        out.read_bytes.push_back(bytes(spec, value));
      }
      out.reads.back().push_back(it->second);
    }
  }
  for (const int choice : write_classes(edge.from, edge.write).first) {
    out.made_spec.push_back(choices(edge.from)[static_cast<std::size_t>(choice)]
                                .writes[static_cast<std::size_t>(edge.write)]);
    const auto it = number.find(out.made_spec.back());
    out.made.push_back(it == number.end() ? -1 : it->second);
    out.made_bytes.push_back(bytes(out.made_spec.back(), value));
  }
  if (priced) {
    out.price = problem_.resharder_->prices(out.made_spec, out.read_spec, step_.type(value));
  }
  return out;
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
    std::vector<ShardingSpec> written;
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
    std::vector<std::vector<ShardingSpec>> read;
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

ClassNetwork::Factor GraphTables::edge_classes(const IntraOpEdge& edge,
                                               const EdgeFacts& facts,
                                               const EdgeEntry& entry) {
  const PortClasses& from = write_classes(edge.from, edge.write);
  const PortClasses& to = read_classes(edge.to, edge.reads);
  std::vector<double> table;
  table.reserve(from.first.size() * to.first.size() * facts.hows.size());
  for (std::size_t f = 0; f < from.first.size(); ++f) {
    for (std::size_t t = 0; t < to.first.size(); ++t) {
      for (std::size_t hows = 0; hows < facts.hows.size(); ++hows) {
        table.push_back(entry(f, t, hows));
      }
    }
  }
  ClassNetwork::Factor factor;
  factor.classes = {from.classes, to.classes};
  for (std::size_t i = 2; i < facts.scope.size(); ++i) {
    factor.classes.push_back(every_choice(kHows));
  }
  factor.cost = std::make_shared<const std::vector<double>>(std::move(table));
  return factor;
}

const ClassNetwork::Factor& GraphTables::edge_seconds(std::size_t edge, double exposed) {
  const EdgeFacts& facts = edges_[edge];
  ClassNetwork::Factor& known =
      known_seconds_[exposed == 1 ? facts.key : fmt::format("{}/{}", facts.key, exposed)];
  if (!known.cost) {
    if (exposed != 1) {
      ClassNetwork::Factor scaled = edge_seconds(edge, 1);
      std::vector<double> values = *scaled.cost;
      for (double& value : values) {
        value = value < std::numeric_limits<double>::infinity() ? value * exposed : value;
      }
      scaled.cost = std::make_shared<const std::vector<double>>(std::move(values));
      known = std::move(scaled);
      return known;
    }
    const EdgeLayouts layouts = edge_layouts(problem_.edges_[edge], true);
    EdgeLives lives(facts, layouts);
    const auto microbatches = static_cast<double>(step_.microbatches);
    known = edge_classes(
        problem_.edges_[edge], facts, [&](std::size_t from, std::size_t to, std::size_t hows) {
          const double* price = layouts.price.data() + from * layouts.read_spec.size();
          double total = 0;
          for (const CopyLife& copy : lives.of(from, to, hows).copies) {
            total += price[layouts.reads[to][copy.read]] * (copy.in_update ? 1 : microbatches);
          }
          return total;
        });
  }
  return known;
}

ClassNetwork GraphTables::make_classes(double exposed) {
  ClassNetwork network;
  for (std::size_t i = 0; i < problem_.nodes_.size(); ++i) {
    const int n = static_cast<int>(i);
    network.unary.push_back(node_seconds(n, exposed));
    if (const int block = block_variable(n); block >= 0) {
      network.factors.push_back({{n, block},
                                 {every_choice(choices(n).size()), every_choice(kHows)},
                                 again_seconds(n, exposed)});
    }
  }
  const CostTable nothing = std::make_shared<const std::vector<double>>(kHows, 0.0);
  for (std::size_t b = 0; recompute_ && b < problem_.blocks_.size(); ++b) {
    network.unary.push_back(nothing);
  }
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    ClassNetwork::Factor factor = edge_seconds(e, exposed);
    factor.scope = edges_[e].scope;
    network.factors.push_back(std::move(factor));
  }
  return network;
}

StrategyGraph GraphTables::make(const std::vector<Moment>& moments) {
  StrategyGraph graph;
  solvers::CostNetwork& objective = graph.problem.objective;
  for (std::size_t i = 0; i < problem_.nodes_.size(); ++i) {
    const IntraOpNode& n = problem_.nodes_[i];
    graph.nodes.push_back(
        n.parameter.valid()
            ? step_.value(n.parameter).name
            : fmt::format("{}.{}", step_.op(n.members[0]).name, n.members[0].value));
    objective.unary.push_back(node_seconds(static_cast<int>(i), 1));
    if (const int block = block_variable(static_cast<int>(i)); block >= 0) {
      objective.factors.push_back(
          {{static_cast<int>(i), block}, again_seconds(static_cast<int>(i), 1)});
    }
  }
  const CostTable nothing = std::make_shared<const std::vector<double>>(kHows, 0.0);
  for (std::size_t b = 0; recompute_ && b < problem_.blocks_.size(); ++b) {
    graph.nodes.push_back("recompute " + problem_.blocks_[b]);
    objective.unary.push_back(nothing);
  }
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    CostTable& table = known_["s" + edges_[e].key];
    if (!table) {
      table = std::make_shared<const std::vector<double>>(expand(edge_seconds(e, 1)));
    }
    objective.factors.push_back({edges_[e].scope, table});
  }
  for (const Moment at : moments) {
    add_row(graph, at);
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
                                             const std::vector<Moment>& moments) const {
  return tables(recompute).make(moments);
}

ClassNetwork IntraOpProblem::class_network(bool recompute, double exposed) const {
  return tables(recompute).make_classes(exposed);
}

}  // namespace shardplan::problem
