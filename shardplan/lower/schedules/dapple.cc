// DAPPLE: A Pipelined Data Parallel Approach for Training Large Models (Fan et al., PPoPP 2021).
//
// Early backward: stage i of S does K_i forward passes, then one backward and one forward pass in
// turn. K_i = min(S − i, D) (policy A) or min(2(S − i) − 1, D) (policy B, when transfers take as
// long as passes: a gradient then needs twice as long to come back). D is the number of
// microbatches whose activations fit the memory. With policy A and enough memory this is 1F1B.

#include <algorithm>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_dapple(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("dapple", shape));
  if (shape.max_in_flight < 0) {
    return invalid_input("no microbatch may be in flight; give at least 1, or 0 for no limit",
                         schedule.name);
  }
  const std::int64_t most = shape.max_in_flight == 0
                                ? shape.microbatches
                                : std::min(shape.max_in_flight, shape.microbatches);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::int64_t after = schedule.stages - stage;
    const std::int64_t warm_up =
        std::min(most, shape.warm_up == WarmUp::kLong ? 2 * after - 1 : after);
    append_one_forward_one_backward(schedule, stage, stage, warm_up);
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
