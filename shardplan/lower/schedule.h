#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/result.h"

namespace shardplan::lower {

/// A piece of work of a pipeline schedule: one pass of one stage over one microbatch, or the update
/// of a stage's weights.
enum class Work : std::uint8_t {
  kForward,
  kBackward,        ///< of inputs and weights together
  kBackwardInput,   ///< zero-bubble schedules: what the stage before waits for ("B"),
  kBackwardWeight,  ///< and the rest ("W"), of the same microbatch, later
  kUpdate,          ///< of the weights of `stage`; `microbatch` is the last one that it contains
};

struct Task {
  Work work = Work::kForward;
  int stage = 0;  ///< 0 .. Schedule::stages − 1, in the order of the forward pass
  std::int64_t microbatch = 0;
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
};

/// What a schedule may be asked for.
struct ScheduleShape {
  int devices = 1;
  std::int64_t microbatches = 1;
  int chunks = 1;     ///< stages a device (interleaved, breadth-first); others: their own number
  int pipelines = 2;  ///< Chimera: 2f
};

struct ScheduleInfo {
  std::string_view name;
  std::string_view paper;
  int year;
  std::string_view summary;
  /// Errors: a shape that the schedule does not have (microbatches that do not divide, an odd
  /// number of devices), by name.
  Result<Schedule> (*make)(const ScheduleShape& shape);
};

/// All schedules, in the order of the table in schedule.cc.
[[nodiscard]] const std::vector<ScheduleInfo>& schedules();
/// By name, with a suggestion for an unknown one.
[[nodiscard]] Result<const ScheduleInfo*> find_schedule(std::string_view name);

/// Every pass of every stage over every microbatch exactly once on its device, an update of every
/// stage after its last backward pass, no deadlock with `channel_capacity` messages that wait
/// between two stages (a sender of one more stops until one is taken), and never more weight
/// versions than promised. The error names the device and the task. O(tasks).
[[nodiscard]] Status check(const Schedule& schedule, int channel_capacity = 1);

/// The most microbatches that each device holds between a forward pass and the end of its (last)
/// backward pass, counted in passes of one stage (of a device with several stages: all of them).
[[nodiscard]] std::vector<std::int64_t> microbatches_in_flight(const Schedule& schedule);

}  // namespace shardplan::lower
