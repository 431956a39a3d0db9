// shardplan: our own planner of hybrids.
//
// The idea in five lines: `map` without a pipeline is the first candidate. Then, for every number
// of groups that divides the devices and every schedule, the step is cut into stages of equal
// kernel time, each stage is planned by `map` on its group within what the schedule leaves of the
// memory, and the whole is simulated. The times that the stages have in the simulation weigh their
// segments for the next cut, until none is better. The simulator has the last word.
//
// Bound: no device computes faster than its peak allows, so no plan takes less than the FLOPs of
// the step over all devices' rate; with `map`'s own bound where one group is all there is.
#include "shardplan/planners/pipeline/shardplan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/ops/op.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/stage_plans.h"

namespace shardplan::planners {
namespace {

constexpr int kCuts = 3;  ///< for one number of groups and one schedule

struct ScheduleChoice {
  std::string_view name;
  int chunks = 1;
  bool weights_later = false;
};
/// Those that run a step at a time on one copy of the weights.
constexpr ScheduleChoice kSchedules[] = {{"1f1b"},
                                         {"interleaved_1f1b", 2},
                                         {"interleaved_1f1b", 4},
                                         {"zb_h1", 1, true},
                                         {"zb_h2", 1, true},
                                         {"zb_v", 2, true}};

/// Seconds of all kernels of the step on one device, launches left out, over the devices.
Seconds compute_bound(const PlanRequest& request) {
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

class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request),
        budget_(request),
        inside_(map_planner()),
        stages_(request, inside_),
        cost_(request.cluster, {}) {}

  Result<PlanResult> run() {
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult whole, inside_.plan(request_));
    const Bytes limit = memory_limit(request_);
    Candidate first;
    first.plan = std::move(whole.best);
    first.simulation = std::move(whole.simulation);
    candidates_.push_back(std::move(first));
    const std::int64_t devices = request_.cluster.device_count();
    for (int groups = 2; groups <= devices && groups <= request_.step.microbatches * kMostStages;
         ++groups) {
      if (devices % groups != 0) {
        continue;
      }
      for (const ScheduleChoice& schedule : kSchedules) {
        if (budget_.exhausted()) {
          break;
        }
        budget_.control().report("stages",
                                 static_cast<double>(groups) / static_cast<double>(devices));
        try_cuts(groups, schedule);
      }
    }
    Proof proof;
    proof.step_lower_bound = compute_bound(request_);
    return conclude(request_, "shardplan", candidates_, limit, proof, budget_);
  }

 private:
  /// More stages than this for each microbatch are idle most of the time.
  static constexpr std::int64_t kMostStages = 2;

  /// Shapes that a schedule does not have, and cuts that the step does not allow, are no
  /// candidates.
  void try_cuts(int groups, const ScheduleChoice& schedule) {
    const int count = groups * schedule.chunks;
    std::vector<Segment> parts = segments(request_.step, cost_, static_cast<std::size_t>(count));
    if (parts.size() < static_cast<std::size_t>(count)) {
      return;
    }
    std::vector<std::size_t> starts = balanced_starts(parts, count);
    for (int round = 0; round < kCuts; ++round) {
      const StageCut cut{std::string(schedule.name),
                         schedule.weights_later,
                         groups,
                         stages_of_segments(request_.step, parts, starts)};
      Result<Candidate> made = stages_.plan(cut);
      if (!made) {
        return;
      }
      const std::vector<Seconds> seconds = made->stage_seconds;
      candidates_.push_back(*std::move(made));
      const std::vector<std::size_t> before = starts;
      weigh(parts, starts, seconds);
      starts = balanced_starts(parts, count);
      if (starts == before) {
        return;
      }
    }
  }

  /// Scales the segments of each stage to the stage's simulated time.
  static void weigh(std::vector<Segment>& parts,
                    const std::vector<std::size_t>& starts,
                    const std::vector<Seconds>& seconds) {
    for (std::size_t stage = 0; stage < starts.size(); ++stage) {
      const std::size_t end = stage + 1 < starts.size() ? starts[stage + 1] : parts.size();
      Seconds sum = 0;
      for (std::size_t s = starts[stage]; s < end; ++s) {
        sum += parts[s].forward + parts[s].backward;
      }
      for (std::size_t s = starts[stage]; s < end && sum > 0; ++s) {
        parts[s].forward *= seconds[stage] / sum;
        parts[s].backward *= seconds[stage] / sum;
      }
    }
  }

  const PlanRequest& request_;
  Budget budget_;
  PlannerInfo inside_;
  StagePlans stages_;
  cost::CostModel cost_;
  std::vector<Candidate> candidates_;
};

Result<PlanResult> plan_shardplan(const PlanRequest& request) {
  if (request.mesh) {
    return map_planner().plan(request);
  }
  return Search(request).run();
}

}  // namespace

PlannerInfo shardplan_planner() {
  return {"shardplan",
          "this project",
          2026,
          "stages, schedule, sharding, optimizer state and recomputation, within the memory limit",
          plan_shardplan};
}

}  // namespace shardplan::planners
