#include "shardplan/lower/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardplan/lower/schedules/makers.h"
#include "shardplan/support/text.h"

namespace shardplan::lower {

const std::vector<ScheduleInfo>& schedules() {
  static const std::vector<ScheduleInfo> table = {
      {"gpipe",
       "Huang et al., NeurIPS 2019",
       2019,
       "all forward passes, then all backward passes",
       make_gpipe},
      {"1f1b",
       "Narayanan et al., ICML 2021",
       2021,
       "one forward, one backward pass in turn, with a flush: stage i keeps p - i microbatches",
       make_1f1b},
  };
  return table;
}

Result<const ScheduleInfo*> find_schedule(std::string_view name) {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedules()) {
    if (info.name == name) {
      return &info;
    }
    names.emplace_back(info.name);
  }
  const std::string close = suggest(name, names);
  return Error{ErrorCode::kNotFound,
               fmt::format("unknown schedule '{}'{}",
                           name,
                           close.empty() ? "" : fmt::format("; did you mean '{}'?", close)),
               "",
               {"list them with: shardplan schedule"}};
}

std::string task_text(const Task& task) {
  return fmt::format(
      "{}({}, {})", "FBIWU"[static_cast<std::size_t>(task.work)], task.stage, task.microbatch);
}

std::vector<std::int64_t> microbatches_in_flight(const Schedule& schedule) {
  std::vector<std::int64_t> most;
  for (const std::vector<Task>& tasks : schedule.tasks) {
    std::int64_t held = 0;
    std::int64_t peak = 0;
    for (const Task& task : tasks) {
      held += task.work == Work::kForward ? 1 : 0;
      peak = std::max(peak, held);
      held -= task.work == Work::kBackward || task.work == Work::kBackwardWeight ? 1 : 0;
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace shardplan::lower
