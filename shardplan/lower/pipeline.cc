#include "shardplan/lower/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace shardplan::lower {
namespace {

using sharding::Range;
using Box = std::vector<Range>;

/// The common part of two boxes; nothing where they have no element in common.
std::optional<Box> meet(const Box& a, const Box& b) {
  Box out;
  for (std::size_t d = 0; d < a.size(); ++d) {
    const std::int64_t start = std::max(a[d].start, b[d].start);
    const std::int64_t end = std::min(a[d].start + a[d].size, b[d].start + b[d].size);
    if (end <= start) {
      return std::nullopt;
    }
    out.push_back({start, end - start});
  }
  return out;
}

Status check_shape(const Schedule& schedule,
                   const ir::Graph& step,
                   const plan::Pipeline& pipeline,
                   int stages) {
  if (schedule.pipelines != pipeline.pipelines) {
    return invalid_input(
        fmt::format("schedule {} has one pipeline, not {}", pipeline.schedule, pipeline.pipelines),
        "pipeline");
  }
  if (schedule.forward_group != pipeline.forward_group) {
    return invalid_input(fmt::format("schedule {} does not have forward passes in groups of {}",
                                     pipeline.schedule,
                                     pipeline.forward_group),
                         "pipeline");
  }
  if (schedule.stages != stages) {
    return invalid_input(fmt::format("schedule {} has {} stages for {} groups of devices, not {}",
                                     pipeline.schedule,
                                     schedule.stages,
                                     pipeline.devices,
                                     stages),
                         "pipeline");
  }
  for (int k = 0; k < pipeline.pipelines; ++k) {
    const std::vector<int>& of = schedule.pipeline_of;
    if (std::find(of.begin(), of.end(), k) == of.end()) {
      return invalid_input(
          fmt::format("schedule {} gives pipeline {} of {} none of the {} microbatches",
                      pipeline.schedule,
                      k,
                      pipeline.pipelines,
                      step.microbatches),
          "pipeline");
    }
  }
  if (schedule.synchronous && pipeline.steps != 1) {
    return invalid_input(
        fmt::format("schedule {} ends every step with a flush; {} steps without one are for "
                    "asynchronous schedules",
                    pipeline.schedule,
                    pipeline.steps),
        "pipeline");
  }
  return {};
}

Result<Schedule> schedule_of(const ir::Graph& step, const plan::Pipeline& pipeline) {
  SHARDPLAN_ASSIGN_OR_RETURN(const ScheduleInfo* const info, find_schedule(pipeline.schedule));
  const auto copies = static_cast<int>(pipeline.stages.size());
  const int stages = copies / std::max(1, pipeline.pipelines);
  if (pipeline.devices < 1 || pipeline.pipelines < 1 || stages % pipeline.devices != 0 ||
      stages * pipeline.pipelines != copies) {
    return invalid_input(
        fmt::format("{} stages of {} pipelines cannot be shared by {} groups of devices",
                    copies,
                    pipeline.pipelines,
                    pipeline.devices),
        "pipeline");
  }
  ScheduleShape shape;
  shape.devices = pipeline.devices;
  shape.microbatches = step.microbatches;
  shape.batches = pipeline.steps;
  if (pipeline.schedule == "pipedream") {
    if (step.microbatches != 1) {
      return invalid_input(fmt::format("schedule pipedream updates the weights after every "
                                       "microbatch, and the recipe has {} of them in a step",
                                       step.microbatches),
                           "pipeline");
    }
    shape.microbatches = pipeline.steps;
  }
  shape.chunks = stages / pipeline.devices;
  shape.pipelines = pipeline.pipelines;
  if (pipeline.forward_group == 2) {
    shape.scaling = ChimeraScaling::kForwardDoubling;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, info->make(shape));
  SHARDPLAN_RETURN_IF_ERROR(check_shape(schedule, step, pipeline, stages));
  SHARDPLAN_RETURN_IF_ERROR(check(schedule));
  return schedule;
}

Status place_groups(const plan::Pipeline& pipeline, PipelineProgram& out) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(pipeline.devices), 0);
  for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    std::int64_t& size = sizes[static_cast<std::size_t>(out.device_of(static_cast<int>(stage)))];
    const std::int64_t mesh = pipeline.stages[stage].mesh.size();
    if (size != 0 && size != mesh) {
      return invalid_input(
          fmt::format("stage {} is for {} devices, another of its group for {}", stage, mesh, size),
          "pipeline");
    }
    size = mesh;
  }
  out.first_rank = {0};
  for (const std::int64_t size : sizes) {
    out.first_rank.push_back(out.first_rank.back() + size);
  }
  return {};
}

void link_messages(const std::vector<training::Message>& messages, PipelineProgram& out) {
  for (const training::Message& message : messages) {
    out.links.push_back({message.from, message.to, message.phase, {}, {}, {}});
  }
  for (std::size_t s = 0; s < out.programs.size(); ++s) {
    const ir::Graph& graph = out.stages[s].graph;
    for (const std::vector<Step>* section :
         {&out.programs[s].microbatch, &out.programs[s].update}) {
      for (const Step& step : *section) {
        if (step.kind != StepKind::kCompute) {
          continue;
        }
        const ir::Op& op = graph.op(step.op);
        if (op.name == "send") {
          Link& link = out.links[static_cast<std::size_t>(op.attributes.integer("message"))];
          link.sent = step.inputs[0];
          link.type = graph.type(op.inputs[0]);
        } else if (op.name == "receive") {
          out.links[static_cast<std::size_t>(op.attributes.integer("message"))].received =
              step.outputs[0];
        }
      }
    }
  }
}

/// Without a flush the stages update at different times.
Status check_updates(const PipelineProgram& program) {
  const bool shared = std::any_of(program.links.begin(), program.links.end(), [](const Link& link) {
    return link.phase == ir::Phase::kUpdate;
  });
  if (program.schedule.synchronous || !shared) {
    return {};
  }
  return Error{ErrorCode::kUnsupported,
               fmt::format("schedule {} updates stages at different times, and here their updates "
                           "need each other: gradients are clipped by their norm, or two stages "
                           "read one parameter",
                           program.schedule.name),
               "pipeline",
               {"train without --clip-norm and with weights that are not tied, or take a "
                "synchronous schedule, such as 1f1b"}};
}

}  // namespace

int PipelineProgram::device_of_rank(std::int64_t rank) const {
  const auto next = std::upper_bound(first_rank.begin(), first_rank.end(), rank);
  return static_cast<int>(next - first_rank.begin()) - 1;
}

std::size_t backward_begin(const Program& program) {
  const auto first =
      std::find_if(program.microbatch.begin(), program.microbatch.end(), [](const Step& step) {
        return step.phase != ir::Phase::kForward;
      });
  return static_cast<std::size_t>(first - program.microbatch.begin());
}

std::size_t weights_begin(const Program& program, ir::OpId first) {
  std::size_t begin = program.microbatch.size();
  if (!first.valid()) {
    return begin;
  }
  const std::size_t backward = backward_begin(program);
  while (begin > backward &&
         (program.microbatch[begin - 1].recompute || !program.microbatch[begin - 1].op.valid() ||
          program.microbatch[begin - 1].op >= first)) {
    --begin;
  }
  return begin;
}

std::vector<Piece> pieces(const PipelineProgram& program, int message) {
  const Link& link = program.links[static_cast<std::size_t>(message)];
  const Program& from = program.programs[static_cast<std::size_t>(link.from)];
  const Program& to = program.programs[static_cast<std::size_t>(link.to)];
  std::vector<std::pair<Box, std::vector<std::int64_t>>> held;  // in the order of first senders
  for (std::int64_t rank = 0; rank < from.mesh.size(); ++rank) {
    Box box = sharding::part(from.value(link.sent).spec, link.type.shape, from.mesh, rank);
    const auto same =
        std::find_if(held.begin(), held.end(), [&](const auto& h) { return h.first == box; });
    if (same != held.end()) {
      same->second.push_back(rank);
    } else {
      held.emplace_back(std::move(box), std::vector<std::int64_t>{rank});
    }
  }
  std::vector<Piece> out;
  for (std::int64_t rank = 0; rank < to.mesh.size(); ++rank) {
    const Box wanted = sharding::part(to.value(link.received).spec, link.type.shape, to.mesh, rank);
    for (const auto& [box, senders] : held) {
      if (std::optional<Box> common = meet(box, wanted)) {
        const auto turn = static_cast<std::size_t>(rank) % senders.size();
        out.push_back({senders[turn], rank, *std::move(common)});
      }
    }
  }
  return out;
}

std::vector<UpdateRun> update_runs(const PipelineProgram& program, int device) {
  struct Instruction {
    std::size_t order;
    int stage;
    std::size_t index;
  };
  std::vector<Instruction> all;
  for (int stage = 0; stage < program.stages_with_copies(); ++stage) {
    if (program.device_of(stage) != device) {
      continue;
    }
    const auto s = static_cast<std::size_t>(stage);
    std::size_t order = 0;
    for (std::size_t i = 0; i < program.programs[s].update.size(); ++i) {
      const ir::OpId op = program.programs[s].update[i].op;
      order = std::max(order, op.valid() ? program.stages[s].order[op.index()] : order);
      all.push_back({order, stage, i});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Instruction& a, const Instruction& b) {
    return a.order < b.order;
  });
  std::vector<UpdateRun> runs;
  for (const Instruction& instruction : all) {
    if (runs.empty() || runs.back().stage != instruction.stage ||
        runs.back().end != instruction.index) {
      runs.push_back({instruction.stage, instruction.index, instruction.index});
    }
    runs.back().end = instruction.index + 1;
  }
  return runs;
}

Result<PipelineProgram> lower_pipeline(const ir::Graph& step,
                                       const plan::Plan& plan,
                                       const PriceOf& price,
                                       const LowerOptions& options) {
  if (!plan.pipeline) {
    return invalid_input("the plan is no pipeline", "lower");
  }
  const plan::Pipeline& pipeline = *plan.pipeline;
  SHARDPLAN_ASSIGN_OR_RETURN(
      training::StagedStep staged,
      training::split_into_stages(
          step, pipeline.stage_of, pipeline.weights_later, pipeline.pipelines));
  if (staged.stages.size() != pipeline.stages.size()) {
    return invalid_input(fmt::format("{} stages have a plan, the step is cut into {}",
                                     pipeline.stages.size(),
                                     staged.stages.size()),
                         "pipeline");
  }
  PipelineProgram out;
  SHARDPLAN_ASSIGN_OR_RETURN(out.schedule, schedule_of(step, pipeline));
  const bool in_parts = has_parts(out.schedule);
  if (in_parts != pipeline.weights_later) {
    return invalid_input(
        fmt::format("schedule {} {} the backward pass in two parts (weights_later)",
                    pipeline.schedule,
                    in_parts ? "needs" : "does not have"),
        "pipeline");
  }
  SHARDPLAN_RETURN_IF_ERROR(place_groups(pipeline, out));
  out.stages = std::move(staged.stages);
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        Program program,
        lower(out.stages[s].graph, pipeline.stages[s], price(pipeline.stages[s]), options));
    out.weights_begin.push_back(weights_begin(program, out.stages[s].weights_begin));
    out.programs.push_back(std::move(program));
  }
  link_messages(staged.messages, out);
  SHARDPLAN_RETURN_IF_ERROR(check_updates(out));
  return out;
}

}  // namespace shardplan::lower
