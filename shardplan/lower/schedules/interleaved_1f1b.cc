// Interleaved 1F1B: Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM
// (Narayanan et al., SC 2021).
//
// Device i of p holds the stages i, i + p, i + 2p, ... (v of them), each a p·v-th of the model. It
// takes p microbatches through its first stage, the same ones through its second, and so on, then
// the next p; backward passes likewise from its last stage. After 2(p − i − 1) + (v − 1)p + 1
// forward passes it alternates. The bubble is (p − 1)(T_F + T_B) / v with T of all its stages, for
// v times as many messages; device 0 holds pv + p − 1 passes, each of a v-th of its layers.

#include <fmt/format.h>

#include <algorithm>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_interleaved_1f1b(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule,
                             begin_schedule("interleaved_1f1b", shape, shape.chunks));
  const std::int64_t p = shape.devices;
  const std::int64_t v = shape.chunks;
  if (shape.microbatches % p != 0) {
    return invalid_input(fmt::format("{} microbatches on {} devices; it takes them in groups of "
                                     "as many as devices, so give a multiple of {}",
                                     shape.microbatches,
                                     p,
                                     p),
                         schedule.name);
  }
  const std::int64_t passes = shape.microbatches * v;
  for (std::int64_t device = 0; device < p; ++device) {
    const auto pass = [&](Work work, std::int64_t index) {
      const std::int64_t in_group = index % (p * v);
      const std::int64_t chunk = work == Work::kForward ? in_group / p : v - 1 - in_group / p;
      return Task{work, static_cast<int>(chunk * p + device), index / (p * v) * p + in_group % p};
    };
    const std::int64_t warm_up =
        std::min(passes, v == 1 ? p - device : 2 * (p - device - 1) + (v - 1) * p + 1);
    std::vector<Task>& tasks = schedule.tasks[static_cast<std::size_t>(device)];
    for (std::int64_t i = 0; i < warm_up; ++i) {
      tasks.push_back(pass(Work::kForward, i));
    }
    for (std::int64_t i = 0; i < passes; ++i) {
      tasks.push_back(pass(Work::kBackward, i));
      if (i + warm_up < passes) {
        tasks.push_back(pass(Work::kForward, i + warm_up));
      }
    }
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
