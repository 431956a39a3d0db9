// Why a plan is as it is: each block's choice and cost, and what its next best choice would cost.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"
#include "shardplan/planners/evaluate.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::planners {
namespace {

using problem::AxisMeaning;
using problem::IntraOpNode;
using problem::NodeChoice;

std::string_view word(AxisMeaning meaning) {
  switch (meaning) {
    case AxisMeaning::kBatch:
      return "batch";
    case AxisMeaning::kSequence:
      return "sequence";
    case AxisMeaning::kTensor:
      return "heads and hidden";
    case AxisMeaning::kSpace:
      return "space";
    case AxisMeaning::kExpert:
      return "experts";
    case AxisMeaning::kOther:
      break;
  }
  return "features";
}

class Explainer {
 public:
  Explainer(const plan::Plan& plan, const ir::Graph& step)
      : plan_(plan), step_(step), meanings_(problem::axis_meanings(step)) {}

  Result<std::vector<LayerExplanation>> run() {
    SHARDPLAN_RETURN_IF_ERROR(add_costs());
    add_choices();
    SHARDPLAN_RETURN_IF_ERROR(add_next_best());
    std::vector<LayerExplanation> out;
    for (const std::string& name : order_) {
      LayerExplanation& layer = layers_.at(name);
      layer.recomputed = std::any_of(plan_.recompute.begin(),
                                     plan_.recompute.end(),
                                     [&](const auto& block) { return block.block == name; });
      out.push_back(std::move(layer));
    }
    return out;
  }

 private:
  /// Ops outside the numbered blocks are their own layers, by the layer path.
  [[nodiscard]] std::string layer_of(const std::string& path) const {
    const std::string_view block = plan::block_of(path);
    if (!block.empty()) {
      return std::string(block);
    }
    return path.empty() ? "(model)" : path;
  }

  LayerExplanation& layer(const std::string& name) {
    const auto [it, fresh] = layers_.try_emplace(name);
    if (fresh) {
      it->second.layer = name;
      order_.push_back(name);
    }
    return it->second;
  }

  Status add_costs() {
    const cost::CostModel cost(plan_.cluster, plan_.mesh);
    SHARDPLAN_ASSIGN_OR_RETURN(
        const lower::Program program,
        lower::lower(step_,
                     plan_,
                     cost::step_price(cost),
                     {.keep_gradients = false, .overlap = plan_.cluster.local}));
    sim::SimOptions options;
    options.timeline = true;
    options.overlap = !plan_.cluster.local;
    const sim::Simulation simulation = sim::simulate(program, step_, cost, options);
    for (const sim::Event& event : simulation.timeline) {
      LayerExplanation& explained = layer(layer_of(event.layer));
      (event.communication ? explained.communication_seconds : explained.compute_seconds) +=
          event.end - event.start;
    }
    add_bytes(program);
    return {};
  }

  void add_bytes(const lower::Program& program) {
    std::map<std::int32_t, std::string> layer_of_parameter;
    for (const ir::Op& op : step_.ops()) {
      for (const ir::ValueId input : op.inputs) {
        const ir::ValueKind kind = step_.value(input).kind;
        if (kind != ir::ValueKind::kOpResult && kind != ir::ValueKind::kInput) {
          layer_of_parameter.emplace(input.value, layer_of(op.layer));
        }
      }
    }
    for (const lower::Resident& resident : program.residents) {
      const auto it = layer_of_parameter.find(resident.global.value);
      if (it != layer_of_parameter.end()) {
        layer(it->second).parameter_bytes += program.value(resident.local).type.bytes();
      }
    }
    add_activations(program);
  }

  /// Storage that forward ops make and backward ops (not their second runs) read.
  void add_activations(const lower::Program& program) {
    std::map<std::int32_t, std::string> made;
    std::set<std::int32_t> counted;
    for (const lower::Step& s : program.microbatch) {
      if (s.kind != lower::StepKind::kCompute && s.kind != lower::StepKind::kCollective) {
        continue;
      }
      if (s.phase == ir::Phase::kForward) {
        for (const lower::LocalId output : s.outputs) {
          made.emplace(program.root(output).value, layer_of(step_.op(s.op).layer));
        }
        continue;
      }
      for (const lower::LocalId input : s.inputs) {
        const lower::LocalId root = program.root(input);
        const auto it = made.find(root.value);
        if (it != made.end() && program.value(root).type.rank() > 0 &&
            counted.insert(root.value).second) {
          layer(it->second).activation_bytes += program.value(root).type.bytes();
        }
      }
    }
  }

  void add_choices() {
    std::map<std::string, std::map<std::string, std::set<std::string>>> words;
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.phase != ir::Phase::kForward) {
        continue;
      }
      for (std::size_t x = 0; x < plan_.mesh.axes.size(); ++x) {
        const int axis = plan_.strategies[i].at(static_cast<int>(x));
        if (axis >= 0) {
          words[layer_of(op.layer)][plan_.mesh.axes[x].name].insert(
              std::string(word(meanings_[i][static_cast<std::size_t>(axis)])));
        }
      }
    }
    for (auto& [name, axes] : words) {
      std::string text;
      for (const auto& [axis, what] : axes) {
        text += (text.empty() ? "" : " · ") + axis + " cuts ";
        for (const std::string& one : what) {
          text += (one == *what.begin() ? "" : ", ") + one;
        }
      }
      layer(name).choice = std::move(text);
    }
    for (auto& [name, explained] : layers_) {
      if (explained.choice.empty()) {
        explained.choice = "whole on every device";
      }
    }
  }

  /// The loss of the best single change in each layer: another choice for one node, its neighbours
  /// as they are. Least over the nodes of the layer that do most of its work.
  Status add_next_best() {
    const cost::CostModel cost(plan_.cluster, plan_.mesh);
    SHARDPLAN_ASSIGN_OR_RETURN(const problem::IntraOpProblem problem,
                               problem::IntraOpProblem::build(step_, cost));
    const problem::StrategyGraph graph = problem.strategy_graph(false, {});
    std::vector<int> chosen(problem.nodes().size(), 0);
    for (std::size_t n = 0; n < chosen.size(); ++n) {
      const int found = find_choice(problem.nodes()[n]);
      if (found < 0) {
        return {};  // a hand-edited plan outside the planners' space
      }
      chosen[n] = found;
    }
    std::map<std::string, std::size_t> heaviest;
    for (std::size_t n = 0; n < chosen.size(); ++n) {
      const IntraOpNode& node = problem.nodes()[n];
      if (node.kind != IntraOpNode::Kind::kOp || node.type->choices.size() < 2) {
        continue;
      }
      const std::string name = layer_of(step_.op(node.members[0]).layer);
      const auto [it, fresh] = heaviest.emplace(name, n);
      if (!fresh && seconds(problem, n, chosen) > seconds(problem, it->second, chosen)) {
        it->second = n;
      }
    }
    for (const auto& [name, n] : heaviest) {
      next_best(problem, graph, n, chosen, layer(name));
    }
    return {};
  }

  [[nodiscard]] static Seconds seconds(const problem::IntraOpProblem& problem,
                                       std::size_t n,
                                       const std::vector<int>& chosen) {
    return problem.nodes()[n].type->choices[static_cast<std::size_t>(chosen[n])].seconds;
  }

  /// The node's choice in the plan; -1 when the plan holds none of them.
  [[nodiscard]] int find_choice(const IntraOpNode& node) const {
    const std::vector<NodeChoice>& choices = node.type->choices;
    for (std::size_t c = 0; c < choices.size(); ++c) {
      bool same = true;
      for (std::size_t m = 0; m < node.members.size() && same; ++m) {
        same = choices[c].strategies[m] == plan_.strategies[node.members[m].index()];
      }
      if (node.parameter.valid()) {
        same = same && choices[c].stored == plan_.layouts.at(node.parameter);
      }
      if (same) {
        return static_cast<int>(c);
      }
    }
    return -1;
  }

  void next_best(const problem::IntraOpProblem& problem,
                 const problem::StrategyGraph& graph,
                 std::size_t n,
                 const std::vector<int>& chosen,
                 LayerExplanation& explained) const {
    const auto local = [&](int candidate) {
      std::vector<int> changed = chosen;
      changed[n] = candidate;
      double total = (*graph.problem.objective.unary[n])[static_cast<std::size_t>(candidate)];
      for (const auto& factor : graph.problem.objective.factors) {
        const std::vector<int>& scope = factor.scope;
        if (std::find(scope.begin(), scope.end(), static_cast<int>(n)) != scope.end()) {
          total += (*factor.cost)[solvers::table_index(graph.problem.objective, factor, changed)];
        }
      }
      return total;
    };
    const double own = local(chosen[n]);
    double best = std::numeric_limits<double>::infinity();
    int which = -1;
    const IntraOpNode& node = problem.nodes()[n];
    for (int c = 0; c < static_cast<int>(node.type->choices.size()); ++c) {
      const double loss = c == chosen[n] ? best : local(c) - own;
      if (loss < best) {
        best = loss;
        which = c;
      }
    }
    if (which < 0) {
      return;
    }
    const ir::OpId op = node.members[0];
    explained.next_best =
        fmt::format("{}.{}: {}",
                    step_.op(op).name,
                    op.value,
                    to_string(node.type->choices[static_cast<std::size_t>(which)].forward,
                              ops::axis_map(step_, op),
                              plan_.mesh));
    explained.next_best_loss = best;
  }

  const plan::Plan& plan_;
  const ir::Graph& step_;
  std::vector<std::vector<AxisMeaning>> meanings_;
  std::map<std::string, LayerExplanation> layers_;
  std::vector<std::string> order_;
};

}  // namespace

Result<std::vector<LayerExplanation>> explain(const plan::Plan& plan, const ir::Graph& step) {
  return Explainer(plan, step).run();
}

}  // namespace shardplan::planners
