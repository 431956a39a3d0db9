// ZB-H1 and ZB-H2: Zero Bubble Pipeline Parallelism (Qi, Wan, Huang and Lin, ICLR 2024).
//
// The backward pass is cut in two: B, the gradient of the inputs, which the stage before waits for,
// and W, the gradient of the weights, which nobody waits for and which fills the gaps. Stage i of p
// does its first B after w_i forward passes, and each W d_i microbatches behind its B:
//   H1: w_i = p − i,        d_i = i    p microbatches in flight, bubble (p − 1)(T_F + T_B − T_W);
//   H2: w_i = 2(p − i) − 1, d_i = 2i   2p − 1 in flight, bubble (p − 1)(T_F + T_B − 2 T_W).
// In flight means until W is done. With H2 the devices begin and end one after the other, and the
// next batch follows in the same skew: the update must not wait for all stages, so a global norm is
// checked after the update and the update taken back when it must be. The runtime here has the norm
// first, as for every other schedule.
//
// The paper gives both as drawings; the rule above draws the same.

#include <algorithm>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

namespace {

struct Rule {
  std::int64_t warm_up = 1;  ///< forward passes before the first B
  std::int64_t delay = 0;    ///< microbatches between B and W
};

void append_zero_bubble(Schedule& schedule, int stage, const Rule& rule) {
  std::vector<Task>& tasks = schedule.tasks[static_cast<std::size_t>(stage)];
  const std::int64_t ahead = std::min(rule.warm_up, schedule.microbatches);
  for (std::int64_t m = 0; m < ahead; ++m) {
    tasks.push_back({Work::kForward, stage, m});
  }
  for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
    tasks.push_back({Work::kBackwardInput, stage, m});
    if (m >= rule.delay) {
      tasks.push_back({Work::kBackwardWeight, stage, m - rule.delay});
    }
    if (m + ahead < schedule.microbatches) {
      tasks.push_back({Work::kForward, stage, m + ahead});
    }
  }
  for (std::int64_t m = std::max<std::int64_t>(0, schedule.microbatches - rule.delay);
       m < schedule.microbatches;
       ++m) {
    tasks.push_back({Work::kBackwardWeight, stage, m});
  }
}

}  // namespace

Result<Schedule> make_zb_h1(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("zb_h1", shape));
  for (int stage = 0; stage < schedule.stages; ++stage) {
    append_zero_bubble(schedule, stage, {schedule.stages - stage, stage});
  }
  append_updates(schedule);
  return schedule;
}

Result<Schedule> make_zb_h2(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("zb_h2", shape));
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::int64_t after = schedule.stages - stage;
    append_zero_bubble(schedule, stage, {2 * after - 1, std::int64_t{2} * stage});
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
