// DistIR: An Intermediate Representation for Optimizing Distributed Neural Networks (Santhanam,
// Krishna, Tomioka, Fitzgibbon and Harris, EuroMLSys 2021), its grid search.
//
// Every D x H x P x M is simulated: D copies of the whole pipeline share the batch, H devices share
// each layer (tensor parallelism), P equal stages, M microbatches in each copy. 1F1B, then each
// stage sums its gradients over the D copies. The fastest that fits the memory wins; recomputation
// of everything counts as a fifth dimension where the profile has it.
//
// Deviations: DistIR simulates the distributed program op by op; here the stages' times of the
// profile are run by sim::time_schedule, of microbatches that are as large as the batch makes them
// (batch / (D M) of the profile's, time in proportion).

#include "shardplan/planners/pipeline/distir2021.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardplan/lower/schedule.h"
#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::int64_t kMostPasses = 1 << 21;  // of a schedule; bubbles are gone long before

/// One point of the grid, with what its stages need.
struct Point {
  int copies = 1;                 // D
  int degree = 1;                 // H
  std::int64_t microbatches = 1;  // M
  std::vector<int> choices{};
  std::vector<std::vector<int>> stages{};  // P
  std::vector<StageSums> sums{};
};

class Grid {
 public:
  explicit Grid(const LayerRequest& request)
      : request_(request), options_(limits_of(request)), budget_(options_), equal_(request.graph) {}

  LayerPlanResult run() {
    const int devices = request_.machines.devices;
    for (const int degree : common_degrees(request_.graph)) {
      for (int variant = 0;; ++variant) {
        Point point;
        point.degree = degree;
        point.choices = uniform_choice(request_.graph, degree, variant);
        if (point.choices.empty()) {
          break;
        }
        for (int stages = 1; stages <= std::min(equal_.blocks(), devices / degree); ++stages) {
          if (devices % (degree * stages) == 0 && !budget_.exhausted()) {
            point.copies = devices / (degree * stages);
            point.stages = equal_.cut(stages);
            point.sums = stage_sums(request_.graph, point.stages, point.choices);
            try_microbatches(point);
          }
        }
      }
    }
    result_.limit = search_limit(budget_.limit());
    if (result_.objective == kInfinity) {
      explain();
      return result_;
    }
    const bool whole = result_.limit == SearchLimit::kNone && left_out_ == 0;
    result_.status = whole ? SearchStatus::kOptimal : SearchStatus::kFeasible;
    result_.lower_bound = whole ? result_.objective : -kInfinity;
    if (left_out_ > 0) {
      result_.explanation =
          fmt::format("points with more than {1} passes were left out, of {0} cuts of the grid",
                      left_out_,
                      kMostPasses);
    }
    return result_;
  }

 private:
  /// Why there is no plan.
  void explain() {
    if (result_.limit != SearchLimit::kNone) {
      result_.explanation = "the search was stopped before it found a plan";
    } else if (left_out_ > 0) {
      result_.explanation = fmt::format(
          "no plan among the points of the grid with up to {} passes; those with more were left "
          "out",
          kMostPasses);
    } else if (least_memory_ < kInfinity) {
      result_.status = SearchStatus::kInfeasible;
      result_.explanation =
          fmt::format("no point of the grid fits {:.6g} bytes a device; the closest needs {:.6g}",
                      request_.machines.memory_bytes,
                      least_memory_);
    } else {
      result_.status = SearchStatus::kInfeasible;
      result_.explanation = fmt::format(
          "no degrees of the grid make use of all {} devices and share {} "
          "microbatches evenly",
          request_.machines.devices,
          request_.machines.microbatches);
    }
  }

  void try_microbatches(Point& point) {
    const std::int64_t batch = request_.machines.microbatches;
    if (batch % point.copies != 0) {
      return;
    }
    const std::int64_t own = batch / point.copies;
    const auto stages = static_cast<std::int64_t>(point.stages.size());
    if (own > kMostPasses / stages) {
      ++left_out_;  // at least the point of `own` microbatches
    }
    for (std::int64_t m = 1; m <= std::min(own, kMostPasses / stages); ++m) {
      if (own % m == 0 && !budget_.exhausted()) {
        point.microbatches = m;
        simulate(point, static_cast<double>(own) / static_cast<double>(m));
      }
    }
  }

  void simulate(const Point& point, double size) {
    const double per_byte = request_.graph.units_per_transfer_second / request_.machines.bandwidth;
    const double copies = point.copies;
    std::vector<sim::StageTimes> times(point.sums.size());
    double memory = 0;
    for (std::size_t s = 0; s < times.size(); ++s) {
      const StageSums& sums = point.sums[s];
      times[s].forward = size * sums.forward;
      times[s].backward = size * sums.backward;
      times[s].send_forward = size * sums.out_bytes * per_byte;
      times[s].send_backward = size * sums.in_bytes * per_byte;
      times[s].update = 2 * (copies - 1) / copies * sums.parameter_bytes * per_byte;
      const auto held = std::min(static_cast<std::int64_t>(times.size() - s), point.microbatches);
      memory = std::max(
          memory, sums.constant_bytes + static_cast<double>(held) * size * sums.in_flight_bytes);
    }
    least_memory_ = std::min(least_memory_, memory);
    if (request_.machines.memory_bytes > 0 && memory > request_.machines.memory_bytes) {
      return;
    }
    lower::ScheduleShape shape;
    shape.devices = static_cast<int>(point.stages.size());
    shape.microbatches = point.microbatches;
    const Result<const lower::ScheduleInfo*> info = lower::find_schedule("1f1b");
    const Result<lower::Schedule> schedule = (*info)->make(shape);
    if (!schedule) {
      return;
    }
    const Result<sim::ScheduleTime> time = sim::time_schedule(*schedule, times);
    if (time && time->makespan < result_.objective) {
      result_.objective = time->makespan;
      take(point, times, memory);
    }
  }

  void take(const Point& point, const std::vector<sim::StageTimes>& times, double memory) {
    problem::LayerPlan& plan = result_.best;
    plan.stages.clear();
    for (std::size_t s = 0; s < point.stages.size(); ++s) {
      problem::LayerStage& stage = plan.stages.emplace_back();
      stage.layers = point.stages[s];
      for (const int v : stage.layers) {
        stage.choices.push_back(point.choices[static_cast<std::size_t>(v)]);
      }
      stage.degree = point.degree;
      stage.time = times[s].forward + times[s].backward;
      stage.memory_bytes = memory;
    }
    plan.pipelines = point.copies;
    plan.microbatches = point.microbatches;
    plan.schedule = "1f1b";
  }

  const LayerRequest& request_;
  solvers::SolveOptions options_;
  solvers::Budget budget_;
  EqualStages equal_;
  LayerPlanResult result_{};
  double least_memory_ = kInfinity;
  int left_out_ = 0;  ///< pairs of stages and copies of which points have too many passes
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "distir"));
  SHARDPLAN_RETURN_IF_ERROR(require_batch_and_bandwidth(request, "distir"));
  return Grid(request).run();
}

}  // namespace

LayerPlannerInfo distir_planner() {
  return {"distir",
          "Santhanam et al., DistIR: An Intermediate Representation for Optimizing Distributed "
          "Neural Networks",
          2021,
          "data, tensor and pipeline degrees and microbatches, by simulating every point of a grid",
          "unequal stages, and choices that differ between layers",
          "a batch",
          {},
          &solve,
          &problem::distir_objective};
}

}  // namespace shardplan::planners
