// PipeDream-2BW: Memory-Efficient Pipeline-Parallel DNN Training (Narayanan et al., ICML 2021).
//
// All (stages, replicas, degree, recompute everything or nothing) with equal stages of repeated
// blocks; whatever fits the memory and takes the least time a microbatch in the steady state wins.
// No planner was published; this is the imitation that Piper's authors compare with ("equi"), with
// their time and memory of a stage: see problem::piper_objective. So tensor parallelism is among
// the choices, and stages of different replicas are not.

#include "shardplan/planners/pipeline/pipedream_2bw2021.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int> divisors(std::int64_t number, int most) {
  std::vector<int> all;
  for (int d = 1; d <= most && d <= number; ++d) {
    if (number % d == 0) {
      all.push_back(d);
    }
  }
  return all;
}

/// One enumeration: what it is asked, and the best that it has seen.
class Enumeration {
 public:
  explicit Enumeration(const LayerRequest& request)
      : request_(request),
        options_(limits_of(request)),
        budget_(options_),
        equal_(request.graph),
        replicas_(divisors(request.machines.microbatches, request.machines.devices)) {}

  LayerPlanResult run() {
    for (const int degree : common_degrees(request_.graph)) {
      for (int variant = 0;; ++variant) {
        const std::vector<int> choices = uniform_choice(request_.graph, degree, variant);
        if (choices.empty()) {
          break;
        }
        const int most = std::min(equal_.blocks(), request_.machines.devices);
        for (int stages = 1; stages <= most && !budget_.exhausted(); ++stages) {
          consider(equal_.cut(stages), degree, choices);
          if (equal_.has_ends()) {
            consider(equal_.cut(stages, true), degree, choices);
          }
        }
      }
    }
    result_.limit = search_limit(budget_.limit());
    const bool stopped = result_.limit != SearchLimit::kNone;
    if (stopped && result_.objective == kInfinity) {
      result_.explanation = "the search was stopped before it found a plan";
      return result_;
    }
    if (result_.objective == kInfinity) {
      result_.status = SearchStatus::kInfeasible;
      result_.explanation =
          fmt::format("no equal stages fit {:.6g} bytes a device; the closest need {:.6g}",
                      request_.machines.memory_bytes,
                      least_memory_);
      return result_;
    }
    result_.status = stopped ? SearchStatus::kFeasible : SearchStatus::kOptimal;
    result_.lower_bound = stopped ? -kInfinity : result_.objective;
    result_.best.microbatches = request_.machines.microbatches;
    result_.best.schedule = "pipedream_2bw";
    return result_;
  }

 private:
  void consider(const std::vector<std::vector<int>>& stages,
                int degree,
                const std::vector<int>& choices) {
    const problem::LayerMachines& machines = request_.machines;
    const auto count = static_cast<std::int64_t>(stages.size());
    if (count * degree > machines.devices) {
      return;
    }
    const std::vector<StageSums> sums = stage_sums(request_.graph, stages, choices);
    double memory = 0;
    for (std::size_t s = 0; s < sums.size(); ++s) {
      memory = std::max(
          memory,
          sums[s].constant_bytes + static_cast<double>(sums.size() - s) * sums[s].in_flight_bytes);
    }
    least_memory_ = std::min(least_memory_, memory);
    if (machines.memory_bytes > 0 && memory > machines.memory_bytes) {
      return;
    }
    for (const int replicas : replicas_) {
      if (count * degree * replicas > machines.devices ||
          count * replicas > machines.microbatches) {
        break;
      }
      double slowest = 0;
      for (const StageSums& stage : sums) {
        slowest = std::max(slowest, time_of(stage, replicas));
      }
      if (slowest < result_.objective) {
        result_.objective = slowest;
        take(stages, sums, degree, choices, replicas);
      }
    }
  }

  [[nodiscard]] double time_of(const StageSums& stage, double replicas) const {
    const double per_byte = request_.graph.units_per_transfer_second / request_.machines.bandwidth;
    return (stage.forward + stage.backward) / replicas +
           per_byte * (2 * (stage.in_bytes + stage.out_bytes) / replicas +
                       4 * (replicas - 1) / replicas * stage.parameter_bytes /
                           static_cast<double>(request_.machines.microbatches));
  }

  void take(const std::vector<std::vector<int>>& stages,
            const std::vector<StageSums>& sums,
            int degree,
            const std::vector<int>& choices,
            int replicas) {
    result_.best.stages.clear();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      problem::LayerStage& stage = result_.best.stages.emplace_back();
      stage.layers = stages[s];
      for (const int v : stages[s]) {
        stage.choices.push_back(choices[static_cast<std::size_t>(v)]);
      }
      stage.replicas = replicas;
      stage.degree = degree;
      stage.time = time_of(sums[s], replicas);
      stage.memory_bytes =
          sums[s].constant_bytes + static_cast<double>(sums.size() - s) * sums[s].in_flight_bytes;
    }
  }

  const LayerRequest& request_;
  solvers::SolveOptions options_;
  solvers::Budget budget_;
  EqualStages equal_;
  std::vector<int> replicas_;
  LayerPlanResult result_{};
  double least_memory_ = kInfinity;
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "pipedream_2bw"));
  SHARDPLAN_RETURN_IF_ERROR(require_batch_and_bandwidth(request, "pipedream_2bw"));
  return Enumeration(request).run();
}

}  // namespace

LayerPlannerInfo pipedream_2bw_planner() {
  return {"pipedream_2bw",
          "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training",
          2021,
          "equal stages, replicas, degree and recomputation, all alike, by enumeration",
          "unequal stages, and choices that differ between layers",
          "a microbatch",
          {},
          &solve,
          &problem::piper_objective};
}

}  // namespace shardplan::planners
