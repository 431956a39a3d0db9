#include "shardplan/lower/schedules/building.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardplan::lower {

namespace {

/// Lists beyond this would be a slip in the number of microbatches, not a schedule.
constexpr std::int64_t kMostTasks = std::int64_t{1} << 27;

}  // namespace

Result<Schedule> begin_schedule(std::string_view name, const ScheduleShape& shape, int chunks) {
  if (shape.devices < 1 || shape.microbatches < 1 || chunks < 1) {
    return invalid_input(
        fmt::format("{} devices, {} microbatches and {} stages a device; each must be at least 1",
                    shape.devices,
                    shape.microbatches,
                    chunks),
        std::string(name));
  }
  const std::int64_t stages = std::int64_t{shape.devices} * chunks;
  if (stages > kMostTasks / 3 || shape.microbatches > kMostTasks / 3 / stages) {
    return invalid_input(fmt::format("{} stages and {} microbatches make more than {} passes; take "
                                     "fewer microbatches",
                                     stages,
                                     shape.microbatches,
                                     kMostTasks),
                         std::string(name));
  }
  Schedule schedule;
  schedule.name = name;
  schedule.devices = shape.devices;
  schedule.stages = static_cast<int>(stages);
  schedule.microbatches = shape.microbatches;
  schedule.update_every = shape.microbatches;
  schedule.device_of.resize(1);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    schedule.device_of[0].push_back(stage % shape.devices);
  }
  schedule.pipeline_of.assign(static_cast<std::size_t>(shape.microbatches), 0);
  schedule.tasks.resize(static_cast<std::size_t>(shape.devices));
  schedule.weight_versions.assign(static_cast<std::size_t>(stages), 1);
  return schedule;
}

void append_one_forward_one_backward(Schedule& schedule,
                                     int device,
                                     int stage,
                                     std::int64_t warm_up) {
  std::vector<Task>& tasks = schedule.tasks[static_cast<std::size_t>(device)];
  const std::int64_t ahead = std::min(warm_up, schedule.microbatches);
  for (std::int64_t m = 0; m < ahead; ++m) {
    tasks.push_back({Work::kForward, stage, m});
  }
  for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
    tasks.push_back({Work::kBackward, stage, m});
    if (m + ahead < schedule.microbatches) {
      tasks.push_back({Work::kForward, stage, m + ahead});
    }
  }
}

void append_updates(Schedule& schedule) {
  std::vector<std::vector<int>> stages_of(schedule.tasks.size());
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const std::vector<int>& device_of : schedule.device_of) {
      stages_of[static_cast<std::size_t>(device_of[static_cast<std::size_t>(stage)])].push_back(
          stage);
    }
  }
  for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
    for (const int stage : stages_of[device]) {
      schedule.tasks[device].push_back({Work::kUpdate, stage, schedule.microbatches - 1});
    }
  }
}

void insert_updates(Schedule& schedule) {
  for (std::vector<Task>& tasks : schedule.tasks) {
    std::vector<Task> with;
    std::int64_t updates = 0;
    for (const Task& task : tasks) {
      with.push_back(task);
      const bool ends_batch = (task.microbatch + 1) % schedule.update_every == 0 ||
                              task.microbatch + 1 == schedule.microbatches;
      if (task.work == Work::kBackward && ends_batch) {
        with.push_back({Work::kUpdate, task.stage, task.microbatch, updates});
        ++updates;
      }
    }
    tasks = std::move(with);
  }
}

}  // namespace shardplan::lower
