#pragma once

#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/support/ids.h"

namespace shardplan::sim {

/// How long the passes of one stage take, and its messages.
struct StageTimes {
  Seconds forward = 0;
  Seconds backward = 0;        ///< of inputs and weights together
  Seconds backward_input = 0;  ///< zero-bubble schedules: the two parts
  Seconds backward_weight = 0;
  Seconds update = 0;
  Seconds send_forward = 0;   ///< to the next stage, beside computation; 0 within a device
  Seconds send_backward = 0;  ///< to the stage before
};

/// When a schedule's tasks run.
struct ScheduleTime {
  struct Span {
    Seconds start = 0;
    Seconds end = 0;
  };
  std::vector<std::vector<Span>> tasks{};  ///< as Schedule::tasks
  Seconds makespan = 0;                    ///< from 0 to the end of the last task
  /// The longest time that a device has between the start of its first and the end of its last
  /// task: what a batch takes when the next one follows in the same skew.
  Seconds period = 0;
  /// The most that a device is idle between these two.
  Seconds bubble = 0;
  [[nodiscard]] double bubble_ratio() const { return period > 0 ? bubble / period : 0; }
};

/// Runs the lists with these durations, by stage, or by pipeline and stage (stage s of pipeline k
/// is number k · stages + s): each task starts when its device is free and what it needs has
/// arrived; messages do not delay those who send them, nor each other. An update of a stage that
/// several pipelines have starts when all devices that have it have done the passes before: then
/// they can sum its gradients. Errors: a schedule that never ends (see lower::check). O(tasks).
[[nodiscard]] Result<ScheduleTime> time_schedule(const lower::Schedule& schedule,
                                                 const std::vector<StageTimes>& stages);

}  // namespace shardplan::sim
