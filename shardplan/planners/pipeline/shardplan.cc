// shardplan: our own planner of hybrids.
//
// The idea in five lines: blocks that are alike are planned once, alone, on every size of group,
// and put together into pipelines of every number of groups and every schedule (compose.h), the
// best of which are planned and simulated as wholes. A small step, or one without blocks that are
// alike, is cut into stages of equal kernel time, each planned by the best expert rule; the times
// that the stages have in the simulation weigh their segments for the next cut. `map` plans the
// stages of the best once more; `map` without stages and the plans of published methods
// (published.h) are candidates too. The simulator has the last word.
//
// Bound: no device computes faster than its peak allows, so no plan takes less than the FLOPs of
// the step over all devices' rate.
#include "shardplan/planners/pipeline/shardplan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/planners/experts.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/compose.h"
#include "shardplan/planners/pipeline/even_cut.h"
#include "shardplan/planners/pipeline/published.h"
#include "shardplan/planners/pipeline/stage_plans.h"

namespace shardplan::planners {
namespace {

constexpr std::size_t kMostKinds = 12;  ///< of blocks, for compositions,
constexpr std::size_t kAlike = 2;       ///< and the least blocks of a kind, on average
constexpr std::size_t kRealised = 4;    ///< compositions that are planned and simulated
constexpr std::size_t kFewOps = 1000;   ///< of a step in which cuts within blocks are tried as well
constexpr int kCuts = 3;                ///< for one number of groups and one schedule
constexpr std::size_t kGroups = 2;      ///< numbers of groups for which all schedules are tried
constexpr std::size_t kPolished = 1;    ///< cuts whose stages `map` plans

/// The best expert plan of all rules, quickly.
Result<PlanResult> plan_by_experts(const PlanRequest& request) {
  return plan_by_rules(request, "experts", expert_rules());
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
    Proof proof;
    proof.step_lower_bound = matmul_seconds(request_);
    if (proof.step_lower_bound >= request_.worth) {
      return nothing();
    }
    if (!try_composed() || request_.step.ops().size() <= kFewOps) {
      try_every_cut();
    }
    SHARDPLAN_RETURN_IF_ERROR(try_without_stages());
    polish();
    try_published();
    if (candidates_.empty() && request_.worth < std::numeric_limits<Seconds>::infinity()) {
      return nothing();
    }
    return conclude(request_, "shardplan", candidates_, memory_limit(request_), proof, budget_);
  }

 private:
  /// Nothing faster than what is known.
  [[nodiscard]] PlanResult nothing() const {
    PlanResult none;
    none.best.prediction.step_lower_bound_seconds = matmul_seconds(request_);
    none.limit = budget_.limit();
    none.explanation = "shardplan found no faster plan";
    return none;
  }

  /// Where the step is made of a few kinds of blocks: the best of what compose.h puts together.
  /// False: it is not, or none of them fits where a plan of any time is wanted.
  bool try_composed() {
    Result<BlockCosts> costs = BlockCosts::make(request_);
    if (!costs || costs->kinds() > kMostKinds || costs->blocks().size() < kAlike * costs->kinds()) {
      return false;
    }
    Composer composer(request_, *costs);
    const Result<std::vector<Composition>> composed =
        composer.compose(memory_limit(request_), budget_, request_.worth);
    for (std::size_t i = 0; composed && i < composed->size() && i < kRealised; ++i) {
      realise((*composed)[i], composer);
    }
    return request_.worth < std::numeric_limits<Seconds>::infinity() ||
           std::any_of(tried_.begin(), tried_.end(), [](const Tried& tried) { return tried.fits; });
  }

  /// Plans and simulates a composition; where it takes more memory than its blocks alone said, with
  /// more blocks that run again.
  void realise(Composition choice, const Composer& composer) {
    const Bytes limit = memory_limit(request_);
    for (int round = 0; round < kCuts && !budget_.exhausted(); ++round) {
      Result<Candidate> made = by_experts_.plan(choice.cut, budget_);
      if (!made) {
        return;
      }
      const Bytes over = made->simulation.peak_bytes - limit;
      tried_.push_back({choice.cut, made->simulation.step_seconds, over <= 0, candidates_.size()});
      candidates_.push_back(*std::move(made));
      std::optional<Composition> smaller;
      if (over > 0) {
        smaller = composer.again(choice, choice.peak - over);
      }
      if (!smaller) {
        return;
      }
      choice = *std::move(smaller);
    }
  }

  /// Stages planned for every number of groups, from the smallest groups on, which take the least
  /// time; all schedules for the numbers that came out best.
  void try_every_cut() {
    const std::int64_t devices = request_.cluster.device_count();
    const std::int64_t most = std::min(devices, request_.step.microbatches * kMostStages);
    for (std::int64_t groups = most; groups > 1; --groups) {
      if (devices % groups == 0) {
        try_cuts(static_cast<int>(groups), schedule_choices().front(), 1);
      }
    }
    for (const int groups : best_groups()) {
      for (const ScheduleChoice& schedule : schedule_choices()) {
        try_cuts(groups, schedule, kCuts);
      }
    }
  }

  /// Within what is left of the time, but always: stages may be impossible. Not where no plan
  /// without them can be as fast as those that are known.
  Status try_without_stages() {
    PlanRequest request = request_;
    request.time_limit = budget_.remaining();
    request.worth = worth();
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult whole, inside_.plan(request));
    if (whole.status == SearchStatus::kNoPlanFound) {
      return {};
    }
    Candidate candidate;
    candidate.plan = std::move(whole.best);
    candidate.simulation = std::move(whole.simulation);
    candidates_.push_back(std::move(candidate));
    return {};
  }

  [[nodiscard]] Seconds worth() const {
    return std::min(request_.worth, least_step_seconds(candidates_, memory_limit(request_)));
  }

  struct Tried {
    StageCut cut;
    Seconds step_seconds = 0;
    bool fits = false;
    std::size_t candidate = 0;
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
      if (Result<Candidate> made =
              by_map_.improve(tried_[i].cut, candidates_[tried_[i].candidate], budget_)) {
        candidates_.push_back(*std::move(made));
      }
    }
  }

  /// Shapes that a schedule does not have, and cuts that the step does not allow, are no
  /// candidates.
  void try_cuts(int groups, const ScheduleChoice& schedule, int rounds) {
    const std::size_t count =
        static_cast<std::size_t>(groups) * static_cast<std::size_t>(schedule.chunks);
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
                         stages_of_segments(request_.step, parts, starts),
                         1,
                         schedule.pipelines,
                         schedule.forward_group};
      Result<Candidate> made = by_experts_.plan(cut, budget_);
      if (!made) {
        return;
      }
      const std::vector<Seconds> seconds = made->stage_seconds;
      tried_.push_back({cut,
                        made->simulation.step_seconds,
                        made->simulation.peak_bytes <= memory_limit(request_),
                        candidates_.size()});
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
    PlanRequest faster = request_;
    faster.worth = worth();
    for (std::size_t m = 0; layers && m < layer_planners().size() && !budget_.exhausted(); ++m) {
      if (layer_planners()[m].name == "dnn_partitioning_ip") {
        continue;
      }
      PublishedOutcome outcome =
          plan_published(layer_planners()[m], faster, *layers, by_map_, Weights::kFresh, budget_);
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
