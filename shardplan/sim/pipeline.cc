#include "shardplan/sim/pipeline.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "shardplan/cost/collectives.h"
#include "shardplan/sim/program_memory.h"

namespace shardplan::sim {
namespace {

using lower::Link;
using lower::PipelineProgram;
using lower::Program;
using lower::Step;
using lower::StepKind;
using lower::Task;
using lower::Work;

/// Until the busiest rank has sent, or received, all its pieces of a message.
Seconds wire_seconds(const PipelineProgram& program, const cluster::Cluster& cluster, int message) {
  const Link& link = program.links[static_cast<std::size_t>(message)];
  const Bytes element = ir::element_bytes(link.type.dtype);
  std::map<std::int64_t, Seconds> sends;
  std::map<std::int64_t, Seconds> receives;
  Seconds most = 0;
  for (const lower::Piece& piece : lower::pieces(program, message)) {
    Bytes bytes = element;
    for (const sharding::Range& range : piece.box) {
      bytes *= range.size;
    }
    const std::int64_t from = program.first_rank_of(link.from) + piece.sender;
    const std::int64_t to = program.first_rank_of(link.to) + piece.receiver;
    const Seconds seconds = cost::message_seconds(cluster, bytes, from, to);
    most = std::max({most, sends[from] += seconds, receives[to] += seconds});
  }
  return most;
}

/// Of a step, those that go through a stage.
double microbatches_of(const PipelineProgram& program, int stage) {
  const std::vector<int>& pipeline_of = program.schedule.pipeline_of;
  const auto mine = static_cast<double>(
      std::count(pipeline_of.begin(), pipeline_of.end(), stage / program.schedule.stages));
  return mine * static_cast<double>(program.programs.front().microbatches) /
         static_cast<double>(program.schedule.microbatches);
}

/// The bytes of one group of devices, task by task.
class GroupMemory {
 public:
  GroupMemory(const PipelineProgram& program, int group)
      : program_(program), group_(group), sent_(program) {
    for (int stage = 0; stage < program.stages_with_copies(); ++stage) {
      if (program.device_of(stage) == group) {
        const auto s = static_cast<std::size_t>(stage);
        stages_.emplace(
            stage,
            std::make_unique<ProgramMemory>(program.programs[s], program.stages[s].graph, meter_));
      }
    }
  }

  void run(const std::vector<Task>& tasks) {
    const lower::WeightUses uses(tasks);
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const Task& task = tasks[t];
      sent_.begin_task(task.work != Work::kUpdate);
      if (task.work == Work::kUpdate && program_.schedule.synchronous) {
        continue;  // all together, below
      }
      const int stage = program_.stage_of(task, group_);
      const auto s = static_cast<std::size_t>(stage);
      const Program& program = program_.programs[s];
      ProgramMemory& memory = *stages_.at(stage);
      const std::size_t backward = lower::backward_begin(program);
      switch (task.work) {
        case Work::kForward:
          run_steps(stage, program.microbatch, 0, backward);
          memory.keep(task.microbatch);
          break;
        case Work::kBackward:
          memory.bring_back(task.microbatch);
          run_steps(stage, program.microbatch, backward, program.microbatch.size());
          break;
        case Work::kUpdate:
          stash(uses, t, stage);
          run_steps(stage, program.update, 0, program.update.size());
          break;
        case Work::kBackwardInput:
          memory.bring_back(task.microbatch);
          run_steps(stage, program.microbatch, backward, program_.weights_begin[s]);
          memory.keep(task.microbatch);
          break;
        case Work::kBackwardWeight:
          memory.bring_back(task.microbatch);
          run_steps(
              stage, program.microbatch, program_.weights_begin[s], program.microbatch.size());
          break;
      }
    }
    sent_.begin_task(false);
    for (const lower::UpdateRun& run : program_.schedule.synchronous
                                           ? lower::update_runs(program_, group_)
                                           : std::vector<lower::UpdateRun>()) {
      run_steps(run.stage,
                program_.programs[static_cast<std::size_t>(run.stage)].update,
                run.begin,
                run.end);
    }
    sent_.clear([](const std::shared_ptr<Charge>&) {});
  }
  [[nodiscard]] const MemoryMeter& meter() const { return meter_; }

 private:
  /// Old weights stay until no later pass computes with them (runtime/pipeline.cc).
  void stash(const lower::WeightUses& uses, std::size_t task, int stage) {
    auto& stashed = stashed_[stage];
    std::erase_if(stashed,
                  [&](const auto& entry) { return !uses.after(task, stage, entry.first); });
    std::int64_t& version = version_[stage];
    if (uses.after(task, stage, version)) {
      const auto s = static_cast<std::size_t>(stage);
      const ir::Graph& graph = program_.stages[s].graph;
      Bytes bytes = 0;
      for (const lower::Resident& resident : program_.programs[s].residents) {
        const bool written =
            std::any_of(graph.writes.begin(), graph.writes.end(), [&](const ir::Write& write) {
              return write.target == resident.global;
            });
        if (written && graph.value(resident.global).kind == ir::ValueKind::kParameter) {
          bytes += program_.programs[s].value(resident.local).type.bytes();
        }
      }
      stashed[version] = std::make_shared<Charge>(meter_, MemoryClass::kParameters, bytes);
    }
    ++version;
  }

  void run_steps(int stage, const std::vector<Step>& steps, std::size_t begin, std::size_t end) {
    ProgramMemory& memory = *stages_.at(stage);
    const ir::Graph& graph = program_.stages[static_cast<std::size_t>(stage)].graph;
    for (std::size_t i = begin; i < end; ++i) {
      const bool sends =
          steps[i].kind == StepKind::kCompute && graph.op(steps[i].op).name == "send";
      const std::shared_ptr<Charge> held = sends ? memory.storage(steps[i].inputs[0]) : nullptr;
      memory.run(steps[i]);
      if (sends) {
        const auto message = graph.op(steps[i].op).attributes.integer("message");
        const Link& link = program_.links[static_cast<std::size_t>(message)];
        sent_.make_room(link, [](const std::shared_ptr<Charge>&) {});
        sent_.keep(link, held);
      }
    }
  }

  const PipelineProgram& program_;
  int group_;
  MemoryMeter meter_;  // outlives the charges
  std::map<int, std::unique_ptr<ProgramMemory>> stages_;
  lower::Outbox<std::shared_ptr<Charge>> sent_;
  std::map<int, std::map<std::int64_t, std::shared_ptr<Charge>>> stashed_;  ///< by stage, version
  std::map<int, std::int64_t> version_;  ///< by stage: the newest
};

}  // namespace

StageTimes stage_times(const SectionTimes& times) {
  StageTimes out;
  out.forward = times.forward;
  out.backward = times.backward;
  out.backward_input = times.backward_input;
  out.backward_weight = times.backward_weight;
  out.update = times.update;
  return out;
}

Result<PipelineSimulation> simulate_pipeline(const PipelineProgram& program,
                                             const cluster::Cluster& cluster,
                                             const std::vector<plan::Plan>& stages,
                                             const SimOptions& options) {
  PipelineSimulation out;
  std::vector<Seconds> busy(program.schedule.tasks.size(), 0);  // by group
  std::vector<double> flops(busy.size(), 0);
  for (std::size_t s = 0; s < program.programs.size(); ++s) {
    const cost::CostModel cost(stages[s].cluster, stages[s].mesh);
    const SectionTimes times = section_times(
        program.programs[s], program.weights_begin[s], program.stages[s].graph, cost, options);
    out.stage_times.push_back(stage_times(times));
    const double microbatches = microbatches_of(program, static_cast<int>(s));
    const auto group = static_cast<std::size_t>(program.device_of(static_cast<int>(s)));
    busy[group] += (times.forward + times.backward) * microbatches + times.update;
    flops[group] += times.flops * microbatches;
  }
  out.step.compute_seconds = *std::max_element(busy.begin(), busy.end());
  out.step.flops = *std::max_element(flops.begin(), flops.end());
  for (std::size_t m = 0; m < program.links.size(); ++m) {
    const Link& link = program.links[m];
    StageTimes& sender = out.stage_times[static_cast<std::size_t>(link.from)];
    const Seconds seconds = wire_seconds(program, cluster, static_cast<int>(m));
    if (link.phase == ir::Phase::kUpdate) {
      out.stage_times[static_cast<std::size_t>(link.to)].update += seconds;
    } else if (std::abs(link.to - link.from) == 1) {
      (link.phase == ir::Phase::kForward ? sender.send_forward : sender.send_backward) += seconds;
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(out.schedule, time_schedule(program.schedule, out.stage_times));
  // Of several steps without a flush: the mean.
  const auto steps = static_cast<double>(program.schedule.microbatches) /
                     static_cast<double>(program.programs.front().microbatches);
  out.step.step_seconds = out.schedule.makespan / steps;
  for (std::size_t group = 0; group + 1 < program.first_rank.size(); ++group) {
    GroupMemory memory(program, static_cast<int>(group));
    memory.run(program.schedule.tasks[group]);
    out.peak_bytes.push_back(memory.meter().peak());
    if (memory.meter().peak() > out.step.peak_bytes) {
      out.step.peak_bytes = memory.meter().peak();
      out.step.at_peak = memory.meter().at_peak();
    }
  }
  out.step.additive_seconds = out.step.step_seconds;
  out.step.exposed_communication_seconds =
      std::max(0.0, out.step.step_seconds - out.step.compute_seconds);
  return out;
}

}  // namespace shardplan::sim
