// Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines (Li and
// Hoefler, SC 2021).
//
// 2f pipelines share D devices: f go down (stage s of pipeline i on device s + iD/f), f go up (the
// mirror image), so that the idle slots of one are the busy ones of another. Each device keeps the
// weights of 2f stages, whose gradients the pipelines sum before the update. In slots of one pass
// (F as long as B), D microbatches take 2D + D/f − 2 slots: D/f − 2 idle ones, where 1F1B has 2(D −
// 1).
//
// The paper draws the merged schedule; here each slot is given to a pass that is ready: a backward
// pass if there is one, else a forward pass while no more than D groups of microbatches are held,
// the older unit of D first, then the one that is furthest. That reaches the paper's count and
// memory for every even D and every f that divides D/2 (tests). More microbatches than D:
//   concatenation: units one after the other, whose ends and beginnings fit into each other;
//   forward doubling: B takes two slots of F, so a slot holds two forward passes or one backward
//     pass; again no more than D/f − 2 slots are idle, for twice the activations;
//   backward halving: the same with backward passes over half microbatches: as many activations,
//     smaller (less efficient) passes.
// Deviations: any number of microbatches (the published generator needs 2N to be a multiple of D;
// the last unit is spread evenly over the pipelines), and all updates at the end of the batch (the
// paper begins the sum of gradients in idle slots, which is the runtime's business).

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "shardplan/lower/schedules/building.h"
#include "shardplan/lower/schedules/makers.h"

namespace shardplan::lower {

namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

void place(Schedule& schedule, int pipelines) {
  const int devices = schedule.devices;
  const int half = pipelines / 2;
  schedule.pipelines = pipelines;
  schedule.device_of.assign(at(pipelines), {});
  for (int pipeline = 0; pipeline < pipelines; ++pipeline) {
    const int turn = pipeline % half * (devices / half);
    for (int stage = 0; stage < devices; ++stage) {
      const int down = pipeline < half ? stage : devices - 1 - stage;
      schedule.device_of[at(pipeline)].push_back((down + turn) % devices);
    }
  }
}

/// Hands the groups of each unit of `devices` groups out to the pipelines, in equal runs.
void share_out(Schedule& schedule) {
  const std::int64_t groups = schedule.microbatches / schedule.forward_group;
  for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
    const std::int64_t group = m / schedule.forward_group;
    const std::int64_t first = group / schedule.devices * schedule.devices;
    const std::int64_t of_unit = std::min<std::int64_t>(schedule.devices, groups - first);
    schedule.pipeline_of[at(m)] = static_cast<int>((group - first) * schedule.pipelines / of_unit);
  }
}

/// Gives slot after slot to the devices.
class Slots {
 public:
  explicit Slots(Schedule& schedule) : schedule_(schedule) {
    const auto stages = at(std::int64_t{schedule.pipelines} * schedule.stages);
    forward_.assign(stages, 0);
    backward_.assign(stages, 0);
    held_.assign(at(schedule.devices), 0);
    of_pipeline_.resize(at(schedule.pipelines));
    for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
      of_pipeline_[at(schedule.pipeline_of[at(m)])].push_back(m);
    }
    stage_of_.assign(at(schedule.pipelines), std::vector<int>(at(schedule.devices)));
    for (int pipeline = 0; pipeline < schedule.pipelines; ++pipeline) {
      for (int stage = 0; stage < schedule.stages; ++stage) {
        stage_of_[at(pipeline)][at(schedule.device_of[at(pipeline)][at(stage)])] = stage;
      }
    }
  }

  void fill() {
    std::int64_t left = 2 * schedule_.microbatches * schedule_.stages;
    std::int64_t most_held = std::int64_t{schedule_.devices} * schedule_.forward_group;
    std::vector<Choice> chosen(at(schedule_.devices));
    while (left > 0) {
      // All devices choose by what was done before this slot.
      for (int device = 0; device < schedule_.devices; ++device) {
        chosen[at(device)] = choose(device, most_held);
      }
      std::int64_t passes = 0;
      for (int device = 0; device < schedule_.devices; ++device) {
        passes += take(device, chosen[at(device)]);
      }
      left -= passes;
      if (passes == 0) {
        ++most_held;  // nobody could go on within it: a pass is always ready without the limit
      }
    }
  }

 private:
  struct Choice {
    Work work = Work::kUpdate;  // none
    int pipeline = 0;
    int stage = 0;
    std::int64_t unit = 0;
    std::int64_t group = 0;

    [[nodiscard]] auto rank() const {
      return std::tuple(work != Work::kBackward, unit, -stage, group, pipeline);
    }
  };

  std::int64_t& count(std::vector<std::int64_t>& counts, int pipeline, int stage) {
    return counts[at(std::int64_t{pipeline} * schedule_.stages + stage)];
  }

  /// The best of the passes that are ready on the device.
  Choice choose(int device, std::int64_t most_held) {
    Choice best;
    const bool has_room = held_[at(device)] + schedule_.forward_group <= most_held;
    for (int pipeline = 0; pipeline < schedule_.pipelines; ++pipeline) {
      const int stage = stage_of_[at(pipeline)][at(device)];
      const std::int64_t own = static_cast<std::int64_t>(of_pipeline_[at(pipeline)].size());
      const std::int64_t forward = count(forward_, pipeline, stage);
      const std::int64_t came = stage == 0 ? own : count(forward_, pipeline, stage - 1);
      if (has_room && forward < came) {
        consider(best, Work::kForward, pipeline, stage, forward);
      }
      const std::int64_t backward = count(backward_, pipeline, stage);
      const std::int64_t returned =
          stage == schedule_.stages - 1 ? own : count(backward_, pipeline, stage + 1);
      if (backward < std::min(forward, returned)) {
        consider(best, Work::kBackward, pipeline, stage, backward);
      }
    }
    return best;
  }

  void consider(Choice& best, Work work, int pipeline, int stage, std::int64_t index) {
    const std::int64_t group = of_pipeline_[at(pipeline)][at(index)] / schedule_.forward_group;
    const Choice choice{
        work, pipeline, stage, group / schedule_.devices, index / schedule_.forward_group};
    if (best.work == Work::kUpdate || choice.rank() < best.rank()) {
      best = choice;
    }
  }

  /// Appends the passes of the slot; how many.
  std::int64_t take(int device, const Choice& choice) {
    if (choice.work == Work::kUpdate) {
      return 0;
    }
    const bool forward = choice.work == Work::kForward;
    std::int64_t& next = count(forward ? forward_ : backward_, choice.pipeline, choice.stage);
    const std::int64_t passes = forward ? schedule_.forward_group : 1;
    for (std::int64_t i = 0; i < passes; ++i) {
      const std::int64_t microbatch = of_pipeline_[at(choice.pipeline)][at(next)];
      schedule_.tasks[at(device)].push_back({choice.work, choice.stage, microbatch});
      ++next;
    }
    held_[at(device)] += forward ? passes : -passes;
    return passes;
  }

  Schedule& schedule_;
  std::vector<std::int64_t> forward_{};   // passes done, by pipeline and stage
  std::vector<std::int64_t> backward_{};  // likewise
  std::vector<std::int64_t> held_{};      // by device: forward passes without their backward pass
  std::vector<std::vector<std::int64_t>> of_pipeline_{};  // its microbatches
  std::vector<std::vector<int>> stage_of_{};              // by pipeline and device
};

}  // namespace

Result<Schedule> make_chimera(const ScheduleShape& shape) {
  constexpr std::string_view kName = "chimera";
  ScheduleShape asked = shape;
  if (shape.scaling == ChimeraScaling::kBackwardHalving) {
    asked.microbatches = shape.microbatches > std::numeric_limits<std::int64_t>::max() / 2
                             ? std::numeric_limits<std::int64_t>::max()
                             : 2 * shape.microbatches;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Schedule schedule, begin_schedule(kName, asked));
  if (shape.devices % 2 != 0) {
    return invalid_input(
        fmt::format("{} devices; pipelines in two directions need an even number", shape.devices),
        schedule.name);
  }
  if (shape.pipelines < 2 || shape.pipelines % 2 != 0 ||
      shape.devices / 2 % (shape.pipelines / 2) != 0) {
    return invalid_input(fmt::format("{} pipelines on {} devices; there can be 2f of them, where f "
                                     "divides half the number of devices",
                                     shape.pipelines,
                                     shape.devices),
                         schedule.name);
  }
  if (shape.scaling != ChimeraScaling::kConcatenation) {
    schedule.forward_group = 2;
  }
  if (schedule.microbatches % schedule.forward_group != 0) {
    return invalid_input(fmt::format("{} microbatches; forward passes over two at once need an "
                                     "even number",
                                     schedule.microbatches),
                         schedule.name);
  }
  place(schedule, shape.pipelines);
  share_out(schedule);
  Slots(schedule).fill();
  append_updates(schedule);
  while (schedule.forward_group > 1 && schedule.channel_capacity < schedule.microbatches &&
         !check(schedule)) {
    ++schedule.channel_capacity;  // 2; up to 4 where the last unit is not whole
  }
  return schedule;
}

}  // namespace shardplan::lower
