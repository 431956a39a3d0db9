// shardplan: our own planner of hybrids.
//
// The idea in five lines: `map` without a pipeline is one candidate. The step is cut,
// for every number of groups that divides the devices, into stages of equal kernel time under 1F1B,
// each stage with the best expert plan on its group within what the schedule leaves of the memory;
// the times that the stages have in the simulation weigh their segments for the next cut. The other
// schedules are tried for the numbers of groups that came out best, `map` plans the stages of the
// best few of all, and the plans of published methods (published.h) are candidates as well. The
// simulator has the last word.
//
// Bound: no device computes faster than its peak allows, so no plan takes less than the FLOPs of
// the step over all devices' rate; with `map`'s own bound where one group is all there is.
#include "shardplan/planners/pipeline/shardplan.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/ops/op.h"
#include "shardplan/planners/experts.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/published.h"
#include "shardplan/planners/pipeline/stage_plans.h"

namespace shardplan::planners {
namespace {

constexpr int kCuts = 3;              ///< for one number of groups and one schedule
constexpr std::size_t kGroups = 2;    ///< numbers of groups for which all schedules are tried
constexpr std::size_t kPolished = 2;  ///< cuts whose stages `map` plans

struct ScheduleChoice {
  std::string_view name;
  int chunks = 1;
  bool weights_later = false;
};
/// Those that run a step at a time on one copy of the weights, 1F1B first.
constexpr ScheduleChoice kSchedules[] = {{"1f1b"},
                                         {"interleaved_1f1b", 2},
                                         {"interleaved_1f1b", 4},
                                         {"zb_h1", 1, true},
                                         {"zb_h2", 1, true},
                                         {"zb_v", 2, true}};

/// The best expert plan of all rules, quickly.
Result<PlanResult> plan_by_experts(const PlanRequest& request) {
  return plan_by_rules(request, "experts", expert_rules());
}

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
        quick_{"experts", "", 0, "", plan_by_experts},
        by_experts_(request, quick_),
        by_map_(request, inside_),
        blocks_(segments(request.step, cost::CostModel(request.cluster, {}), 0)),
        ops_(segments(
            request.step, cost::CostModel(request.cluster, {}), request.step.ops().size() + 1)) {}

  Result<PlanResult> run() {
    const std::int64_t devices = request_.cluster.device_count();
    std::vector<int> groups;
    for (int g = 2; g <= devices && g <= request_.step.microbatches * kMostStages; ++g) {
      if (devices % g == 0) {
        groups.push_back(g);
      }
    }
    // From the smallest groups on, whose stages are planned in least time.
    for (auto g = groups.rbegin(); g != groups.rend(); ++g) {
      try_cuts(*g, kSchedules[0], 1);
    }
    for (const int g : best_groups()) {
      for (const ScheduleChoice& schedule : kSchedules) {
        try_cuts(g, schedule, kCuts);
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(try_without_stages());
    polish();
    try_published();
    Proof proof;
    proof.step_lower_bound = compute_bound(request_);
    return conclude(request_, "shardplan", candidates_, memory_limit(request_), proof, budget_);
  }

 private:
  /// Within what is left of the time, but always: stages may be impossible.
  Status try_without_stages() {
    PlanRequest request = request_;
    request.time_limit = budget_.remaining();
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult whole, inside_.plan(request));
    Candidate candidate;
    candidate.plan = std::move(whole.best);
    candidate.simulation = std::move(whole.simulation);
    candidates_.push_back(std::move(candidate));
    return {};
  }

  /// More stages than this for each microbatch are idle most of the time.
  static constexpr std::int64_t kMostStages = 2;

  struct Tried {
    StageCut cut;
    Seconds step_seconds = 0;
    bool fits = false;
  };
  static bool better(const Tried& a, const Tried& b) {
    return a.fits != b.fits ? a.fits : a.step_seconds < b.step_seconds;
  }

  std::vector<int> best_groups() {
    std::stable_sort(tried_.begin(), tried_.end(), better);
    std::vector<int> best;
    for (const Tried& tried : tried_) {
      if (best.size() < kGroups &&
          std::find(best.begin(), best.end(), tried.cut.groups) == best.end()) {
        best.push_back(tried.cut.groups);
      }
    }
    return best;
  }

  void polish() {
    std::stable_sort(tried_.begin(), tried_.end(), better);
    for (std::size_t i = 0; i < tried_.size() && i < kPolished && !budget_.exhausted(); ++i) {
      budget_.control().report("stages by map", static_cast<double>(i) / kPolished);
      if (Result<Candidate> made = by_map_.plan(tried_[i].cut, budget_)) {
        candidates_.push_back(*std::move(made));
      }
    }
  }

  /// Shapes that a schedule does not have, and cuts that the step does not allow, are no
  /// candidates.
  void try_cuts(int groups, const ScheduleChoice& schedule, int rounds) {
    const auto count = static_cast<std::size_t>(groups * schedule.chunks);
    std::vector<Segment> parts = blocks_.size() >= count ? blocks_ : ops_;
    if (parts.size() < count) {
      return;
    }
    std::vector<std::size_t> starts = balanced_starts(parts, static_cast<int>(count));
    for (int round = 0; round < rounds && !budget_.exhausted(); ++round) {
      budget_.control().report("stages", -1);
      const StageCut cut{std::string(schedule.name),
                         schedule.weights_later,
                         groups,
                         stages_of_segments(request_.step, parts, starts)};
      Result<Candidate> made = by_experts_.plan(cut, budget_);
      if (!made) {
        return;
      }
      const std::vector<Seconds> seconds = made->stage_seconds;
      tried_.push_back({cut,
                        made->simulation.step_seconds,
                        made->simulation.peak_bytes <= memory_limit(request_)});
      candidates_.push_back(*std::move(made));
      const std::vector<std::size_t> before = starts;
      weigh(parts, starts, seconds);
      starts = balanced_starts(parts, static_cast<int>(count));
      if (starts == before) {
        return;
      }
    }
  }

  /// The plans of published methods, so that none of them is ahead that computes what one device
  /// does. Not that of the one that takes seconds for an answer that dnn_partitioning_dp has
  /// exactly.
  void try_published() {
    if (request_.cluster.device_count() < 2) {
      return;
    }
    const Result<StepLayers> layers = layers_of(request_);
    for (std::size_t m = 0; layers && m < layer_planners().size() && !budget_.exhausted(); ++m) {
      if (layer_planners()[m].name == "dnn_partitioning_ip") {
        continue;
      }
      PublishedOutcome outcome =
          plan_published(layer_planners()[m], request_, *layers, by_map_, Weights::kFresh, budget_);
      std::move(
          outcome.candidates.begin(), outcome.candidates.end(), std::back_inserter(candidates_));
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
  PlannerInfo quick_;
  StagePlans by_experts_;
  StagePlans by_map_;
  std::vector<Segment> blocks_;  ///< of the step, one a run of ops of one block
  std::vector<Segment> ops_;     ///< one an op
  std::vector<Candidate> candidates_;
  std::vector<Tried> tried_;
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
