// What a node may do. Read `op_choices` (a forward op with its tied backward ops) and
// `parameter_choices` (where a weight, its gradient and its optimizer state live).
#include "shardplan/problem/node_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include "shardplan/lower/local_op.h"
#include "shardplan/ops/op.h"

namespace shardplan::problem {
namespace {

using ir::OpId;
using ir::ValueId;
using sharding::OpLayouts;
using sharding::ShardingSpec;
using sharding::Strategy;

constexpr int kPartialGradient = 0;
constexpr int kWholeGradient = 1;

}  // namespace

void NodeTypes::assign(IntraOpNode& node, int family, const ChoiceFilter& filter) {
  const std::string tag = filter.tag ? filter.tag(node) : std::string();
  std::shared_ptr<const NodeType>& type = known_[{family, tag}];
  if (!type) {
    type = make(node, structure_.families()[static_cast<std::size_t>(family)], filter);
  }
  node.type = type;
}

std::shared_ptr<const NodeType> NodeTypes::make(const IntraOpNode& node,
                                                const NodeFamily& family,
                                                const ChoiceFilter& filter) const {
  auto made = std::make_shared<NodeType>();
  made->choices = node.kind != IntraOpNode::Kind::kOp ? parameter_choices(node, family)
                                                      : op_choices(node, family);
  if (filter.allow) {
    std::vector<NodeChoice> allowed;
    std::copy_if(made->choices.begin(),
                 made->choices.end(),
                 std::back_inserter(allowed),
                 [&](const NodeChoice& choice) { return filter.allow(node, choice); });
    if (!allowed.empty()) {
      made->choices = std::move(allowed);
    }
  }
  keep_cheapest_of_each_class(made->choices);
  return made;
}

/// A partial sum may pass through the forward op if no backward op reads what is partial.
bool NodeTypes::partial_allowed(const IntraOpNode& node, const ops::PartialRule& rule) const {
  const ir::Op& forward = step_.op(node.members.front());
  std::set<std::int32_t> partial;
  for (const int i : rule.inputs) {
    partial.insert(forward.inputs[static_cast<std::size_t>(i)].value);
  }
  for (const int r : rule.results) {
    partial.insert(forward.outputs[static_cast<std::size_t>(r)].value);
  }
  for (std::size_t m = 1; m < node.members.size(); ++m) {
    for (const ValueId input : step_.op(node.members[m]).inputs) {
      if (partial.contains(input.value)) {
        return false;
      }
    }
  }
  return true;
}

/// What the backward ops may do along each mesh axis besides what the forward op does there; every
/// combination, as a Strategy of marks. kPartialGradient: the forward op is replicated, and the
/// gradient passes as a partial sum through linear backward ops, to be reduced later once.
/// kWholeGradient: the forward op is cut, but backward ops that are only views hand the gradient on
/// whole, gathered once for all its readers.
std::vector<Strategy> NodeTypes::gradient_variants(const IntraOpNode& node,
                                                   const Strategy& forward,
                                                   const NodeFamily& family) const {
  std::vector<Strategy> variants{Strategy{}};
  if (node.members.size() < 2) {
    return variants;
  }
  bool linear = !ops::get(step_.op(node.members.front()).name).matmul;
  // Only ops that hand one gradient to several readers need it.
  bool views = step_.op(node.members.front()).inputs.size() > 1;
  for (std::size_t m = 1; m < node.members.size(); ++m) {
    linear = linear && !family.gradient_operands[m].empty();
    views = views && ops::get(step_.op(node.members[m]).name).view;
  }
  for (std::size_t axis = 0; axis < cost_.mesh().axes.size(); ++axis) {
    const int a = static_cast<int>(axis);
    const bool replicated = forward.at(a) == Strategy::kNone;
    if (!(replicated && linear) && !(forward.at(a) >= 0 && views)) {
      continue;
    }
    const std::size_t count = variants.size();
    for (std::size_t i = 0; i < count; ++i) {
      Strategy variant = variants[i];
      variant.set(a, replicated ? kPartialGradient : kWholeGradient);
      variants.push_back(variant);
    }
  }
  return variants;
}

std::optional<Strategy> NodeTypes::member_strategy(const Strategy& forward,
                                                   const Strategy& variant,
                                                   const NodeFamily& family,
                                                   std::size_t member) const {
  const ops::AxisMap& map = family.maps[member];
  Strategy strategy;
  for (std::size_t x = 0; x < cost_.mesh().axes.size(); ++x) {
    const int axis = static_cast<int>(x);
    if (variant.at(axis) == kWholeGradient) {
      continue;
    }
    if (forward.at(axis) >= 0) {
      const std::vector<int>& tied = family.tied[member];
      const auto it = std::find(tied.begin(), tied.end(), forward.at(axis));
      if (it != tied.end()) {
        strategy.set(axis, static_cast<int>(it - tied.begin()));
      }
    } else if (variant.at(axis) == kPartialGradient) {
      const auto rule =
          std::find_if(map.partials.begin(), map.partials.end(), [&](const ops::PartialRule& r) {
            return r.inputs == family.gradient_operands[member];
          });
      if (rule == map.partials.end()) {
        return std::nullopt;
      }
      strategy.set(axis, Strategy::kPartialBase - static_cast<int>(rule - map.partials.begin()));
    }
  }
  return strategy;
}

std::vector<NodeChoice> NodeTypes::op_choices(const IntraOpNode& node,
                                              const NodeFamily& family) const {
  std::vector<NodeChoice> choices;
  const bool whole = family.fixed;
  for (const Strategy& forward :
       sharding::enumerate_strategies(family.maps.front(), cost_.mesh())) {
    if (whole && forward != Strategy{}) {
      break;
    }
    bool allowed = true;
    for (std::size_t x = 0; x < cost_.mesh().axes.size(); ++x) {
      const int choice = forward.at(static_cast<int>(x));
      if (choice <= Strategy::kPartialBase) {
        const auto rule = static_cast<std::size_t>(Strategy::kPartialBase - choice);
        allowed = allowed && partial_allowed(node, family.maps.front().partials[rule]);
      }
    }
    if (!allowed) {
      continue;
    }
    for (const Strategy& variant : gradient_variants(node, forward, family)) {
      NodeChoice choice;
      choice.forward = forward;
      choice.strategies.push_back(forward);
      for (std::size_t m = 1; m < node.members.size(); ++m) {
        if (const auto strategy = member_strategy(forward, variant, family, m)) {
          choice.strategies.push_back(*strategy);
        }
      }
      if (choice.strategies.size() == node.members.size() && complete(node, family, choice)) {
        choices.push_back(std::move(choice));
      }
    }
  }
  SHARDPLAN_CHECK(!choices.empty()) << step_.op(node.members.front()).name << " has no strategy";
  return choices;
}

double NodeTypes::repeats(OpId op) const {
  return step_.op(op).phase == ir::Phase::kUpdate ? 1.0 : static_cast<double>(step_.microbatches);
}

NodeTypes::Run NodeTypes::run_of(const NodeFamily& family,
                                 std::size_t member,
                                 const OpLayouts& layouts) const {
  const ir::Op& op = step_.op(family.node.members[member]);
  const ops::OpDef& def = ops::get(op.name);
  if (def.view) {
    return {};
  }
  const ops::OpTypes& types = family.types[member];
  const lower::LocalOp local =
      lower::local_op(def, family.maps[member], types, op.attributes, layouts, cost_.mesh());
  Run run;
  run.kernel =
      cost_.kernel(cost::kernel_of(def, local.inputs, local.results, local.flops, local.bytes));
  for (const lower::HaloExchange& halo : local.exchanges) {
    run.halos +=
        cost_.reshard_step(halo.step, types.inputs[static_cast<std::size_t>(halo.operand)]);
  }
  return run;
}

/// Prices a change of layout inside a node; false when there is none.
bool NodeTypes::change(ValueId value,
                       const ShardingSpec& to,
                       OpId reader,
                       std::vector<ShardingSpec>& there,
                       NodeChoice& choice) const {
  if (std::find(there.begin(), there.end(), to) != there.end()) {
    return true;
  }
  const double price = resharder_.price(there.front(), to, step_.type(value));
  choice.seconds += price * repeats(reader);
  there.push_back(to);
  return std::isfinite(price);
}

bool NodeTypes::complete(const IntraOpNode& node,
                         const NodeFamily& family,
                         NodeChoice& choice) const {
  // Layouts in which a value that the node makes is there: as made, and as changed for a member.
  std::unordered_map<std::int32_t, std::vector<ShardingSpec>> made;
  choice.layouts.clear();
  choice.seconds = 0;
  choice.kernel_seconds = 0;
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    auto layouts = sharding::layouts(family.maps[m], choice.strategies[m], cost_.mesh());
    if (!layouts) {
      return false;
    }
    const ir::Op& op = step_.op(node.members[m]);
    const Run run = run_of(family, m, *layouts);
    const double times = repeats(node.members[m]);
    choice.seconds += (run.kernel + run.halos) * times;
    choice.kernel_seconds += run.kernel * times;
    if (m == 0 && op.phase == ir::Phase::kForward) {
      choice.rerun_seconds = (run.kernel + run.halos) * times;
      choice.rerun_kernel_seconds = run.kernel * times;
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const auto inside = made.find(op.inputs[i].value);
      if (inside != made.end() &&
          !change(op.inputs[i], layouts->inputs[i], node.members[m], inside->second, choice)) {
        return false;
      }
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      std::vector<ShardingSpec>& there = made[op.outputs[r].value];
      there = {layouts->results[r]};
      // The loss is read whole.
      if (!step_.outputs.empty() && op.outputs[r] == step_.outputs.front() &&
          !change(op.outputs[r], ShardingSpec{}, node.members[m], there, choice)) {
        return false;
      }
    }
    choice.layouts.push_back(std::move(*layouts));
  }
  const auto member_of = [&](OpId op) {
    return static_cast<std::size_t>(std::find(node.members.begin(), node.members.end(), op) -
                                    node.members.begin());
  };
  choice.reads.clear();
  choice.writes.clear();
  for (const Port& port : node.reads) {
    choice.reads.push_back(
        choice.layouts[member_of(port.op)].inputs[static_cast<std::size_t>(port.slot)]);
  }
  for (const Port& port : node.writes) {
    choice.writes.push_back(
        port.op.valid()
            ? choice.layouts[member_of(port.op)].results[static_cast<std::size_t>(port.slot)]
            : choice.stored);
  }
  return true;
}

/// Choices with equal layouts at the boundary are one class; only the fastest stays.
void NodeTypes::keep_cheapest_of_each_class(std::vector<NodeChoice>& choices) const {
  using Boundary = std::tuple<std::vector<ShardingSpec>,
                              std::vector<ShardingSpec>,
                              ShardingSpec,
                              ShardingSpec,
                              ShardingSpec>;
  std::map<Boundary, std::size_t> best;
  std::vector<NodeChoice> kept;
  for (NodeChoice& choice : choices) {
    const auto [it, fresh] = best.emplace(
        Boundary{choice.reads, choice.writes, choice.stored, choice.accumulated, choice.state},
        kept.size());
    if (fresh) {
      kept.push_back(std::move(choice));
    } else if (choice.seconds < kept[it->second].seconds) {
      kept[it->second] = std::move(choice);
    }
  }
  choices = std::move(kept);
}

namespace {

/// What one mesh axis does with a parameter: the dimension that it cuts of the stored value, of the
/// gradient sum, and of the optimizer state.
struct ParameterCut {
  static constexpr int kWhole = -1;
  static constexpr int kPartial = -2;
  int stored;
  int accumulated;
  int state;
};

void apply(ShardingSpec& spec, int axis, int cut) {
  if (cut >= 0) {
    spec.shard(cut, axis);
  } else if (cut == ParameterCut::kPartial) {
    spec.make_partial(axis, sharding::Reduction::kSum);
  }
}

std::vector<ParameterCut> parameter_cuts(std::int64_t rank, bool trained, bool accumulates) {
  std::vector<ParameterCut> cuts{{-1, -1, -1}};
  if (trained && accumulates) {
    cuts.push_back({-1, ParameterCut::kPartial, -1});
  }
  for (int d = 0; d < rank; ++d) {
    cuts.push_back({d, d, d});
    if (trained) {
      cuts.push_back({-1, d, d});
      if (accumulates) {
        cuts.push_back({-1, ParameterCut::kPartial, d});
        cuts.push_back({-1, ParameterCut::kWhole, d});
      }
    }
  }
  return cuts;
}

/// The strategy under which a tensor with these axes of an op has the layout `target`, which is no
/// partial sum.
Strategy strategy_for(const ops::DimAxes& dims, const ShardingSpec& target, std::size_t mesh_axes) {
  Strategy strategy;
  for (std::size_t x = 0; x < mesh_axes; ++x) {
    const int dim = target.dim_of(static_cast<int>(x));
    if (dim >= 0 && !dims[static_cast<std::size_t>(dim)].empty()) {
      strategy.set(static_cast<int>(x), dims[static_cast<std::size_t>(dim)].front());
    }
  }
  return strategy;
}

/// The strategy under which operand `slot` of an op has the layout `target`, one op axis a
/// dimension.
Strategy strategy_for(const ops::AxisMap& map,
                      std::size_t slot,
                      const ShardingSpec& target,
                      std::size_t mesh_axes) {
  Strategy strategy = strategy_for(map.inputs[slot], target, mesh_axes);
  for (std::size_t x = 0; x < mesh_axes; ++x) {
    const int axis = static_cast<int>(x);
    if (target.is_partial(axis)) {
      const int wanted = static_cast<int>(slot);
      for (std::size_t r = 0; r < map.partials.size(); ++r) {
        const std::vector<int>& inputs = map.partials[r].inputs;
        if (std::find(inputs.begin(), inputs.end(), wanted) != inputs.end()) {
          strategy.set(axis, Strategy::kPartialBase - static_cast<int>(r));
          break;
        }
      }
    }
  }
  return strategy;
}

}  // namespace

std::vector<NodeChoice> NodeTypes::parameter_choices(const IntraOpNode& node,
                                                     const NodeFamily& family) const {
  const ir::TensorType& type = step_.type(node.parameter);
  const std::size_t axes = cost_.mesh().axes.size();
  const bool accumulates = step_.microbatches > 1;
  const std::vector<ParameterCut> cuts =
      parameter_cuts(type.rank(), node.updates(step_), accumulates);
  std::vector<NodeChoice> choices;
  std::vector<std::size_t> digit(axes, 0);
  while (true) {
    NodeChoice choice;
    for (std::size_t x = 0; x < axes; ++x) {
      const ParameterCut& cut = cuts[digit[x]];
      apply(choice.stored, static_cast<int>(x), cut.stored);
      apply(choice.accumulated, static_cast<int>(x), cut.accumulated);
      apply(choice.state, static_cast<int>(x), cut.state);
    }
    if (parameter_choice(node, family, choice)) {
      choices.push_back(std::move(choice));
    }
    std::size_t x = 0;
    while (x < axes && ++digit[x] == cuts.size()) {
      digit[x++] = 0;
    }
    if (x == axes) {
      return choices;
    }
  }
}

bool NodeTypes::parameter_choice(const IntraOpNode& node,
                                 const NodeFamily& family,
                                 NodeChoice& choice) const {
  const ir::TensorType& type = step_.type(node.parameter);
  for (const ShardingSpec* spec : {&choice.stored, &choice.accumulated, &choice.state}) {
    if (!sharding::fits(*spec, type.shape, cost_.mesh())) {
      return false;
    }
  }
  bool reads_stored = false;
  bool accumulates = false;
  for (std::size_t m = 0; m < node.members.size(); ++m) {
    const ir::Op& op = step_.op(node.members[m]);
    const bool update = op.phase == ir::Phase::kUpdate;
    accumulates = accumulates || op.name == "accumulate";
    const ShardingSpec& target =
        update || step_.microbatches == 1 ? choice.state : choice.accumulated;
    Strategy strategy;
    if (op.inputs.empty()) {  // brings the stored value
      strategy =
          strategy_for(family.maps[m].results.front(), choice.stored, cost_.mesh().axes.size());
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      reads_stored = reads_stored || op.inputs[i] == node.parameter;
      if (step_.type(op.inputs[i]).shape == type.shape && strategy == Strategy{}) {
        strategy = strategy_for(family.maps[m], i, target, cost_.mesh().axes.size());
      }
    }
    choice.strategies.push_back(strategy);
  }
  if (!complete(node, family, choice)) {
    return false;
  }
  const auto move = [&](const ShardingSpec& from, const ShardingSpec& to) {
    const double price = resharder_.price(from, to, type);
    choice.seconds += price;
    return std::isfinite(price);
  };
  if (!node.updates(step_)) {
    return true;
  }
  // complete() has priced the way from the gradient sum to the state's layout (both are inside).
  return (!reads_stored || move(choice.stored, choice.state)) && move(choice.state, choice.stored);
}

}  // namespace shardplan::problem
