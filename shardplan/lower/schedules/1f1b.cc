// 1F1B with a flush: PipeDream-Flush of Memory-Efficient Pipeline-Parallel DNN Training (Narayanan
// et al., ICML 2021), the default schedule of Megatron-LM.
//
// Stage i of p does p − i forward passes, then one backward and one forward pass in turn, so that
// it never holds more than min(p − i, m) microbatches. The same bubble as GPipe.

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_1f1b(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("1f1b", shape));
  for (int stage = 0; stage < schedule.stages; ++stage) {
    append_one_forward_one_backward(schedule, stage, stage, schedule.stages - stage);
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
