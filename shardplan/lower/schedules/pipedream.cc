// PipeDream: Generalized Pipeline Parallelism for DNN Training (Narayanan et al., SOSP 2019).
//
// Asynchronous 1F1B: each microbatch is a batch of its own, whose update follows its backward pass
// at once, and nothing ever waits for a flush, so there is no bubble but the first fill and the
// last drain. A microbatch computes with the weights that are newest when its forward pass begins;
// stage i stashes them for the backward pass, p − i versions with the newest. No vertical sync:
// stages use weights of different age for one microbatch (the paper's default).

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

Result<Schedule> make_pipedream(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("pipedream", shape));
  schedule.synchronous = false;
  schedule.update_every = 1;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::int64_t in_flight = schedule.stages - stage;
    schedule.weight_versions[static_cast<std::size_t>(stage)] = static_cast<int>(in_flight);
    append_one_forward_one_backward(schedule, stage, stage, in_flight);
  }
  insert_updates(schedule);
  for (std::vector<Task>& tasks : schedule.tasks) {
    std::vector<std::int64_t> stashed(static_cast<std::size_t>(schedule.microbatches));
    std::int64_t newest = 0;
    for (Task& task : tasks) {
      std::int64_t& version = stashed[static_cast<std::size_t>(task.microbatch)];
      if (task.work == Work::kForward) {
        version = newest;
      }
      if (task.work != Work::kUpdate) {
        task.weight_version = version;
      } else {
        ++newest;
      }
    }
  }
  return schedule;
}

}  // namespace shardplan::lower
