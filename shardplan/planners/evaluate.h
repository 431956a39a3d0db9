#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/planners/planner.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::planners {

/// A plan with what the simulator says of it.
struct Candidate {
  plan::Plan plan{};
  sim::Simulation simulation{};
  std::vector<Bytes> stage_peaks{};      ///< of a pipeline: by stage, of its group of devices
  std::vector<Seconds> stage_seconds{};  ///< of a pipeline: forward and backward of a microbatch
};

/// The step as lowered and simulated on the plan's cluster and mesh; fills the plan's prediction
/// (times and peak). A cluster of local processes runs collectives in line, all others overlap
/// them. A pipeline's times and peak are those of sim/pipeline.h.
[[nodiscard]] Result<Candidate> evaluate(plan::Plan plan, const ir::Graph& step);

/// Limit of a request: what was asked for, or the device's memory.
[[nodiscard]] Bytes memory_limit(const PlanRequest& request);

/// Seconds since construction.
class Stopwatch {
 public:
  [[nodiscard]] Seconds seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Stops a search at the request's time limit or when it is interrupted.
class Budget {
 public:
  explicit Budget(const PlanRequest& request) : request_(request) {}
  [[nodiscard]] bool exhausted() const { return limit() != SearchLimit::kNone; }
  [[nodiscard]] SearchLimit limit() const {
    if (request_.control.interrupted()) {
      return SearchLimit::kInterrupted;
    }
    const bool late = request_.time_limit > 0 && watch_.seconds() > request_.time_limit;
    return late ? SearchLimit::kTime : SearchLimit::kNone;
  }
  /// Seconds left; 0 = no limit.
  [[nodiscard]] Seconds remaining() const {
    return request_.time_limit > 0 ? std::max(request_.time_limit - watch_.seconds(), 1e-3) : 0;
  }
  [[nodiscard]] const Control& control() const { return request_.control; }
  [[nodiscard]] const Stopwatch& watch() const { return watch_; }

 private:
  const PlanRequest& request_;
  Stopwatch watch_;
};

/// Of the candidates within the limit the one with the least simulated time (ties: the earlier),
/// else the one of least memory. Index into `candidates`, which must not be empty.
[[nodiscard]] std::size_t pick(const std::vector<Candidate>& candidates, Bytes limit);

/// Least additive and simulated time of the candidates within the limit; infinite when there is
/// none. A plan whose simulated time is as long or longer cannot become the pick.
[[nodiscard]] Seconds least_additive_seconds(const std::vector<Candidate>& candidates, Bytes limit);
[[nodiscard]] Seconds least_step_seconds(const std::vector<Candidate>& candidates, Bytes limit);

/// What a planner proved of all plans of its search space within the limit; 0 = nothing.
struct Proof {
  Seconds lower_bound = 0;       ///< on the additive time
  Seconds step_lower_bound = 0;  ///< on the simulated time
  double least_bytes = 0;        ///< no plan has a smaller peak; for limits that nothing meets
  std::vector<plan::BindingRow> rows{};
};

/// Gap up to which a plan is called optimal.
inline constexpr double kOptimalGap = 1e-3;

/// That nothing fits: what the plan of least memory needs, what would help, and, where no plan
/// needs less than `least_bytes`, that this is proven.
[[nodiscard]] std::string infeasible_text(const sim::Simulation& least,
                                          Bytes limit,
                                          double least_bytes);

/// Makes a result of candidates: the pick, its proof, status, and, where nothing fits, what is
/// missing.
[[nodiscard]] PlanResult conclude(const PlanRequest& request,
                                  std::string_view planner,
                                  const std::vector<Candidate>& candidates,
                                  Bytes limit,
                                  const Proof& proof,
                                  const Budget& budget);

}  // namespace shardplan::planners
