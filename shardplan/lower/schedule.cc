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
      {"pipedream",
       "Narayanan et al., SOSP 2019",
       2019,
       "asynchronous 1F1B: an update after each microbatch, p - i stashed versions of the weights",
       make_pipedream},
      {"interleaved_1f1b",
       "Narayanan et al., SC 2021",
       2021,
       "1F1B with several stages a device: a bubble divided by their number",
       make_interleaved_1f1b,
       {"chunks"}},
      {"pipedream_2bw",
       "Narayanan et al., ICML 2021",
       2021,
       "asynchronous 1F1B with two versions of the weights, one step stale",
       make_pipedream_2bw,
       {"batches"}},
      {"dapple",
       "Fan et al., PPoPP 2021",
       2021,
       "early backward: 1F1B with a warm-up that memory and slow transfers set",
       make_dapple,
       {"warm-up", "max-in-flight"}},
      {"chimera",
       "Li and Hoefler, SC 2021",
       2021,
       "pipelines in both directions over the same devices, half the bubble or less",
       make_chimera,
       {"pipelines", "scaling"}},
      {"zb_h1",
       "Qi et al., ICLR 2024",
       2024,
       "weight gradients fill gaps, in the memory of 1F1B: a third of its bubble",
       make_zb_h1},
      {"zb_h2",
       "Qi et al., ICLR 2024",
       2024,
       "weight gradients fill all gaps, with 2p - 1 microbatches in flight",
       make_zb_h2},
      {"zb_v",
       "Qi et al., ICLR 2024",
       2024,
       "no bubble in the memory of 1F1B: two stages a device, in a V",
       make_zb_v},
      {"breadth_first",
       "Lamy-Poirier, MLSys 2023",
       2023,
       "all microbatches through one stage of a device before its next",
       make_breadth_first,
       {"chunks"}},
  };
  return table;
}

bool has_parts(const Schedule& schedule) {
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), [](const auto& tasks) {
    return std::any_of(tasks.begin(), tasks.end(), [](const Task& task) {
      return task.work == Work::kBackwardWeight;
    });
  });
}

WeightUses::WeightUses(const std::vector<Task>& tasks) {
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].work != Work::kUpdate) {
      last_[{tasks[t].stage, tasks[t].weight_version}] = t;
    }
  }
}

bool WeightUses::after(std::size_t task, int stage, std::int64_t version) const {
  const auto last = last_.find({stage, version});
  return last != last_.end() && last->second > task;
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

std::vector<std::vector<int>> holders(const Schedule& schedule) {
  std::vector<std::vector<int>> by_stage(static_cast<std::size_t>(schedule.stages));
  for (const std::vector<int>& device_of : schedule.device_of) {
    for (std::size_t stage = 0; stage < by_stage.size(); ++stage) {
      std::vector<int>& devices = by_stage[stage];
      if (std::find(devices.begin(), devices.end(), device_of[stage]) == devices.end()) {
        devices.push_back(device_of[stage]);
      }
    }
  }
  return by_stage;
}

int pipeline_of(const Schedule& schedule, const Task& task, int device) {
  if (task.work != Work::kUpdate) {
    return schedule.pipeline_of[static_cast<std::size_t>(task.microbatch)];
  }
  const auto here = std::find_if(
      schedule.device_of.begin(), schedule.device_of.end(), [&](const auto& device_of) {
        return device_of[static_cast<std::size_t>(task.stage)] == device;
      });
  return here == schedule.device_of.end() ? 0 : static_cast<int>(here - schedule.device_of.begin());
}

char letter(Work work) {
  return "FBIWU"[static_cast<std::size_t>(work)];
}

std::string task_text(const Task& task) {
  return fmt::format("{}({}, {})", letter(task.work), task.stage, task.microbatch);
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
