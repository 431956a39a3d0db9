// PipeDream-2BW: Memory-Efficient Pipeline-Parallel DNN Training (Narayanan et al., ICML 2021).
//
// Asynchronous 1F1B with gradients accumulated over m ≥ p microbatches. All microbatches of batch
// k, in all stages, compute with the weights after k − 1 updates: W(t + 1) = W(t) − ν ∇f(W(t − 1)),
// one step stale. So two versions suffice, whatever the depth.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_pipedream_2bw(const ScheduleShape& shape) {
  constexpr std::string_view kName = "pipedream_2bw";
  SHARDPLAN_RETURN_IF_ERROR(begin_schedule(kName, shape));
  if (shape.microbatches < shape.devices || shape.batches < 1) {
    return invalid_input(
        fmt::format("{} batches of {} microbatches on {} devices; two versions of the weights "
                    "suffice for at least one batch of as many microbatches as devices",
                    shape.batches,
                    shape.microbatches,
                    shape.devices),
        std::string(kName));
  }
  ScheduleShape all = shape;
  if (shape.batches > std::numeric_limits<std::int64_t>::max() / shape.microbatches) {
    return invalid_input("more microbatches than can be counted; take fewer batches",
                         std::string(kName));
  }
  all.microbatches = shape.microbatches * shape.batches;
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule(kName, all));
  schedule.synchronous = false;
  schedule.update_every = shape.microbatches;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    schedule.weight_versions[static_cast<std::size_t>(stage)] = 2;
    append_one_forward_one_backward(schedule, stage, stage, schedule.stages - stage);
  }
  for (std::vector<Task>& tasks : schedule.tasks) {
    for (Task& task : tasks) {
      task.weight_version = std::max<std::int64_t>(0, task.microbatch / schedule.update_every - 1);
    }
  }
  insert_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
