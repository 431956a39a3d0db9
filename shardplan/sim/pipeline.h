#pragma once

#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {

/// The passes of a stage as a schedule runs them, without messages.
[[nodiscard]] StageTimes stage_times(const SectionTimes& times);

/// What a step of a pipeline takes.
struct PipelineSimulation {
  /// The step's time; the peak of the fullest device and what is there; kernels and FLOPs of the
  /// busiest device; no timeline, no points.
  Simulation step{};
  std::vector<Bytes> peak_bytes{};        ///< by group of devices: of each of its devices
  std::vector<StageTimes> stage_times{};  ///< by stage
  ScheduleTime schedule{};
};

/// Seconds of the stages' passes as simulate() has them, in the order of the schedule, with
/// messages between the groups of devices beside computation. Memory follows every group's list of
/// tasks as in the runtime: what the forward passes leave for the backward passes, and messages
/// until they are taken (runtime/messages.h). `stages`: the plan of each stage, on a part of
/// `cluster`. Errors: those of time_schedule.
[[nodiscard]] Result<PipelineSimulation> simulate_pipeline(const lower::PipelineProgram& program,
                                                           const cluster::Cluster& cluster,
                                                           const std::vector<plan::Plan>& stages,
                                                           const SimOptions& options = {});

/// Chrome trace format, as of a Simulation: a process for each group of devices, a span for each
/// task of the schedule, messages between groups in threads beside, from the end of the pass that
/// sends them.
[[nodiscard]] std::string chrome_trace(const PipelineSimulation& simulation,
                                       const lower::PipelineProgram& program);

}  // namespace shardplan::sim
