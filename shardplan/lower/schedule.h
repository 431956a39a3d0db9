#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/support/result.h"

namespace shardplan::lower {

/// A piece of work of a pipeline schedule: one pass of one stage over one microbatch, or the update
/// of a stage's weights.
enum class Work : std::uint8_t {
  kForward,
  kBackward,        ///< of inputs and weights together
  kBackwardInput,   ///< zero-bubble schedules: what the stage before waits for (their "B"),
  kBackwardWeight,  ///< and the rest (their "W"), of the same microbatch, later
  kUpdate,          ///< of the weights of `stage`; `microbatch` is the last one that it contains
};

struct Task {
  Work work = Work::kForward;
  int stage = 0;  ///< 0 .. Schedule::stages − 1, in the order of the forward pass
  std::int64_t microbatch = 0;
  /// Updates of this stage since the schedule began that the weights contain which a pass computes
  /// with: 0 throughout in synchronous schedules, the same for all passes of one stage over one
  /// microbatch in all. Updates: how many came before.
  std::int64_t weight_version = 0;
  bool operator==(const Task&) const = default;
};

/// Who does what, in which order, to train one batch of a pipeline (asynchronous schedules: some
/// batches). A device works off its list from front to back; a task begins when those that it needs
/// are done: F(s, m) needs F(s−1, m); B(s, m) needs F(s, m) and B(s+1, m); W(s, m) needs B(s, m).
/// Data only: durations, bytes and bubbles are of those that run it.
struct Schedule {
  std::string name{};  ///< "1f1b"
  int devices = 1;     ///< groups of devices, each of which has one list
  int stages = 1;      ///< pieces of the model; more than devices when these have several
  std::int64_t microbatches = 1;
  /// Copies of the model that share the devices (Chimera: 2f); a microbatch belongs to one of them.
  int pipelines = 1;
  /// device_of[pipeline][stage].
  std::vector<std::vector<int>> device_of{};
  std::vector<int> pipeline_of{};          ///< by microbatch
  std::vector<std::vector<Task>> tasks{};  ///< by device
  /// Weights of one stage that must be kept at once: 1, 2 (2BW), or devices − stage (PipeDream).
  std::vector<int> weight_versions{};  ///< by stage
  bool synchronous = true;  ///< every microbatch sees the weights of the last batch's update
  /// Microbatches from one update of a stage to the next: all of them in synchronous schedules.
  std::int64_t update_every = 1;
  /// Adjacent forward passes of one stage that may be computed as one over as many microbatches
  /// (Chimera's doubling: 2).
  int forward_group = 1;
  /// The fewest messages that must have room to wait between two stages, in each direction, so that
  /// senders that stop when there is none never stop for good: 1, except where the table in
  /// schedule.cc says more.
  std::int64_t channel_capacity = 1;
};

/// How many forward passes DAPPLE's stage i of S does before its first backward pass.
enum class WarmUp : std::uint8_t {
  kShort,  ///< policy A: S − i
  kLong,   ///< policy B: 2(S − i) − 1, where transfers take as long as passes
};

/// What Chimera does with more microbatches than devices.
enum class ChimeraScaling : std::uint8_t {
  kConcatenation,    ///< one unit of as many microbatches as devices after the other
  kForwardDoubling,  ///< forward passes over two microbatches at once, backward passes over one
  kBackwardHalving,  ///< forward passes over one, backward passes over its halves: the schedule has
                     ///< twice the microbatches that were asked for, of half their size
};

/// What a schedule may be asked for.
struct ScheduleShape {
  int devices = 1;
  std::int64_t microbatches = 1;  ///< of one batch; "pipedream": batches, each of one microbatch
  int chunks = 1;     ///< stages a device (interleaved, breadth-first); others: their own number
  int pipelines = 2;  ///< Chimera: 2f
  ChimeraScaling scaling = ChimeraScaling::kConcatenation;
  WarmUp warm_up = WarmUp::kShort;  ///< DAPPLE
  std::int64_t max_in_flight = 0;   ///< DAPPLE's D: microbatches that fit the memory; 0: all
  std::int64_t batches = 2;         ///< 2BW: how many follow each other without a flush
};

struct ScheduleInfo {
  std::string_view name;
  std::string_view paper;
  int year;
  std::string_view summary;
  /// Errors: a shape that the schedule does not have (microbatches that do not divide, an odd
  /// number of devices), by name.
  Result<Schedule> (*make)(const ScheduleShape& shape);
  /// What it takes of ScheduleShape beyond devices and microbatches.
  std::vector<std::string_view> options = {};
};

/// Whether it has the backward pass in two parts.
[[nodiscard]] bool has_parts(const Schedule& schedule);

/// By stage: the devices that have it, in the order of the pipelines, each once.
[[nodiscard]] std::vector<std::vector<int>> holders(const Schedule& schedule);

/// The pipeline to which a task in the list of `device` belongs: a pass to its microbatch's, an
/// update to the one whose copy of the stage is there (0 where none is).
[[nodiscard]] int pipeline_of(const Schedule& schedule, const Task& task, int device);

/// F, B, I, W or U, in the order of Work.
[[nodiscard]] char letter(Work work);
/// "F(2, 5)": stage 2, microbatch 5.
[[nodiscard]] std::string task_text(const Task& task);

/// All schedules, in the order of the table in schedule.cc.
[[nodiscard]] const std::vector<ScheduleInfo>& schedules();
/// By name, with a suggestion for an unknown one.
[[nodiscard]] Result<const ScheduleInfo*> find_schedule(std::string_view name);

/// Every pass of every stage over every microbatch exactly once on its device, after the passes
/// that it needs; an update of every stage on each of its devices after the backward passes that it
/// contains; messages taken in the order in which they were sent; no deadlock with room for
/// `channel_capacity` messages that wait between two stages (a sender of one more stops until one
/// is taken; an update of a stage that several pipelines have is met by all of its devices at
/// once); and never more weight versions than promised. The error names the device and the task.
/// O(tasks).
[[nodiscard]] Status check(const Schedule& schedule, std::int64_t channel_capacity);
/// With the schedule's own capacity.
[[nodiscard]] Status check(const Schedule& schedule);

/// Which weights later passes of a device compute with, in an asynchronous schedule.
class WeightUses {
 public:
  explicit WeightUses(const std::vector<Task>& tasks);
  /// Whether a pass of `stage` behind task number `task` computes with its weights of this version.
  [[nodiscard]] bool after(std::size_t task, int stage, std::int64_t version) const;

 private:
  std::map<std::pair<int, std::int64_t>, std::size_t> last_{};  ///< task, by stage and version
};

/// The most microbatches that each device holds between a forward pass and the end of its (last)
/// backward pass, counted in passes of one stage (of a device with several stages: all of them).
[[nodiscard]] std::vector<std::int64_t> microbatches_in_flight(const Schedule& schedule);

}  // namespace shardplan::lower
