#include "shardplan/planners/pipeline/block_costs.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "shardplan/cost/collectives.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/plan/labels.h"
#include "shardplan/planners/experts.h"
#include "shardplan/planners/intra/expert.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/step_layers.h"
#include "shardplan/sim/pipeline.h"
#include "shardplan/sim/program_memory.h"

namespace shardplan::planners {
namespace {

using ir::Phase;

/// Runs steps [begin, end) and returns the most bytes on the way.
Bytes run(sim::ProgramMemory& memory,
          sim::MemoryMeter& meter,
          const lower::Program& program,
          std::size_t begin,
          std::size_t end) {
  meter.watch();
  for (std::size_t i = begin; i < end; ++i) {
    memory.run(program.microbatch[i]);
  }
  return meter.watched();
}

Bytes live(sim::MemoryMeter& meter) {
  meter.watch();
  return meter.watched();
}

/// One microbatch through the block and back, as sim/pipeline.cc runs it.
void measure_memory(const lower::Program& program, const ir::Graph& graph, BlockCost& cost) {
  sim::MemoryMeter meter;
  sim::ProgramMemory memory(program, graph, meter);
  const Bytes residents = live(meter);
  const std::size_t backward = lower::backward_begin(program);
  const Bytes forward_peak = run(memory, meter, program, 0, backward);
  memory.keep(0);
  cost.saved = live(meter) - residents;
  memory.bring_back(0);
  const Bytes backward_peak = run(memory, meter, program, backward, program.microbatch.size());
  memory.keep(0);
  cost.weights = live(meter);
  cost.passing =
      std::max<Bytes>(0, std::max(forward_peak, backward_peak) - cost.weights - cost.saved);
}

/// Seconds that the messages of a phase take to the neighbour, by what each device has of them.
Seconds send_seconds(const lower::Program& program,
                     const ir::Graph& graph,
                     const cluster::Cluster& whole,
                     std::int64_t devices,
                     Phase phase) {
  Seconds seconds = 0;
  for (const lower::Step& step : program.microbatch) {
    if (step.kind == lower::StepKind::kCompute && step.phase == phase &&
        graph.op(step.op).name == "send") {
      const Bytes bytes = program.value(step.inputs[0]).type.bytes();
      seconds += cost::message_seconds(whole, bytes, 0, devices % whole.device_count());
    }
  }
  return seconds;
}

Result<BlockCost> measure(const training::Stage& block,
                          const plan::Plan& plan,
                          const cluster::Cluster& whole) {
  const cost::CostModel cost(plan.cluster, plan.mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::Program program,
                             lower::lower(block.graph, plan, cost::step_price(cost)));
  sim::SimOptions options;
  options.overlap = !plan.cluster.local;
  const sim::SectionTimes times = sim::section_times(
      program, lower::weights_begin(program, block.weights_begin), block.graph, cost, options);
  const std::int64_t devices = plan.mesh.size();
  BlockCost out;
  out.times = sim::stage_times(times);
  out.times.send_forward = send_seconds(program, block.graph, whole, devices, Phase::kForward);
  out.times.send_backward = send_seconds(program, block.graph, whole, devices, Phase::kBackward);
  measure_memory(program, block.graph, out);
  return out;
}

struct Way {
  const PlannerInfo* inside;
  cluster::DeviceMesh mesh;
};

/// Every rule that has something to cut on its meshes of at most two axes, and `map` on these.
std::vector<Way> ways_of(const std::vector<const ExpertRule*>& rules, std::int64_t devices) {
  static const std::vector<PlannerInfo> experts = expert_planners();
  static const PlannerInfo map = map_planner();
  if (devices == 1) {
    return {{&map, cluster::DeviceMesh{}}};
  }
  std::vector<Way> ways;
  const auto add = [&](const PlannerInfo& inside, const cluster::DeviceMesh& mesh) {
    const bool known = std::any_of(ways.begin(), ways.end(), [&](const Way& way) {
      return way.inside == &inside && way.mesh == mesh;
    });
    if (!known) {
      ways.push_back({&inside, mesh});
    }
  };
  for (const ExpertRule* const rule : rules) {
    for (cluster::DeviceMesh mesh : expert_meshes(*rule, devices)) {
      if (rule->data && rule->tensor && mesh.axes.size() == 1) {
        continue;  // the rule without tensor parallelism has it
      }
      add(experts[static_cast<std::size_t>(rule - expert_rules().data())], mesh);
      if (mesh.axes.size() == 1) {
        mesh.axes.front().name = "data";  // to `map` a name says nothing
      }
      add(map, mesh);
    }
  }
  return ways;
}

}  // namespace

Result<BlockCosts> BlockCosts::make(const PlanRequest& request) {
  BlockCosts out(request);
  const cost::CostModel one(request.cluster, {});
  out.blocks_ = stage_segments(request.step, segments(request.step, one, 0));
  std::vector<std::size_t> starts(out.blocks_.size());
  std::iota(starts.begin(), starts.end(), std::size_t{0});
  SHARDPLAN_ASSIGN_OR_RETURN(
      training::StagedStep staged,
      training::split_into_stages(
          request.step, stages_of_segments(request.step, out.blocks_, starts), true));
  std::map<std::string, std::size_t> kinds;
  for (training::Stage& stage : staged.stages) {
    const auto [known, fresh] = kinds.try_emplace(stage_shape(stage.graph), kinds.size());
    out.kind_.push_back(known->second);
    if (fresh) {
      out.of_kind_.push_back(std::move(stage));
    }
  }
  return out;
}

void BlockCosts::find_rules() {
  std::vector<bool> applies(expert_rules().size(), false);
  for (const training::Stage& block : of_kind_) {
    const PlanRequest alone{.step = block.graph};
    const Experts experts(alone);
    for (std::size_t rule = 0; rule < applies.size(); ++rule) {
      applies[rule] = applies[rule] || experts.applies(expert_rules()[rule]);
    }
  }
  for (std::size_t rule = 0; rule < applies.size(); ++rule) {
    if (applies[rule]) {
      rules_.push_back(&expert_rules()[rule]);
    }
  }
}

Result<GroupOption> BlockCosts::option(const PlannerInfo& inside,
                                       const cluster::Cluster& part,
                                       const cluster::DeviceMesh& mesh,
                                       const Budget& budget) const {
  GroupOption out{&inside, mesh, {}};
  for (const training::Stage& block : of_kind_) {
    PlanRequest request{.step = block.graph};
    request.recipe = request_.recipe;
    request.cluster = part;
    request.memory_limit = std::numeric_limits<Bytes>::max();
    request.mesh = mesh;
    request.time_limit = budget.remaining();
    request.seed = request_.seed;
    request.control = request_.control;
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult planned, inside.plan(request));
    if (planned.status == SearchStatus::kNoPlanFound) {
      return unsupported(planned.explanation);
    }
    std::array<BlockCost, 2>& costs = out.kinds.emplace_back();
    plan::Plan& plan = planned.best;
    plan.recompute.clear();
    SHARDPLAN_ASSIGN_OR_RETURN(costs[0], measure(block, plan, request_.cluster));
    for (const std::string& name : plan::blocks_of(block.graph)) {
      plan.recompute.push_back({name, plan::Recompute::kWhole});
    }
    costs[1] = costs[0];
    if (!plan.recompute.empty()) {
      SHARDPLAN_ASSIGN_OR_RETURN(costs[1], measure(block, plan, request_.cluster));
    }
  }
  return out;
}

Result<const std::vector<GroupOption>*> BlockCosts::options(std::int64_t devices,
                                                            const Budget& budget) {
  const auto [known, fresh] = options_.try_emplace(devices);
  if (rules_.empty()) {
    find_rules();
  }
  if (fresh) {
    SHARDPLAN_ASSIGN_OR_RETURN(const cluster::Cluster part,
                               plan::stage_cluster(request_.cluster, devices));
    for (const Way& way : ways_of(rules_, devices)) {
      if (budget.exhausted()) {
        break;
      }
      if (Result<GroupOption> made = option(*way.inside, part, way.mesh, budget)) {
        known->second.push_back(*std::move(made));
      }
    }
  }
  return &known->second;
}

}  // namespace shardplan::planners
