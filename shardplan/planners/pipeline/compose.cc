#include "shardplan/planners/pipeline/compose.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/planners/pipeline/even_cut.h"

namespace shardplan::planners {
namespace {

using lower::Schedule;
using lower::Work;

/// Cuts of one choice, each even by the times of the last one.
constexpr int kRounds = 3;
/// Estimates that are so many times as long as a known plan are not looked at: what they leave out
/// is less.
constexpr double kFar = 1.15;

/// The stages of one choice while their blocks are told apart.
class Stages {
 public:
  Stages(const BlockCosts& costs, const GroupOption& option, const Schedule& schedule)
      : costs_(costs), option_(option), schedule_(schedule), again_(costs.blocks().size(), false) {}

  /// As even as the blocks, run again as they are now, allow.
  void cut() {
    std::vector<double> sums{0};
    for (std::size_t b = 0; b < again_.size(); ++b) {
      const sim::StageTimes& times = cost(b).times;
      sums.push_back(sums.back() + times.forward + times.backward);
    }
    starts_ = even_cut(sums, static_cast<std::size_t>(schedule_.stages));
  }

  /// Chooses what runs again; false where nothing fits.
  bool fit(Bytes limit) {
    for (std::size_t device = 0; device < schedule_.tasks.size(); ++device) {
      std::size_t low = 0;
      std::size_t high = 0;
      for (const int stage : stages_of(device)) {
        high = std::max(high, end(stage) - starts_[static_cast<std::size_t>(stage)]);
      }
      rerun(device, 0);
      if (peak(device) <= limit) {
        continue;
      }
      rerun(device, high);
      if (peak(device) > limit) {
        return false;
      }
      while (low + 1 < high) {
        const std::size_t middle = (low + high) / 2;
        rerun(device, middle);
        (peak(device) <= limit ? high : low) = middle;
      }
      rerun(device, high);
    }
    // Where two pipelines share the blocks, a later device may have undone what an earlier one
    // chose.
    return schedule_.pipelines == 1 || peak() <= limit;
  }

  [[nodiscard]] std::vector<sim::StageTimes> times() const {
    std::vector<sim::StageTimes> out(starts_.size());
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      sim::StageTimes& sum = out[static_cast<std::size_t>(stage)];
      for (std::size_t b = starts_[static_cast<std::size_t>(stage)]; b < end(stage); ++b) {
        const sim::StageTimes& block = cost(b).times;
        sum.forward += block.forward;
        sum.backward += block.backward;
        sum.backward_input += block.backward_input;
        sum.backward_weight += block.backward_weight;
        sum.update += block.update;
        sum.send_forward = block.send_forward;  // of its last block
      }
      sum.send_backward = cost(starts_[static_cast<std::size_t>(stage)]).times.send_backward;
    }
    return out;
  }

  /// Of the fullest device.
  [[nodiscard]] Bytes peak() const {
    Bytes most = 0;
    for (std::size_t device = 0; device < schedule_.tasks.size(); ++device) {
      most = std::max(most, peak(device));
    }
    return most;
  }
  [[nodiscard]] const std::vector<std::size_t>& starts() const { return starts_; }
  [[nodiscard]] const std::vector<bool>& again() const { return again_; }

 private:
  [[nodiscard]] const BlockCost& cost(std::size_t block) const {
    return option_.kinds[costs_.kind(block)][again_[block] ? 1 : 0];
  }
  [[nodiscard]] std::size_t end(int stage) const {
    const std::size_t next = static_cast<std::size_t>(stage) + 1;
    return next < starts_.size() ? starts_[next] : again_.size();
  }
  [[nodiscard]] std::vector<int> stages_of(std::size_t device) const {
    std::vector<int> stages;
    for (const std::vector<int>& device_of : schedule_.device_of) {
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        if (device_of[static_cast<std::size_t>(stage)] == static_cast<int>(device)) {
          stages.push_back(stage);
        }
      }
    }
    return stages;
  }
  /// The first `count` blocks of each stage of the device run again.
  void rerun(std::size_t device, std::size_t count) {
    for (const int stage : stages_of(device)) {
      const std::size_t start = starts_[static_cast<std::size_t>(stage)];
      for (std::size_t b = start; b < end(stage); ++b) {
        again_[b] = b - start < count;
      }
    }
  }
  [[nodiscard]] Bytes peak(std::size_t device) const {
    Bytes weights = 0;
    Bytes passing = 0;
    std::vector<Bytes> saved(starts_.size(), 0);
    for (const int stage : stages_of(device)) {
      for (std::size_t b = starts_[static_cast<std::size_t>(stage)]; b < end(stage); ++b) {
        weights += cost(b).weights;
        passing = std::max(passing, cost(b).passing);
        saved[static_cast<std::size_t>(stage)] += cost(b).saved;
      }
    }
    Bytes now = 0;
    Bytes most = 0;
    for (const lower::Task& task : schedule_.tasks[device]) {
      const Bytes bytes = saved[static_cast<std::size_t>(task.stage)];
      now += task.work == Work::kForward ? bytes : 0;
      most = std::max(most, now);
      now -= task.work == Work::kBackward || task.work == Work::kBackwardWeight ? bytes : 0;
    }
    return weights + most + passing;
  }

  const BlockCosts& costs_;
  const GroupOption& option_;
  const Schedule& schedule_;
  std::vector<bool> again_;
  std::vector<std::size_t> starts_;
};

/// No bubbles: every device is as long at work as the busiest.
Seconds busiest(const Schedule& schedule, const std::vector<sim::StageTimes>& times) {
  std::vector<Seconds> busy(static_cast<std::size_t>(schedule.devices), 0);
  for (const int pipeline : schedule.pipeline_of) {  // of each microbatch
    const std::vector<int>& device_of = schedule.device_of[static_cast<std::size_t>(pipeline)];
    for (std::size_t s = 0; s < times.size(); ++s) {
      busy[static_cast<std::size_t>(device_of[s])] += times[s].forward + times[s].backward;
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

const std::vector<ScheduleChoice>& schedule_choices() {
  static const std::vector<ScheduleChoice> choices{{"1f1b"},
                                                   {"interleaved_1f1b", 2},
                                                   {"interleaved_1f1b", 4},
                                                   {"zb_h1", 1, true},
                                                   {"zb_h2", 1, true},
                                                   {"zb_v", 2, true},
                                                   {"chimera", 1, false, 2},
                                                   {"chimera", 1, false, 2, 2}};
  return choices;
}

Seconds matmul_seconds(const PlanRequest& request) {
  const ir::Graph& step = request.step;
  const cost::CostModel cost(request.cluster, {});
  Seconds total = 0;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::OpId id(i);
    const ops::OpDef& def = ops::get(step.op(id).name);
    if (!def.matmul || def.view) {
      continue;
    }
    const ops::OpTypes types = ops::op_types(step, id);
    const Flops flops = ops::flops(step, id);
    const Seconds seconds =
        cost.kernel(cost::kernel_of(def, types.inputs, types.results, flops, 0)) -
        cost.kernel(cost::kernel_of(def, types.inputs, types.results, 0, 0));
    const bool every = step.op(id).phase != ir::Phase::kUpdate;
    total += std::max(0.0, seconds) * static_cast<double>(every ? step.microbatches : 1);
  }
  return total / static_cast<double>(request.cluster.device_count());
}

/// With nothing but matrix products in equal stages, a third of them forward. Unequal ones take
/// longer.
Seconds Composer::least_seconds(const Schedule& schedule) const {
  const auto passes = static_cast<double>(schedule.stages) *
                      static_cast<double>(schedule.microbatches) / schedule.devices;
  const Seconds third = compute_ / passes / 3;
  sim::StageTimes times;
  times.forward = third;
  times.backward = 2 * third;
  times.backward_input = third;
  times.backward_weight = third;
  const Result<sim::ScheduleTime> timed = sim::time_schedule(
      schedule, std::vector<sim::StageTimes>(static_cast<std::size_t>(schedule.stages), times));
  return timed ? timed->makespan : std::numeric_limits<Seconds>::infinity();
}

Result<Schedule> Composer::schedule(int groups, const ScheduleChoice& choice) const {
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::ScheduleInfo* const info,
                             lower::find_schedule(choice.name));
  lower::ScheduleShape shape;
  shape.devices = groups;
  shape.microbatches = request_.step.microbatches;
  shape.chunks = choice.chunks;
  shape.pipelines = choice.pipelines;
  if (choice.forward_group == 2) {
    shape.scaling = lower::ChimeraScaling::kForwardDoubling;
  }
  return info->make(shape);
}

StageCut Composer::cut(const Schedule& schedule,
                       const ScheduleChoice& choice,
                       const GroupOption& option,
                       const std::vector<std::size_t>& starts,
                       const std::vector<bool>& again) const {
  StageCut out{std::string(choice.name),
               choice.weights_later,
               schedule.devices,
               stages_of_segments(request_.step, costs_.blocks(), starts)};
  const std::int64_t devices = request_.cluster.device_count() / schedule.devices;
  out.pipelines = choice.pipelines;
  out.forward_group = choice.forward_group;
  out.shapes.assign(starts.size() * static_cast<std::size_t>(choice.pipelines),
                    StageShape{devices, option.inside, option.mesh});
  out.recompute.emplace();
  for (std::size_t b = 0; b < again.size(); ++b) {
    if (again[b] && !costs_.blocks()[b].block.empty()) {
      out.recompute->push_back(costs_.blocks()[b].block);
    }
  }
  return out;
}

std::optional<Composition> Composer::with(const Schedule& schedule,
                                          const ScheduleChoice& choice,
                                          const GroupOption& option,
                                          Bytes limit,
                                          Seconds worth) const {
  Stages stages(costs_, option, schedule);
  std::optional<Composition> best;
  for (int round = 0; round < kRounds; ++round) {
    stages.cut();
    if (!stages.fit(limit)) {
      break;
    }
    const std::vector<sim::StageTimes> times = stages.times();
    if (busiest(schedule, times) >= worth) {
      break;
    }
    const Result<sim::ScheduleTime> timed = sim::time_schedule(schedule, times);
    if (!timed || timed->makespan >= worth) {
      break;
    }
    worth = timed->makespan;
    best = Composition{schedule.devices,
                       &choice,
                       &option,
                       cut(schedule, choice, option, stages.starts(), stages.again()),
                       timed->makespan,
                       stages.peak()};
  }
  return best;
}

std::optional<Composition> Composer::again(const Composition& choice, Bytes limit) const {
  const Result<Schedule> made = schedule(choice.groups, *choice.schedule);
  return made ? with(*made, *choice.schedule, *choice.option, limit) : std::nullopt;
}

Result<std::vector<Composition>> Composer::compose(Bytes limit,
                                                   const Budget& budget,
                                                   Seconds worth) {
  const std::int64_t devices = request_.cluster.device_count();
  const std::int64_t microbatches = request_.step.microbatches;
  std::vector<Composition> out;
  for (int groups = 2; groups <= devices && groups <= microbatches * kMostStages; ++groups) {
    if (devices % groups != 0 || static_cast<std::size_t>(groups) > costs_.blocks().size()) {
      continue;
    }
    budget.control().report("stages", -1);
    for (const ScheduleChoice& choice : schedule_choices()) {
      const Result<Schedule> made = schedule(groups, choice);
      if (!made || static_cast<std::size_t>(made->stages) > costs_.blocks().size() ||
          least_seconds(*made) >= kFar * worth) {
        continue;
      }
      SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<GroupOption>* const options,
                                 costs_.options(devices / groups, budget));
      std::optional<Composition> best;
      for (const GroupOption& option : *options) {
        if (budget.exhausted()) {
          break;
        }
        const Seconds less = best ? best->seconds : kFar * worth;
        if (std::optional<Composition> better = with(*made, choice, option, limit, less)) {
          best = std::move(better);
        }
      }
      if (best) {
        out.push_back(*std::move(best));
      }
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Composition& a, const Composition& b) {
    return a.seconds < b.seconds;
  });
  return out;
}

}  // namespace shardplan::planners
