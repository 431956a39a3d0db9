#include "shardplan/planners/pipeline/stage_plans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "shardplan/lower/pipeline.h"
#include "shardplan/ops/op.h"
#include "shardplan/plan/labels.h"
#include "shardplan/planners/pipeline/even_cut.h"
#include "shardplan/support/text.h"
#include "shardplan/training/stages.h"

namespace shardplan::planners {
namespace {

using ir::OpId;
using ir::Phase;

/// The rounds in which limits of stages are lowered.
constexpr int kRounds = 4;

std::string text_of(const ir::Attribute& attribute) {
  return std::visit(
      [](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, ir::IntList>) {
          return fmt::format("[{}]", fmt::join(value, ","));
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

}  // namespace

class StagePlanner {
 public:
  StagePlanner(const PlanRequest& request,
               const PlannerInfo& inside,
               cluster::Cluster part,
               std::optional<cluster::DeviceMesh> mesh)
      : request_(request), inside_(inside), part_(std::move(part)), mesh_(std::move(mesh)) {}

  /// The plan alone takes less than `worth`, or there is none.
  Result<plan::Plan> plan(const ir::Graph& stage,
                          Bytes limit,
                          const Budget& budget,
                          Seconds worth) {
    const std::vector<std::string> blocks = plan::blocks_of(stage);
    const auto key = std::pair(stage_shape(stage), limit);
    auto known = known_.find(key);
    // A search for less ended without a plan.
    if (known != known_.end() && !known->second.plan.has_value() && known->second.worth < worth) {
      known_.erase(known);
      known = known_.end();
    }
    if (known == known_.end()) {
      SHARDPLAN_ASSIGN_OR_RETURN(std::optional<plan::Plan> made,
                                 search(stage, limit, budget, worth));
      known = known_.emplace(key, Known{std::move(made), blocks, worth}).first;
    }
    const std::optional<plan::Plan>& found = known->second.plan;
    if (!found || found->prediction.step_seconds >= worth) {
      const std::string less = worth < std::numeric_limits<Seconds>::infinity()
                                   ? " in less than " + human_seconds(worth)
                                   : std::string();
      return invalid_input(fmt::format("{} found no plan for a stage{}", inside_.name, less),
                           "pipeline");
    }
    plan::Plan plan = *found;
    plan.graph_hash = ir::structural_hash(stage);
    for (plan::RecomputedBlock& block : plan.recompute) {
      const std::vector<std::string>& from = known->second.blocks;
      block.block = blocks[static_cast<std::size_t>(
          std::find(from.begin(), from.end(), block.block) - from.begin())];
    }
    return plan;
  }

 private:
  struct Known {
    std::optional<plan::Plan> plan;
    std::vector<std::string> blocks;
    Seconds worth;  ///< with which it was searched for
  };

  Result<std::optional<plan::Plan>> search(const ir::Graph& stage,
                                           Bytes limit,
                                           const Budget& budget,
                                           Seconds worth) const {
    PlanRequest of_stage{.step = stage};
    of_stage.recipe = request_.recipe;
    of_stage.cluster = part_;
    of_stage.memory_limit = limit;
    of_stage.mesh = mesh_;
    of_stage.max_mesh_axes = request_.max_mesh_axes;
    of_stage.time_limit = budget.remaining();
    of_stage.seed = request_.seed;
    of_stage.control = request_.control;
    of_stage.worth = worth;
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult result, inside_.plan(of_stage));
    if (result.status == SearchStatus::kNoPlanFound) {
      return std::optional<plan::Plan>();
    }
    return std::optional(std::move(result.best));
  }

  const PlanRequest& request_;
  const PlannerInfo& inside_;
  cluster::Cluster part_;
  std::optional<cluster::DeviceMesh> mesh_;
  std::map<std::pair<std::string, Bytes>, Known> known_;
};

namespace {

/// Takes what the pipeline adds to a stage's own peak (other microbatches in flight, messages) off
/// the limits of stages in groups that are over theirs; false when there is nothing to take off.
bool lower_limits(const std::vector<plan::Plan>& stages,
                  const Candidate& now,
                  Bytes limit,
                  std::vector<Bytes>& limits) {
  bool lowered = false;
  for (std::size_t s = 0; s < limits.size(); ++s) {
    const Bytes own = stages[s].prediction.peak_bytes;
    const Bytes over = now.stage_peaks[s] - limit;
    if (over > 0 && own > over) {
      limits[s] = std::min(limits[s], own) - over;
      lowered = true;
    }
  }
  return lowered;
}

/// Sets what is recomputed to those of the blocks that the stage has.
void recompute_only(const std::vector<std::string>& blocks,
                    const ir::Graph& stage,
                    plan::Plan& plan) {
  plan.recompute.clear();
  for (const std::string& block : plan::blocks_of(stage)) {
    if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) {
      plan.recompute.push_back({block, plan::Recompute::kWhole});
    }
  }
}

}  // namespace

std::string stage_shape(const ir::Graph& stage) {
  const std::vector<std::string> blocks = plan::blocks_of(stage);
  std::string key;
  for (const ir::Value& value : stage.values()) {
    key += fmt::format("{} {} {} {};",
                       static_cast<int>(value.kind),
                       ir::to_string(value.type),
                       value.trainable,
                       value.init_from.value);
  }
  for (const ir::Op& op : stage.ops()) {
    const auto block = std::find(blocks.begin(), blocks.end(), plan::block_of(op.layer));
    key += fmt::format("{} {} {} {} (",
                       op.name,
                       static_cast<int>(op.phase),
                       op.source.value,
                       block - blocks.begin());
    for (const ir::ValueId input : op.inputs) {
      key += fmt::format("{} ", input.value);
    }
    key += ")";
    for (const auto& [name, attribute] : op.attributes.entries()) {
      // Where a message goes, and what random numbers an op draws, make no difference.
      if (name != "message" && name != "from" && name != "to" && name != "seed") {
        key += name + "=" + text_of(attribute) + " ";
      }
    }
  }
  for (const ir::Write& write : stage.writes) {
    key += fmt::format("{}<{} ", write.target.value, write.value.value);
  }
  for (const ir::Write& gradient : stage.gradients) {
    key += fmt::format("{}~{} ", gradient.target.value, gradient.value.value);
  }
  return key;
}

Seconds kernel_seconds(const ir::Graph& step, OpId id, const cost::CostModel& cost) {
  const ir::Op& op = step.op(id);
  const ops::OpDef& def = ops::get(op.name);
  if (def.view) {
    return 0;
  }
  const ops::OpTypes types = ops::op_types(step, id);
  const Bytes bytes = lower::memory_traffic(ops::axis_map(step, id), types.inputs, types.results);
  return cost.kernel(
      cost::kernel_of(def, types.inputs, types.results, ops::flops(step, id), bytes));
}

std::vector<Segment> segments(const ir::Graph& step,
                              const cost::CostModel& cost,
                              std::size_t least) {
  std::vector<Segment> by_block;
  std::vector<Segment> by_op;
  std::vector<std::size_t> block_of(step.ops().size(), 0);
  std::vector<std::size_t> op_of(step.ops().size(), 0);
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::Op& op = step.ops()[i];
    const Seconds seconds = kernel_seconds(step, OpId(i), cost);
    if (op.phase == Phase::kForward) {
      const std::string block(plan::block_of(op.layer));
      if (by_block.empty() || by_block.back().block != block) {
        by_block.push_back({block, i, i, 0, 0});
      }
      by_op.push_back({block, i, i, 0, 0});
      block_of[i] = by_block.size() - 1;
      op_of[i] = by_op.size() - 1;
      for (Segment* const segment : {&by_block.back(), &by_op.back()}) {
        segment->end = i + 1;
        segment->forward += seconds;
      }
    } else if (op.phase == Phase::kBackward && op.source.valid()) {
      by_block[block_of[op.source.index()]].backward += seconds;
      by_op[op_of[op.source.index()]].backward += seconds;
    }
  }
  return by_block.size() >= least ? by_block : by_op;
}

std::vector<int> stages_of_segments(const ir::Graph& step,
                                    const std::vector<Segment>& segments,
                                    const std::vector<std::size_t>& starts) {
  std::vector<int> stage_of(step.ops().size(), 0);
  std::size_t stage = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    while (stage + 1 < starts.size() && starts[stage + 1] <= s) {
      ++stage;
    }
    std::fill(stage_of.begin() + static_cast<std::ptrdiff_t>(segments[s].begin),
              stage_of.begin() + static_cast<std::ptrdiff_t>(segments[s].end),
              static_cast<int>(stage));
  }
  return stage_of;
}

std::vector<std::size_t> balanced_starts(const std::vector<Segment>& segments, int stages) {
  std::vector<double> sums{0};
  for (const Segment& segment : segments) {
    sums.push_back(sums.back() + segment.forward + segment.backward);
  }
  return even_cut(sums, static_cast<std::size_t>(stages));
}

StagePlans::StagePlans(const PlanRequest& request, const PlannerInfo& inside)
    : request_(request), inside_(inside) {}
StagePlans::~StagePlans() = default;

Result<StagePlanner*> StagePlans::planner(const StageShape& shape) {
  const PlannerInfo& inside = shape.inside != nullptr ? *shape.inside : inside_;
  std::unique_ptr<StagePlanner>& planner =
      planners_[Kind(shape.devices,
                     inside.name,
                     shape.mesh ? "on " + cluster::to_string(*shape.mesh) : std::string())];
  if (planner == nullptr) {
    SHARDPLAN_ASSIGN_OR_RETURN(cluster::Cluster part,
                               plan::stage_cluster(request_.cluster, shape.devices));
    planner = std::make_unique<StagePlanner>(request_, inside, std::move(part), shape.mesh);
  }
  return planner.get();
}

Result<Candidate> StagePlans::plan(const StageCut& cut) {
  return plan(cut, Budget(request_));
}

Result<Candidate> StagePlans::plan(const StageCut& cut, const Budget& budget, Seconds worth) {
  const std::int64_t devices = request_.cluster.device_count();
  if (cut.shapes.empty() && (cut.groups < 1 || devices % cut.groups != 0)) {
    return invalid_input(
        fmt::format("{} devices cannot be cut into {} equal groups", devices, cut.groups),
        "pipeline");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(
      const training::StagedStep staged,
      training::split_into_stages(request_.step, cut.stage_of, cut.weights_later, cut.pipelines));
  std::vector<StageShape> shapes = cut.shapes;
  if (shapes.empty()) {
    shapes.assign(staged.stages.size(), StageShape{devices / cut.groups, nullptr, {}});
  }
  if (shapes.size() != staged.stages.size()) {
    return invalid_input(
        fmt::format("{} stages are cut, {} have devices", staged.stages.size(), shapes.size()),
        "pipeline");
  }
  plan::Plan plan;
  plan.graph_hash = ir::structural_hash(request_.step);
  plan.recipe = request_.recipe;
  plan.cluster = request_.cluster;
  plan.pipeline = plan::Pipeline{cut.schedule,
                                 cut.groups,
                                 cut.stage_of,
                                 cut.weights_later,
                                 cut.steps,
                                 cut.pipelines,
                                 cut.forward_group,
                                 {}};
  const Bytes limit = memory_limit(request_);
  // What runs again is said: then `inside` does not choose it to stay within the limit.
  std::vector<Bytes> limits(staged.stages.size(),
                            cut.recompute ? std::numeric_limits<Bytes>::max() : limit);
  Candidate best;
  for (int round = 0; round < kRounds; ++round) {
    plan.pipeline->stages.clear();
    for (std::size_t s = 0; s < staged.stages.size(); ++s) {
      SHARDPLAN_ASSIGN_OR_RETURN(StagePlanner* const by, planner(shapes[s]));
      SHARDPLAN_ASSIGN_OR_RETURN(plan::Plan stage,
                                 by->plan(staged.stages[s].graph,
                                          limits[s],
                                          budget,
                                          worth * static_cast<double>(cut.pipelines)));
      if (cut.recompute) {
        recompute_only(*cut.recompute, staged.stages[s].graph, stage);
      }
      plan.pipeline->stages.push_back(std::move(stage));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(Candidate now, evaluate(plan, request_.step));
    if (round == 0 || now.simulation.peak_bytes < best.simulation.peak_bytes) {
      best = std::move(now);
    }
    if (best.simulation.peak_bytes <= limit || cut.recompute ||
        best.simulation.step_seconds >= worth ||  // less memory makes nothing faster
        !lower_limits(best.plan.pipeline->stages, best, limit, limits)) {
      break;
    }
  }
  return best;
}

Result<Candidate> StagePlans::improve(const StageCut& cut,
                                      const Candidate& made,
                                      const Budget& budget) {
  SHARDPLAN_ASSIGN_OR_RETURN(
      const training::StagedStep staged,
      training::split_into_stages(request_.step, cut.stage_of, cut.weights_later, cut.pipelines));
  if (!made.plan.pipeline) {
    return unsupported("a plan without a pipeline has no stages to improve");
  }
  const std::vector<plan::Plan>& before = made.plan.pipeline->stages;
  plan::Pipeline pipeline = *made.plan.pipeline;
  const Bytes limit = memory_limit(request_);
  std::vector<std::string> shapes;
  std::map<std::string, Seconds> worth;
  std::map<std::string, Bytes> room;
  for (std::size_t s = 0; s < before.size(); ++s) {
    const ir::Graph& graph = staged.stages[s].graph;
    SHARDPLAN_ASSIGN_OR_RETURN(const Candidate alone, evaluate(before[s], graph));
    const std::string& shape = shapes.emplace_back(stage_shape(graph));
    const Bytes left = limit - (made.stage_peaks[s] - alone.simulation.peak_bytes);
    const auto [known, fresh] = room.emplace(shape, left);
    known->second = std::min(known->second, left);
    Seconds& least = worth[shape];
    least = fresh ? alone.simulation.step_seconds : std::max(least, alone.simulation.step_seconds);
  }
  bool changed = false;
  for (std::size_t s = 0; s < before.size(); ++s) {
    if (room[shapes[s]] <= 0) {
      continue;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(StagePlanner* const by,
                               planner(StageShape{before[s].mesh.size(), nullptr, {}}));
    Result<plan::Plan> faster =
        by->plan(staged.stages[s].graph, room[shapes[s]], budget, worth[shapes[s]]);
    if (faster) {
      pipeline.stages[s] = *std::move(faster);
      changed = true;
    }
  }
  if (!changed) {
    return made;
  }
  plan::Plan plan = made.plan;
  plan.pipeline = pipeline;
  SHARDPLAN_ASSIGN_OR_RETURN(Candidate now, evaluate(plan, request_.step));
  if (now.simulation.peak_bytes <= limit) {
    return now;
  }
  for (std::size_t s = 0; s < before.size(); ++s) {
    if (now.stage_peaks[s] > limit) {
      pipeline.stages[s] = before[s];
    }
  }
  plan.pipeline = std::move(pipeline);
  return evaluate(std::move(plan), request_.step);
}

}  // namespace shardplan::planners
