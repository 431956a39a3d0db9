// check() of schedule.h, in three steps: the fields fit together; each list by itself (passes once,
// in order, updates, weight versions); all lists together, each device going on until it must wait.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>

#include "shardplan/lower/schedule.h"

namespace shardplan::lower {

namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

Error broken(const Schedule& schedule, const std::string& message) {
  return invalid_input(message, fmt::format("schedule {}", schedule.name));
}

Error broken(const Schedule& schedule, int device, const Task& task, const std::string& message) {
  return invalid_input(fmt::format("{} {}", task_text(task), message),
                       fmt::format("schedule {}, device {}", schedule.name, device));
}

Status check_fields(const Schedule& schedule) {
  if (schedule.devices < 1 || schedule.stages < 1 || schedule.microbatches < 1 ||
      schedule.pipelines < 1 || schedule.update_every < 1) {
    return broken(schedule, "has a count below 1");
  }
  if (schedule.device_of.size() != at(schedule.pipelines) ||
      schedule.pipeline_of.size() != at(schedule.microbatches) ||
      schedule.tasks.size() != at(schedule.devices) ||
      schedule.weight_versions.size() != at(schedule.stages)) {
    return broken(schedule, "has a list of the wrong length");
  }
  for (const std::vector<int>& devices : schedule.device_of) {
    if (devices.size() != at(schedule.stages)) {
      return broken(schedule, "places more or fewer stages than it has");
    }
    for (const int device : devices) {
      if (device < 0 || device >= schedule.devices) {
        return broken(schedule, fmt::format("places a stage on device {}", device));
      }
    }
  }
  for (const int pipeline : schedule.pipeline_of) {
    if (pipeline < 0 || pipeline >= schedule.pipelines) {
      return broken(schedule, fmt::format("gives a microbatch to pipeline {}", pipeline));
    }
  }
  if (schedule.synchronous && schedule.update_every != schedule.microbatches) {
    return broken(schedule, "is synchronous, with more than one update");
  }
  return {};
}

/// Looks at each list by itself.
class Lists {
 public:
  explicit Lists(const Schedule& schedule)
      : schedule_(schedule),
        done_(at(schedule.stages * schedule.microbatches), 0),
        version_(done_.size(), 0) {
    contained_.resize(at(schedule.pipelines));
    for (int pipeline = 0; pipeline < schedule.pipelines; ++pipeline) {
      std::int64_t count = 0;
      for (const int other : schedule.pipeline_of) {
        count += other == pipeline ? 1 : 0;
        contained_[at(pipeline)].push_back(count);
      }
    }
  }

  Status check() {
    for (int device = 0; device < schedule_.devices; ++device) {
      weights_.assign(at(schedule_.stages), {});
      std::int64_t position = 0;
      for (const Task& task : schedule_.tasks[at(device)]) {
        SHARDPLAN_RETURN_IF_ERROR(see(device, task, position));
        ++position;
      }
      SHARDPLAN_RETURN_IF_ERROR(end(device));
    }
    for (std::size_t pass = 0; pass < done_.size(); ++pass) {
      if (done_[pass] != (kForwardDone | kBackwardDone)) {
        const auto stage =
            static_cast<int>(static_cast<std::int64_t>(pass) / schedule_.microbatches);
        const std::int64_t microbatch = static_cast<std::int64_t>(pass) % schedule_.microbatches;
        const Work missing = (done_[pass] & kForwardDone) == 0 ? Work::kForward : Work::kBackward;
        return broken(schedule_, fmt::format("lacks {}", task_text({missing, stage, microbatch})));
      }
    }
    return {};
  }

 private:
  static constexpr std::uint8_t kForwardDone = 1;
  static constexpr std::uint8_t kInputDone = 2;  // of its backward pass
  static constexpr std::uint8_t kBackwardDone = 4;

  /// What one device has done with the weights of one stage.
  struct Weights {
    std::int64_t backward_passes = 0;
    std::int64_t last_backward = -1;      // the highest microbatch
    std::vector<std::int64_t> updates{};  // positions in the list
    std::int64_t last_contained = -1;
    std::vector<std::int64_t> last_uses{0};  // of each version, positions in the list
  };

  Status see(int device, const Task& task, std::int64_t position) {
    if (task.stage < 0 || task.stage >= schedule_.stages || task.microbatch < 0 ||
        task.microbatch >= schedule_.microbatches) {
      return broken(schedule_, device, task, "is of no stage or no microbatch that there is");
    }
    Weights& weights = weights_[at(task.stage)];
    if (task.work == Work::kUpdate) {
      return see_update(device, task, position, weights);
    }
    const int pipeline = schedule_.pipeline_of[at(task.microbatch)];
    const int owner = schedule_.device_of[at(pipeline)][at(task.stage)];
    if (owner != device) {
      return broken(schedule_, device, task, fmt::format("belongs on device {}", owner));
    }
    const std::size_t pass = at(task.stage * schedule_.microbatches + task.microbatch);
    SHARDPLAN_RETURN_IF_ERROR(see_order(device, task, done_[pass]));
    if (task.work == Work::kForward) {
      version_[pass] = task.weight_version;
      if (task.weight_version < 0 || task.weight_version > at_version(weights)) {
        return broken(schedule_,
                      device,
                      task,
                      fmt::format("needs weights after {} updates; {} came before",
                                  task.weight_version,
                                  weights.updates.size()));
      }
    } else if (task.weight_version != version_[pass]) {
      return broken(schedule_, device, task, "has other weights than the forward pass had");
    }
    if (task.work == Work::kBackward || task.work == Work::kBackwardWeight) {
      ++weights.backward_passes;
      weights.last_backward = std::max(weights.last_backward, task.microbatch);
    }
    weights.last_uses[at(task.weight_version)] = position;
    return {};
  }

  static std::int64_t at_version(const Weights& weights) {
    return static_cast<std::int64_t>(weights.updates.size());
  }

  Status see_order(int device, const Task& task, std::uint8_t& done) const {
    switch (task.work) {
      case Work::kForward:
        if (done != 0) {
          return broken(schedule_, device, task, "comes twice, or after its backward pass");
        }
        done = kForwardDone;
        return {};
      case Work::kBackward:
      case Work::kBackwardInput:
        if (done != kForwardDone) {
          return broken(schedule_, device, task, "comes twice, or before its forward pass");
        }
        done |= task.work == Work::kBackward ? kBackwardDone : kInputDone;
        return {};
      case Work::kBackwardWeight:
        if (done != (kForwardDone | kInputDone)) {
          return broken(schedule_, device, task, "comes twice, or before the inputs' gradient");
        }
        done = kForwardDone | kBackwardDone;
        return {};
      case Work::kUpdate:
        break;
    }
    return {};
  }

  [[nodiscard]] bool holds(int device, int pipeline, int stage) const {
    return schedule_.device_of[at(pipeline)][at(stage)] == device;
  }

  Status see_update(int device, const Task& task, std::int64_t position, Weights& weights) const {
    std::int64_t contained = 0;
    bool held = false;
    for (int pipeline = 0; pipeline < schedule_.pipelines; ++pipeline) {
      if (holds(device, pipeline, task.stage)) {
        held = true;
        contained += contained_[at(pipeline)][at(task.microbatch)];
      }
    }
    if (!held) {
      return broken(schedule_, device, task, "is of a stage that the device does not have");
    }
    if (weights.backward_passes != contained || weights.last_backward > task.microbatch) {
      return broken(schedule_,
                    device,
                    task,
                    fmt::format("contains {} backward passes; {} came before, the last of "
                                "microbatch {}",
                                contained,
                                weights.backward_passes,
                                weights.last_backward));
    }
    const std::int64_t due =
        std::min(weights.last_contained + schedule_.update_every, schedule_.microbatches - 1);
    if (task.microbatch != due || task.weight_version != at_version(weights)) {
      return broken(
          schedule_,
          device,
          task,
          fmt::format(
              "comes where update {} after microbatch {} is due", weights.updates.size(), due));
    }
    weights.last_contained = task.microbatch;
    weights.updates.push_back(position);
    weights.last_uses.push_back(position);
    return {};
  }

  [[nodiscard]] Status end(int device) const {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      bool held = false;
      for (int pipeline = 0; pipeline < schedule_.pipelines; ++pipeline) {
        held = held || holds(device, pipeline, stage);
      }
      const Weights& weights = weights_[at(stage)];
      if (held && weights.last_contained != schedule_.microbatches - 1) {
        return broken(schedule_,
                      fmt::format("lacks the last update of stage {} on device {}", stage, device));
      }
      const std::int64_t kept = versions_kept(weights);
      if (kept > schedule_.weight_versions[at(stage)]) {
        return broken(schedule_,
                      fmt::format("promises {} versions of the weights of stage {}; device {} must "
                                  "keep {}",
                                  schedule_.weight_versions[at(stage)],
                                  stage,
                                  device,
                                  kept));
      }
    }
    return {};
  }

  /// The most versions at once: the newest, and those that a later pass uses. An update replaces
  /// the version that no later pass uses.
  static std::int64_t versions_kept(const Weights& weights) {
    std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> last_uses;
    std::int64_t most = 1;
    for (std::size_t version = 0; version < weights.updates.size(); ++version) {
      const std::int64_t replaced = weights.updates[version];
      last_uses.push(weights.last_uses[version]);
      while (!last_uses.empty() && last_uses.top() <= replaced) {
        last_uses.pop();
      }
      most = std::max(most, static_cast<std::int64_t>(last_uses.size()) + 1);
    }
    return most;
  }

  const Schedule& schedule_;
  std::vector<std::uint8_t> done_;                      // by stage and microbatch
  std::vector<std::int64_t> version_;                   // of the forward pass, likewise
  std::vector<std::vector<std::int64_t>> contained_{};  // by pipeline: microbatches up to this one
  std::vector<Weights> weights_{};                      // by stage, of the device looked at
};

/// Works off all lists at once, without time: each device goes on until it must wait, and is looked
/// at again when what it waited for happens.
class Devices {
 public:
  Devices(const Schedule& schedule, std::int64_t capacity)
      : schedule_(schedule),
        capacity_(capacity),
        channels_(at(2 * std::int64_t{schedule.pipelines} * schedule.stages)),
        devices_(at(schedule.devices)),
        done_(at(schedule.stages * schedule.microbatches), 0),
        met_(at(schedule.stages), 0),
        holders_(holders(schedule)) {}

  Status run() {
    for (int device = 0; device < schedule_.devices; ++device) {
      ready_.push_back(device);
    }
    while (!ready_.empty()) {
      const int device = ready_.front();
      ready_.pop_front();
      SHARDPLAN_RETURN_IF_ERROR(go_on(device));
    }
    for (int device = 0; device < schedule_.devices; ++device) {
      const Device& stuck = devices_[at(device)];
      const std::vector<Task>& tasks = schedule_.tasks[at(device)];
      if (stuck.sending != kNone) {
        return broken(
            schedule_,
            device,
            tasks[stuck.next - 1],
            fmt::format(
                "is done, but can never send its result: its channel, with room for {}, stays full",
                capacity_));
      }
      if (stuck.next < tasks.size()) {
        return broken(schedule_, device, tasks[stuck.next], "waits forever for what it needs");
      }
    }
    return {};
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static constexpr std::uint8_t kForwardDone = 1;
  static constexpr std::uint8_t kBackwardDone = 2;  // as far as the stage before needs it

  struct Device {
    std::size_t next = 0;         // in its list
    std::size_t sending = kNone;  // the channel that has no room for its last result
    bool arrived = false;         // at an update that others must reach too
    std::int64_t updates = 0;
  };

  [[nodiscard]] std::size_t channel(int pipeline, int stage, bool forward) const {
    return at((std::int64_t{pipeline} * schedule_.stages + stage) * 2 + (forward ? 0 : 1));
  }

  [[nodiscard]] int pipeline_of(const Task& task) const {
    return schedule_.pipeline_of[at(task.microbatch)];
  }

  [[nodiscard]] bool is_done(int stage, std::int64_t microbatch, std::uint8_t what) const {
    return (done_[at(stage * schedule_.microbatches + microbatch)] & what) != 0;
  }

  Status go_on(int device) {
    Device& state = devices_[at(device)];
    const std::vector<Task>& tasks = schedule_.tasks[at(device)];
    while (true) {
      if (state.sending != kNone && !send(state, tasks[state.next - 1])) {
        return {};
      }
      if (state.next == tasks.size()) {
        return {};
      }
      const Task& task = tasks[state.next];
      SHARDPLAN_ASSIGN_OR_RETURN(const bool began, begin(device, task));
      if (!began) {
        return {};
      }
      ++state.next;
      finish(state, task);
    }
  }

  /// Whether the last result found room. Wakes the receiver.
  bool send(Device& state, const Task& task) {
    std::deque<std::int64_t>& waiting = channels_[state.sending];
    if (static_cast<std::int64_t>(waiting.size()) >= capacity_) {
      return false;
    }
    waiting.push_back(task.microbatch);
    state.sending = kNone;
    ready_.push_back(device_of(task, task.work == Work::kForward ? 1 : -1));
    return true;
  }

  [[nodiscard]] int device_of(const Task& task, int offset) const {
    return schedule_.device_of[at(pipeline_of(task))][at(task.stage + offset)];
  }

  /// Takes what `task` needs, or says that it is not there.
  Result<bool> begin(int device, const Task& task) {
    switch (task.work) {
      case Work::kForward:
        return task.stage == 0 ? Result<bool>(true) : take(device, task, -1);
      case Work::kBackward:
      case Work::kBackwardInput:
        if (!is_done(task.stage, task.microbatch, kForwardDone)) {
          return false;
        }
        return task.stage == schedule_.stages - 1 ? Result<bool>(true) : take(device, task, 1);
      case Work::kBackwardWeight:
        return is_done(task.stage, task.microbatch, kBackwardDone);
      case Work::kUpdate:
        return meet(device, task);
    }
    return false;
  }

  /// The result of the stage before or after, from its channel or from this device's own memory.
  Result<bool> take(int device, const Task& task, int offset) {
    const bool forward = offset < 0;
    const int source = device_of(task, offset);
    if (source == device) {
      return is_done(task.stage + offset, task.microbatch, forward ? kForwardDone : kBackwardDone);
    }
    std::deque<std::int64_t>& waiting =
        channels_[channel(pipeline_of(task), task.stage + offset, forward)];
    if (waiting.empty()) {
      return false;
    }
    if (waiting.front() != task.microbatch) {
      return broken(
          schedule_,
          device,
          task,
          fmt::format("finds microbatch {} at the front of its channel", waiting.front()));
    }
    waiting.pop_front();
    ready_.push_back(source);
    return true;
  }

  /// Whether all devices that have this stage have reached its update.
  bool meet(int device, const Task& task) {
    Device& state = devices_[at(device)];
    const std::vector<int>& holders = holders_[at(task.stage)];
    if (holders.size() == 1) {
      return true;
    }
    std::int64_t& met = met_[at(task.stage)];
    if (!state.arrived) {
      state.arrived = true;
      ++met;
      if (met % static_cast<std::int64_t>(holders.size()) == 0) {
        ready_.insert(ready_.end(), holders.begin(), holders.end());
      }
    }
    const std::int64_t update = task.weight_version + 1;
    return met >= update * static_cast<std::int64_t>(holders.size());
  }

  void finish(Device& state, const Task& task) {
    state.arrived = false;
    if (task.work == Work::kUpdate || task.work == Work::kBackwardWeight) {
      return;
    }
    const bool forward = task.work == Work::kForward;
    done_[at(task.stage * schedule_.microbatches + task.microbatch)] |=
        forward ? kForwardDone : kBackwardDone;
    const bool last = forward ? task.stage == schedule_.stages - 1 : task.stage == 0;
    const int offset = forward ? 1 : -1;
    if (!last && device_of(task, offset) != device_of(task, 0)) {
      state.sending = channel(pipeline_of(task), task.stage, forward);
    }
  }

  const Schedule& schedule_;
  std::int64_t capacity_;
  std::vector<std::deque<std::int64_t>> channels_;
  std::vector<Device> devices_;
  std::vector<std::uint8_t> done_;
  std::vector<std::int64_t> met_;
  std::vector<std::vector<int>> holders_;
  std::deque<int> ready_{};
};

}  // namespace

Status check(const Schedule& schedule, std::int64_t channel_capacity) {
  SHARDPLAN_RETURN_IF_ERROR(check_fields(schedule));
  SHARDPLAN_RETURN_IF_ERROR(Lists(schedule).check());
  return Devices(schedule, channel_capacity).run();
}

Status check(const Schedule& schedule) {
  return check(schedule, schedule.channel_capacity);
}

}  // namespace shardplan::lower
