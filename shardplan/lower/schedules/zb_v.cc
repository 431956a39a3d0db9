// ZB-V: Zero Bubble Pipeline Parallelism (Qi, Wan, Huang and Lin, ICLR 2024; Pipeline Parallelism
// with Controllable Memory, NeurIPS 2024).
//
// Two stages a device in a V: device i of p has stage i and stage 2p − 1 − i, so that the last
// stage meets the first on device 0, and what a microbatch holds is the same on every device. With
// equal times of F, B and W and at least 2p − 1 microbatches no device is ever idle between its
// first and its last pass, with 2p passes (of half a device's layers) in flight: the memory of
// 1F1B's first stage.
//
// Device i: 2(p − i) − 1 forward passes of its upper stage; i times one of its lower and one of its
// upper stage; p − i times F, B, W of the lower stage; then in turn F, B, W of the upper and F, B,
// W of the lower stage; when the forward passes are used up, i times B of both stages, p − i times
// B and W of the upper stage, and the W that are left. Fewer microbatches than 2p − 1 leave out
// those that do not exist.

#include <algorithm>
#include <array>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

namespace {

/// The list of one device as it grows; each kind of pass of each stage counts its microbatches.
class VList {
 public:
  VList(Schedule& schedule, int device)
      : tasks_(schedule.tasks[static_cast<std::size_t>(device)]),
        stages_{device, schedule.stages - 1 - device},
        microbatches_(schedule.microbatches) {}

  static constexpr std::size_t kUpper = 0;
  static constexpr std::size_t kLower = 1;

  void append(std::size_t half, std::initializer_list<Work> passes) {
    for (const Work work : passes) {
      std::int64_t& next = next_[half][static_cast<std::size_t>(work)];
      if (next < microbatches_) {
        tasks_.push_back({work, stages_[half], next});
      }
      ++next;
    }
  }

  [[nodiscard]] std::int64_t count(std::size_t half, Work work) const {
    return next_[half][static_cast<std::size_t>(work)];
  }

 private:
  std::vector<Task>& tasks_;
  std::array<int, 2> stages_;
  std::int64_t microbatches_;
  std::array<std::array<std::int64_t, 4>, 2> next_{};
};

}  // namespace

Result<Schedule> make_zb_v(const ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule("zb_v", shape, 2));
  constexpr Work kF = Work::kForward;
  constexpr Work kB = Work::kBackwardInput;
  constexpr Work kW = Work::kBackwardWeight;
  const int p = shape.devices;
  for (int device = 0; device < p; ++device) {
    schedule.device_of[0][static_cast<std::size_t>(schedule.stages - 1 - device)] = device;
  }
  const std::int64_t most = std::max<std::int64_t>(2 * std::int64_t{p} - 1, shape.microbatches);
  for (int device = 0; device < p; ++device) {
    VList list(schedule, device);
    for (int i = 0; i < 2 * (p - device) - 1; ++i) {
      list.append(VList::kUpper, {kF});
    }
    for (int i = 0; i < device; ++i) {
      list.append(VList::kLower, {kF});
      list.append(VList::kUpper, {kF});
    }
    for (int i = 0; i < p - device; ++i) {
      list.append(VList::kLower, {kF, kB, kW});
    }
    while (list.count(VList::kLower, kF) < most) {
      if (list.count(VList::kUpper, kF) < most) {
        list.append(VList::kUpper, {kF});
      }
      list.append(VList::kUpper, {kB, kW});
      list.append(VList::kLower, {kF, kB, kW});
    }
    for (int i = 0; i < device; ++i) {
      list.append(VList::kUpper, {kB});
      list.append(VList::kLower, {kB});
    }
    for (int i = 0; i < p - device; ++i) {
      list.append(VList::kUpper, {kB, kW});
    }
    for (const std::size_t half : {VList::kLower, VList::kUpper}) {
      while (list.count(half, kW) < most) {
        list.append(half, {kW});
      }
    }
  }
  append_updates(schedule);
  return schedule;
}

}  // namespace shardplan::lower
