#pragma once

#include <array>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/lower/program.h"

namespace shardplan::sim {

/// One busy interval of a stream. `step` indexes the section's steps.
struct Event {
  Seconds start = 0;
  Seconds end = 0;
  bool communication = false;
  ir::OpId op{};       ///< compute
  std::string name{};  ///< op or collective
  std::string layer{};
  ir::Phase phase = ir::Phase::kForward;
  bool recompute = false;
  std::int64_t microbatch = 0;  ///< -1 in the update
};

/// Bytes at the moment of the peak, by what they are.
struct MemoryBreakdown {
  Bytes parameters = 0;
  Bytes gradients = 0;
  Bytes optimizer = 0;
  Bytes activations = 0;
  Bytes inputs = 0;     ///< inputs, buffers, constants
  Bytes temporary = 0;  ///< everything else: workspaces, changed layouts
};

/// The most bytes in some part of a step, and when.
struct Peak {
  Bytes bytes = 0;
  lower::ProgramPoint at{};
};

struct Simulation {
  Seconds step_seconds = 0;
  Seconds additive_seconds = 0;  ///< sum of all compute and communication
  Seconds compute_seconds = 0;
  Seconds communication_seconds = 0;
  Seconds exposed_communication_seconds = 0;  ///< compute stream idle, waiting
  Bytes peak_bytes = 0;                       ///< of a device; all devices are equal under SPMD
  MemoryBreakdown at_peak{};
  lower::ProgramPoint peak{};         ///< the moment of the peak
  std::array<Peak, 3> phase_peaks{};  ///< of each phase, by ir::Phase
  Flops flops = 0;                    ///< of one device in one step
  std::vector<Event> timeline{};      ///< empty unless asked for
};

struct SimOptions {
  bool timeline = false;
  /// Communication on its own stream, waiting only for data; false: one stream (Gloo on one
  /// thread).
  bool overlap = true;
};

/// Runs the Program on two streams of one representative device (all are equal under SPMD): compute
/// in program order, collectives in program order on the communication stream, each waiting for its
/// operands. Memory follows the program order: allocation at each output, workspaces while the
/// kernel runs, frees at kFree. O(steps).
[[nodiscard]] Simulation simulate(const lower::Program& program,
                                  const ir::Graph& step,
                                  const cost::CostModel& cost,
                                  const SimOptions& options = {});

/// The parts of a pipeline stage's step, each from a standstill to the end of both streams.
struct SectionTimes {
  Seconds forward = 0;          ///< of one microbatch
  Seconds backward = 0;         ///< of one microbatch
  Seconds backward_input = 0;   ///< its part before `weights_begin`
  Seconds backward_weight = 0;  ///< and the other
  Seconds update = 0;
  Seconds compute = 0;  ///< kernels of one microbatch and the update
  Flops flops = 0;      ///< likewise
};
/// `weights_begin`: see lower::PipelineProgram.
[[nodiscard]] SectionTimes section_times(const lower::Program& program,
                                         std::size_t weights_begin,
                                         const ir::Graph& step,
                                         const cost::CostModel& cost,
                                         const SimOptions& options = {});

/// Chrome trace format (opens in Perfetto and chrome://tracing).
[[nodiscard]] std::string chrome_trace(const Simulation& simulation);

/// Symbolic profile of a training step on one device.
struct LayerProfile {
  std::string layer{};
  std::int64_t parameters = 0;
  Flops forward_flops = 0;
  Flops backward_flops = 0;
  Bytes saved_activation_bytes = 0;
};
struct Profile {
  std::int64_t parameters = 0;
  Bytes parameter_bytes = 0;
  Flops forward_flops = 0;
  Flops backward_flops = 0;
  Bytes forward_bytes = 0;  ///< read and written
  Bytes backward_bytes = 0;
  Bytes saved_activation_bytes =
      0;                 ///< live between forward and backward, inputs and weights not counted
  Bytes peak_bytes = 0;  ///< true peak over forward, backward and update
  MemoryBreakdown at_peak{};
  std::vector<LayerProfile> layers{};  ///< by block, in order of first op
};
[[nodiscard]] Profile profile(const ir::Graph& step);

}  // namespace shardplan::sim
