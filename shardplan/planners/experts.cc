// Expert plans as restrictions of the intra-operator problem. Read `ExpertFilter::allow`.
#include "shardplan/planners/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/solvers/class_elimination.h"

namespace shardplan::planners {
namespace {

using problem::AxisMeaning;
using problem::IntraOpNode;
using problem::NodeChoice;
using sharding::Strategy;

class ExpertFilter {
 public:
  ExpertFilter(const problem::StepStructure& structure,
               const ExpertRule& rule,
               const cluster::DeviceMesh& mesh)
      : step_(structure.step()), rule_(rule), mesh_(mesh), meanings_(structure.meanings()) {
    if (rule.experts) {
      find_expert_weights();
    }
  }

  [[nodiscard]] bool allow(const IntraOpNode& node, const NodeChoice& choice) const {
    for (std::size_t x = 0; x < mesh_.axes.size(); ++x) {
      const int axis = static_cast<int>(x);
      if (node.kind == IntraOpNode::Kind::kInput) {
        continue;
      }
      const bool ok = node.kind == IntraOpNode::Kind::kParameter ? parameter(node, choice, axis)
                                                                 : op(node, choice, axis);
      if (!ok) {
        return false;
      }
    }
    return true;
  }

  /// The meanings of a node's axes decide; nodes that look alike may differ in them.
  [[nodiscard]] std::string tag(const IntraOpNode& node) const {
    std::string out;
    if (node.kind == IntraOpNode::Kind::kOp) {
      for (const AxisMeaning meaning : meanings_[node.members[0].index()]) {
        out += static_cast<char>('0' + static_cast<int>(meaning));
      }
    }
    return out;
  }

 private:
  /// The node's axis with this meaning that the mesh axis can cut; -1 when there is none.
  [[nodiscard]] int axis_with(const IntraOpNode& node, AxisMeaning meaning, int mesh_axis) const {
    const std::vector<AxisMeaning>& meanings = meanings_[node.members[0].index()];
    const auto it = std::find(meanings.begin(), meanings.end(), meaning);
    if (it == meanings.end()) {
      return -1;
    }
    const int axis = static_cast<int>(it - meanings.begin());
    const ops::AxisMap map = ops::axis_map(step_, node.members[0]);
    const std::int64_t size = mesh_.axes[static_cast<std::size_t>(mesh_axis)].size;
    return sharding::can_cut_axis(map, axis, size) ? axis : -1;
  }

  /// Whether the mesh axis cuts the node's axis with this meaning; none where it has no such axis.
  [[nodiscard]] bool cuts(const IntraOpNode& node,
                          const NodeChoice& choice,
                          AxisMeaning meaning,
                          int mesh_axis) const {
    const int wanted = axis_with(node, meaning, mesh_axis);
    const int chosen = choice.forward.at(mesh_axis);
    return wanted >= 0 ? chosen == wanted : chosen < 0;
  }

  [[nodiscard]] bool op(const IntraOpNode& node, const NodeChoice& choice, int axis) const {
    // What crosses stages, and sums of gradients for other stages, lie as costs say.
    const std::string& what = step_.op(node.members.front()).name;
    if (what == "send" || what == "receive" || what == "accumulate") {
      return true;
    }
    const std::string& name = mesh_.axes[static_cast<std::size_t>(axis)].name;
    if (name == "tensor") {
      return tensor_op(node, choice, axis);
    }
    if (name == "expert") {
      return expert_op(node, choice, axis);
    }
    return cuts(node, choice, name == "data" ? AxisMeaning::kBatch : AxisMeaning::kSpace, axis);
  }

  [[nodiscard]] bool parameter(const IntraOpNode& node, const NodeChoice& choice, int axis) const {
    const cluster::MeshAxis& cut = mesh_.axes[static_cast<std::size_t>(axis)];
    if (cut.name == "tensor") {
      return choice.stored.dim_of(axis) == choice.state.dim_of(axis);
    }
    if (const auto found = expert_dims_.find(node.parameter.value);
        cut.name == "expert" && found != expert_dims_.end()) {
      const auto dim = static_cast<std::size_t>(found->second);
      if (sharding::can_cut(step_.type(node.parameter).shape[dim], cut.size)) {
        return choice.stored.dim_of(axis) == found->second &&
               choice.state.dim_of(axis) == found->second;
      }
    }
    return data_parameter(node, choice, axis);
  }

  /// Products with the weights of experts are cut by experts; what lies between them and the batch
  /// as costs say.
  [[nodiscard]] bool expert_op(const IntraOpNode& node, const NodeChoice& choice, int axis) const {
    const int chosen = choice.forward.at(axis);
    const int expert = axis_with(node, AxisMeaning::kExpert, axis);
    if (expert >= 0) {
      const std::vector<ir::ValueId>& inputs = step_.op(node.members[0]).inputs;
      const bool has_weight = std::any_of(inputs.begin(), inputs.end(), [&](ir::ValueId input) {
        return expert_dims_.contains(input.value);
      });
      if (has_weight || chosen == expert) {
        return chosen == expert;
      }
    }
    return cuts(node, choice, AxisMeaning::kBatch, axis);
  }

  /// Weights that have a matrix for each expert: the gate, which has only a row, is none.
  void find_expert_weights() {
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.name != "einsum" || op.phase != ir::Phase::kForward) {
        continue;
      }
      const ops::AxisMap map = ops::axis_map(step_, ir::OpId{i});
      for (std::size_t k = 0; k < 2; ++k) {
        if (step_.value(op.inputs[k]).kind == ir::ValueKind::kParameter) {
          note_expert_weight(op.inputs[k], map, k, meanings_[i]);
        }
      }
    }
  }

  void note_expert_weight(ir::ValueId weight,
                          const ops::AxisMap& map,
                          std::size_t operand,
                          const std::vector<AxisMeaning>& meanings) {
    int expert = -1;
    int free = 0;
    for (std::size_t d = 0; d < map.inputs[operand].size(); ++d) {
      for (const int a : map.inputs[operand][d]) {
        const auto at = static_cast<std::size_t>(a);
        free += map.axes[at].role == ops::AxisRole::kFree ? 1 : 0;
        expert = meanings[at] == AxisMeaning::kExpert ? static_cast<int>(d) : expert;
      }
    }
    if (expert >= 0 && free > 1) {
      expert_dims_[weight.value] = expert;
    }
  }

  [[nodiscard]] bool tensor_op(const IntraOpNode& node, const NodeChoice& choice, int axis) const {
    const int chosen = choice.forward.at(axis);
    const int tensor = axis_with(node, AxisMeaning::kTensor, axis);
    if (tensor >= 0) {
      return chosen == tensor;
    }
    const int sequence = axis_with(node, AxisMeaning::kSequence, axis);
    return chosen < 0 || chosen == sequence;
  }

  [[nodiscard]] bool data_parameter(const IntraOpNode& node,
                                    const NodeChoice& choice,
                                    int axis) const {
    const ir::Shape& shape = step_.type(node.parameter).shape;
    const std::int64_t size = mesh_.axes[static_cast<std::size_t>(axis)].size;
    const bool can_cut = std::any_of(shape.begin(), shape.end(), [&](std::int64_t extent) {
      return sharding::can_cut(extent, size);
    });
    const int stored = choice.stored.dim_of(axis);
    const int state = choice.state.dim_of(axis);
    const int summed = choice.accumulated.dim_of(axis);
    // What has no state of its own, or is too small, stays whole, as in a stage of lower ZeRO.
    const bool no_state = rule_.zero != ZeroStage::kParameters && !node.updates(step_);
    if (rule_.zero == ZeroStage::kNone || no_state || !can_cut) {
      return stored < 0 && state < 0;
    }
    switch (rule_.zero) {
      case ZeroStage::kNone:
        break;
      case ZeroStage::kOptimizer:
        return stored < 0 && state >= 0 && (summed < 0 || step_.microbatches == 1);
      case ZeroStage::kGradients:
        return stored < 0 && state >= 0 && summed >= 0;
      case ZeroStage::kParameters:
        return stored >= 0;
    }
    return false;
  }

  const ir::Graph& step_;
  const ExpertRule& rule_;
  const cluster::DeviceMesh& mesh_;
  const std::vector<std::vector<AxisMeaning>>& meanings_;
  std::unordered_map<std::int32_t, int> expert_dims_;  ///< dimension of experts, by parameter
};

/// The assignment in which every block runs again in the backward pass.
std::vector<int> with_recompute(const problem::IntraOpProblem& problem, std::vector<int> choice) {
  choice.resize(problem.nodes().size() + problem.blocks().size(), problem::kWhole);
  return choice;
}

}  // namespace

const std::vector<ExpertRule>& expert_rules() {
  static const std::vector<ExpertRule> rules{
      {"dp", true, false, ZeroStage::kNone},
      {"zero1", true, false, ZeroStage::kOptimizer},
      {"zero2", true, false, ZeroStage::kGradients},
      {"zero3", true, false, ZeroStage::kParameters},
      {"megatron", false, true, ZeroStage::kNone},
      {"megatron_dp", true, true, ZeroStage::kNone},
      {"megatron_zero1", true, true, ZeroStage::kOptimizer},
      {"megatron_zero3", true, true, ZeroStage::kParameters},
      {.name = "spatial", .data = false, .space = true},
      {.name = "expert_parallel", .data = false, .experts = true},
  };
  return rules;
}

std::vector<cluster::DeviceMesh> expert_meshes(const ExpertRule& rule, std::int64_t devices) {
  std::vector<cluster::DeviceMesh> meshes;
  if (devices == 1) {
    meshes.push_back(cluster::DeviceMesh{});
  } else if (rule.experts) {
    meshes.push_back(cluster::DeviceMesh{{{"expert", devices}}});
  } else if (rule.space) {
    meshes.push_back(cluster::DeviceMesh{{{"space", devices}}});
  } else if (!rule.tensor) {
    meshes.push_back(cluster::DeviceMesh{{{"data", devices}}});
  } else if (!rule.data) {
    meshes.push_back(cluster::DeviceMesh{{{"tensor", devices}}});
  } else {
    for (std::int64_t tensor = 2; tensor < devices; ++tensor) {
      if (devices % tensor == 0) {
        meshes.push_back(cluster::DeviceMesh{{{"data", devices / tensor}, {"tensor", tensor}}});
      }
    }
    if (meshes.empty()) {
      meshes.push_back(cluster::DeviceMesh{{{"data", devices}}});
    }
  }
  return meshes;
}

Experts::Experts(const PlanRequest& request,
                 std::shared_ptr<const problem::StepStructure> structure)
    : request_(request), structure_(std::move(structure)) {}

Experts::Experts(const PlanRequest& request)
    : Experts(request, std::make_shared<const problem::StepStructure>(request.step)) {}

bool Experts::applies(const ExpertRule& rule) const {
  const auto& meanings = structure_->meanings();
  const auto has = [&](AxisMeaning wanted) {
    return std::any_of(meanings.begin(), meanings.end(), [&](const auto& axes) {
      return std::find(axes.begin(), axes.end(), wanted) != axes.end();
    });
  };
  return (!rule.space || has(AxisMeaning::kSpace)) && (!rule.experts || has(AxisMeaning::kExpert));
}

/// A lower bound on the simulated time of every assignment.
Seconds Experts::least_seconds(const problem::IntraOpProblem& problem) const {
  std::unordered_map<const problem::NodeType*, std::pair<Seconds, Seconds>> known;
  Seconds kernels = 0;
  Seconds all = 0;
  for (const IntraOpNode& node : problem.nodes()) {
    const auto [it, fresh] = known.try_emplace(node.type.get());
    if (fresh) {
      auto& [least_kernels, least_all] = it->second;
      least_kernels = least_all = std::numeric_limits<Seconds>::infinity();
      for (const NodeChoice& choice : node.type->choices) {
        least_kernels = std::min(least_kernels, choice.kernel_seconds);
        least_all = std::min(least_all, choice.seconds);
      }
    }
    kernels += it->second.first;
    all += it->second.second;
  }
  const double streams = request_.cluster.local ? 1 : 2;
  return std::max(kernels, all / streams);
}

Result<std::vector<Candidate>> Experts::plans(const ExpertRule& rule,
                                              const cluster::DeviceMesh& mesh,
                                              Bytes limit,
                                              Seconds worth) const {
  const ExpertFilter expert(*structure_, rule, mesh);
  problem::ChoiceFilter filter;
  filter.allow = [&](const IntraOpNode& node, const NodeChoice& choice) {
    return expert.allow(node, choice);
  };
  filter.tag = [&](const IntraOpNode& node) { return expert.tag(node); };
  const cost::CostModel cost(request_.cluster, mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(const problem::IntraOpProblem problem,
                             problem::IntraOpProblem::build(structure_, cost, filter));
  std::vector<Candidate> candidates;
  if (least_seconds(problem) >= worth) {
    return candidates;
  }
  const solvers::ClassSolution solution = solvers::minimise(problem.class_network(false));
  if (!solution.solved) {
    return unsupported(fmt::format("{}: the model's graph is too entangled to plan", rule.name));
  }
  if (!std::isfinite(solution.cost)) {
    return candidates;  // the rule asks for a layout that nothing leads to
  }
  const std::vector<int>& choice = solution.choice;
  Seconds kernels = 0;
  Seconds reruns = 0;
  for (std::size_t n = 0; n < problem.nodes().size(); ++n) {
    const IntraOpNode& node = problem.nodes()[n];
    const NodeChoice& chosen = node.type->choices[static_cast<std::size_t>(choice[n])];
    kernels += chosen.kernel_seconds;
    const bool again = node.kind == IntraOpNode::Kind::kOp &&
                       structure_->timeline().again(node.members.front(), problem::kWhole) >= 0;
    reruns += again ? chosen.rerun_kernel_seconds : 0;
  }
  if (kernels >= worth) {
    return candidates;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Candidate plain,
                             evaluate(problem.to_plan(choice, false), request_.step));
  const bool fits = plain.simulation.peak_bytes <= limit;
  if (plain.simulation.step_seconds < worth) {
    candidates.push_back(std::move(plain));
  }
  if (!fits && kernels + reruns < worth && !problem.blocks().empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        Candidate again,
        evaluate(problem.to_plan(with_recompute(problem, choice), true), request_.step));
    candidates.push_back(std::move(again));
  }
  return candidates;
}

Result<PlanResult> plan_by_rules(const PlanRequest& request,
                                 std::string_view planner,
                                 std::span<const ExpertRule> rules) {
  const Budget budget(request);
  const Bytes limit = memory_limit(request);
  const Experts experts(request);
  std::vector<Candidate> candidates;
  for (const ExpertRule& rule : rules) {
    const std::vector<cluster::DeviceMesh> meshes =
        request.mesh ? std::vector<cluster::DeviceMesh>{*request.mesh}
                     : expert_meshes(rule, request.cluster.device_count());
    for (const cluster::DeviceMesh& mesh : meshes) {
      if (budget.exhausted() && !candidates.empty()) {
        break;
      }
      SHARDPLAN_ASSIGN_OR_RETURN(
          std::vector<Candidate> plans,
          experts.plans(rule, mesh, limit, least_step_seconds(candidates, limit)));
      std::move(plans.begin(), plans.end(), std::back_inserter(candidates));
    }
  }
  return conclude(request, planner, candidates, limit, {}, budget);
}

}  // namespace shardplan::planners
