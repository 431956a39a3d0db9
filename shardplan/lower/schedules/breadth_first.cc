// Breadth-First Pipeline Parallelism (Lamy-Poirier, MLSys 2023).
//
// Stages lie on the devices as in interleaved 1F1B, but each device takes all microbatches through
// one of its stages before it turns to its next. All passes are in flight at once, as in GPipe, and
// the bubble is divided by v as in interleaved 1F1B when there are at least p microbatches. What it
// buys: a stage's weights are needed once for all microbatches, so that they can be gathered and
// their gradients scattered once (fully sharded data parallelism), beside the passes of the others.
//
// While the first device still works on its first stage, the last one sends it what its second
// stage will need: floor(m / p) messages must have room.

#include <algorithm>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_breadth_first(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule,
                             begin_schedule("breadth_first", shape, shape.chunks));
  for (int device = 0; device < shape.devices; ++device) {
    std::vector<Task>& tasks = schedule.tasks[static_cast<std::size_t>(device)];
    for (int stage = device; stage < schedule.stages; stage += shape.devices) {
      for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
        tasks.push_back({Work::kForward, stage, m});
      }
    }
    for (int stage = schedule.stages - shape.devices + device; stage >= 0; stage -= shape.devices) {
      for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
        tasks.push_back({Work::kBackward, stage, m});
      }
    }
  }
  if (shape.chunks > 1 && shape.devices > 1) {
    schedule.channel_capacity = std::max<std::int64_t>(1, shape.microbatches / shape.devices);
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
