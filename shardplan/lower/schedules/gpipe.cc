// GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism (Huang et al.,
// NeurIPS 2019).
//
// Every stage does all forward passes, then all backward passes, the last microbatch first, then
// the update. With equal stages the pipeline fills and drains once: (p − 1)(T_F + T_B) idle on each
// device, a share of (p − 1) / (m + p − 1). All m microbatches are in flight at once, so the paper
// keeps only what enters a stage and recomputes the rest, which is the lowering's choice, not the
// schedule's.

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_gpipe(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("gpipe", shape));
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::vector<Task>& tasks = schedule.tasks[static_cast<std::size_t>(stage)];
    for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
      tasks.push_back({Work::kForward, stage, m});
    }
    for (std::int64_t m = schedule.microbatches - 1; m >= 0; --m) {
      tasks.push_back({Work::kBackward, stage, m});
    }
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
