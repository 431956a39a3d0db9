#include "shardplan/sim/schedule_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace shardplan::sim {

namespace {

using lower::Schedule;
using lower::Task;
using lower::Work;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

Seconds duration(const Task& task, const StageTimes& times) {
  switch (task.work) {
    case Work::kForward:
      return times.forward;
    case Work::kBackward:
      return times.backward;
    case Work::kBackwardInput:
      return times.backward_input;
    case Work::kBackwardWeight:
      return times.backward_weight;
    case Work::kUpdate:
      return times.update;
  }
  return 0;
}

/// Lets each device go on until it needs what is not there; whoever brings it looks again.
class Run {
 public:
  Run(const Schedule& schedule, const std::vector<StageTimes>& stages)
      : schedule_(schedule),
        stages_(stages),
        devices_(at(schedule.devices)),
        forward_end_(at(schedule.stages * schedule.microbatches), kNever),
        backward_end_(forward_end_.size(), kNever),
        holders_(lower::holders(schedule)),
        meetings_(at(schedule.stages)) {
    const bool by_pipeline = stages.size() > at(schedule.stages);
    for (int pipeline = 0; pipeline < schedule.pipelines; ++pipeline) {
      first_.push_back(by_pipeline ? pipeline * schedule.stages : 0);
    }
    time_.tasks.resize(at(schedule.devices));
  }

  Result<ScheduleTime> run() {
    for (int device = 0; device < schedule_.devices; ++device) {
      ready_.push_back(device);
      time_.tasks[at(device)].reserve(schedule_.tasks[at(device)].size());
    }
    while (!ready_.empty()) {
      const int device = ready_.front();
      ready_.pop_front();
      go_on(device);
    }
    for (int device = 0; device < schedule_.devices; ++device) {
      const std::vector<Task>& tasks = schedule_.tasks[at(device)];
      const std::vector<ScheduleTime::Span>& spans = time_.tasks[at(device)];
      if (spans.size() < tasks.size()) {
        return invalid_input(fmt::format("{} waits forever", lower::task_text(tasks[spans.size()])),
                             fmt::format("schedule {}, device {}", schedule_.name, device));
      }
      if (spans.empty()) {
        continue;
      }
      const Seconds span = spans.back().end - spans.front().start;
      time_.makespan = std::max(time_.makespan, spans.back().end);
      time_.period = std::max(time_.period, span);
      time_.bubble = std::max(time_.bubble, span - devices_[at(device)].busy);
    }
    return std::move(time_);
  }

 private:
  static constexpr Seconds kNever = -1;

  struct Device {
    Seconds free = 0;
    Seconds busy = 0;
    std::size_t arrived = 0;  // at the updates before this task
  };

  /// The devices that update a stage together.
  struct Meeting {
    std::size_t arrived = 0;      // of all updates
    std::vector<Seconds> last{};  // by update: when the last device came that has come
  };

  /// The durations of a task's stage.
  [[nodiscard]] const StageTimes& times(int device, const Task& task) const {
    const int pipeline = lower::pipeline_of(schedule_, task, device);
    return stages_[at(first_[at(pipeline)] + task.stage)];
  }

  [[nodiscard]] std::size_t pass(int stage, std::int64_t microbatch) const {
    return at(stage * schedule_.microbatches + microbatch);
  }

  [[nodiscard]] int device_of(int stage, std::int64_t microbatch) const {
    return schedule_.device_of[at(schedule_.pipeline_of[at(microbatch)])][at(stage)];
  }

  void go_on(int device) {
    Device& state = devices_[at(device)];
    const std::vector<Task>& tasks = schedule_.tasks[at(device)];
    std::vector<ScheduleTime::Span>& spans = time_.tasks[at(device)];
    while (spans.size() < tasks.size()) {
      const Task& task = tasks[spans.size()];
      const Seconds arrival = task.work == Work::kUpdate ? meet(device, task) : arrived(task);
      if (arrival == kNever) {
        return;
      }
      const Seconds start = std::max(state.free, arrival);
      const Seconds lasts = duration(task, times(device, task));
      state.free = start + lasts;
      state.busy += lasts;
      spans.push_back({start, state.free});
      finish(task, state.free);
    }
  }

  /// When all that a pass needs is on its device.
  [[nodiscard]] Seconds arrived(const Task& task) const {
    const std::size_t own = pass(task.stage, task.microbatch);
    switch (task.work) {
      case Work::kForward:
        return task.stage == 0 ? 0 : from(task, -1);
      case Work::kBackward:
      case Work::kBackwardInput:
        if (forward_end_[own] == kNever) {
          return kNever;
        }
        return task.stage == schedule_.stages - 1 ? 0 : from(task, 1);
      case Work::kBackwardWeight:
        return backward_end_[own];
      case Work::kUpdate:
        break;
    }
    return 0;
  }

  [[nodiscard]] Seconds from(const Task& task, int offset) const {
    const int other = task.stage + offset;
    const Seconds end = (offset < 0 ? forward_end_ : backward_end_)[pass(other, task.microbatch)];
    const bool near = device_of(other, task.microbatch) == device_of(task.stage, task.microbatch);
    if (end == kNever || near) {
      return end;
    }
    const int first = first_[at(schedule_.pipeline_of[at(task.microbatch)])];
    const StageTimes& sender = stages_[at(first + other)];
    return end + (offset < 0 ? sender.send_forward : sender.send_backward);
  }

  /// When the last device that has this stage is done with the passes before; kNever before.
  Seconds meet(int device, const Task& task) {
    const std::vector<int>& holders = holders_[at(task.stage)];
    if (holders.size() == 1) {
      return 0;
    }
    arrive(device);
    const Meeting& meeting = meetings_[at(task.stage)];
    const auto update = at(task.weight_version);
    return meeting.arrived < (update + 1) * holders.size() ? kNever : meeting.last[update];
  }

  /// At all updates that follow each other.
  void arrive(int device) {
    Device& state = devices_[at(device)];
    const std::vector<Task>& tasks = schedule_.tasks[at(device)];
    state.arrived = std::max(state.arrived, time_.tasks[at(device)].size());
    for (; state.arrived < tasks.size() && tasks[state.arrived].work == Work::kUpdate;
         ++state.arrived) {
      const int stage = tasks[state.arrived].stage;
      const std::vector<int>& holders = holders_[at(stage)];
      Meeting& meeting = meetings_[at(stage)];
      const std::size_t update = meeting.arrived / holders.size();
      meeting.last.resize(std::max(meeting.last.size(), update + 1), 0);
      meeting.last[update] = std::max(meeting.last[update], state.free);
      ++meeting.arrived;
      if (meeting.arrived % holders.size() == 0) {
        ready_.insert(ready_.end(), holders.begin(), holders.end());
      }
    }
  }

  void finish(const Task& task, Seconds end) {
    const std::size_t own = pass(task.stage, task.microbatch);
    if (task.work == Work::kForward) {
      forward_end_[own] = end;
      if (task.stage + 1 < schedule_.stages) {
        ready_.push_back(device_of(task.stage + 1, task.microbatch));
      }
    } else if (task.work == Work::kBackward || task.work == Work::kBackwardInput) {
      backward_end_[own] = end;
      if (task.stage > 0) {
        ready_.push_back(device_of(task.stage - 1, task.microbatch));
      }
    }
  }

  const Schedule& schedule_;
  const std::vector<StageTimes>& stages_;
  std::vector<int> first_{};  // by pipeline: its stages among the durations
  ScheduleTime time_{};
  std::vector<Device> devices_;
  std::vector<Seconds> forward_end_;  // by stage and microbatch
  std::vector<Seconds> backward_end_;
  std::vector<std::vector<int>> holders_;  // by stage
  std::vector<Meeting> meetings_;          // likewise
  std::deque<int> ready_{};
};

}  // namespace

Result<ScheduleTime> time_schedule(const Schedule& schedule,
                                   const std::vector<StageTimes>& stages) {
  if (stages.size() != at(schedule.stages) &&
      stages.size() != at(std::int64_t{schedule.pipelines} * schedule.stages)) {
    return invalid_input(
        fmt::format("times of {} stages for {} stages", stages.size(), schedule.stages),
        fmt::format("schedule {}", schedule.name));
  }
  return Run(schedule, stages).run();
}

}  // namespace shardplan::sim
