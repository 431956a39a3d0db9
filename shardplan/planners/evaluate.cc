#include "shardplan/planners/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardplan/lower/pipeline.h"
#include "shardplan/ops/op.h"
#include "shardplan/sim/pipeline.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {

namespace {

Result<Candidate> evaluate_pipeline(const plan::Plan& plan,
                                    const std::vector<plan::Plan>& stages,
                                    const ir::Graph& step) {
  const lower::PriceOf price = [](const plan::Plan& stage) {
    return cost::step_price(cost::CostModel(stage.cluster, stage.mesh));
  };
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::PipelineProgram program,
                             lower::lower_pipeline(step, plan, price));
  sim::SimOptions options;
  options.overlap = !plan.cluster.local;
  SHARDPLAN_ASSIGN_OR_RETURN(sim::PipelineSimulation simulated,
                             sim::simulate_pipeline(program, plan.cluster, stages, options));
  Candidate candidate;
  candidate.simulation = std::move(simulated.step);
  for (int stage = 0; stage < program.stages_with_copies(); ++stage) {
    candidate.stage_peaks.push_back(
        simulated.peak_bytes[static_cast<std::size_t>(program.device_of(stage))]);
  }
  for (const sim::StageTimes& stage : simulated.stage_times) {
    candidate.stage_seconds.push_back(stage.forward + stage.backward);
  }
  candidate.plan = plan;
  plan::Prediction& prediction = candidate.plan.prediction;
  prediction.step_seconds = candidate.simulation.step_seconds;
  prediction.additive_seconds = candidate.simulation.additive_seconds;
  prediction.peak_bytes = candidate.simulation.peak_bytes;
  return candidate;
}

}  // namespace

Result<Candidate> evaluate(plan::Plan plan, const ir::Graph& step) {
  if (plan.pipeline) {
    return evaluate_pipeline(plan, plan.pipeline->stages, step);
  }
  const cost::CostModel cost(plan.cluster, plan.mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(
      const lower::Program program,
      lower::lower(step,
                   plan,
                   cost::step_price(cost),
                   {.keep_gradients = false, .overlap = plan.cluster.local}));
  sim::SimOptions options;
  options.overlap = !plan.cluster.local;
  Candidate candidate;
  candidate.simulation = sim::simulate(program, step, cost, options);
  plan.prediction.step_seconds = candidate.simulation.step_seconds;
  plan.prediction.additive_seconds = candidate.simulation.additive_seconds;
  plan.prediction.peak_bytes = candidate.simulation.peak_bytes;
  candidate.plan = std::move(plan);
  return candidate;
}

Bytes memory_limit(const PlanRequest& request) {
  return request.memory_limit > 0 ? request.memory_limit : request.cluster.device.memory;
}

std::size_t pick(const std::vector<Candidate>& candidates, Bytes limit) {
  std::size_t best = 0;
  const auto fits = [&](std::size_t i) { return candidates[i].simulation.peak_bytes <= limit; };
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const bool better = fits(i) ? !fits(best) || candidates[i].simulation.step_seconds <
                                                     candidates[best].simulation.step_seconds
                                : !fits(best) && candidates[i].simulation.peak_bytes <
                                                     candidates[best].simulation.peak_bytes;
    if (better) {
      best = i;
    }
  }
  return best;
}

namespace {

Seconds least(const std::vector<Candidate>& candidates,
              Bytes limit,
              Seconds sim::Simulation::*seconds) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  for (const Candidate& candidate : candidates) {
    if (candidate.simulation.peak_bytes <= limit) {
      least = std::min(least, candidate.simulation.*seconds);
    }
  }
  return least;
}

}  // namespace

Seconds least_additive_seconds(const std::vector<Candidate>& candidates, Bytes limit) {
  return least(candidates, limit, &sim::Simulation::additive_seconds);
}

Seconds least_step_seconds(const std::vector<Candidate>& candidates, Bytes limit) {
  return least(candidates, limit, &sim::Simulation::step_seconds);
}

std::string infeasible_text(const sim::Simulation& least, Bytes limit, double least_bytes) {
  const sim::MemoryBreakdown& at = least.at_peak;
  const Bytes missing = least.peak_bytes - limit;
  const bool proven = least_bytes > static_cast<double>(limit);
  std::string out = fmt::format(
      "no plan{} fits {} a device: the smallest needs {} ({} bytes, {} more): parameters {}, "
      "gradients {}, optimizer {}, activations {}, inputs {}, temporary {}",
      proven ? "" : " found",
      human_bytes(limit),
      human_bytes(least.peak_bytes),
      least.peak_bytes,
      human_bytes(missing),
      human_bytes(at.parameters),
      human_bytes(at.gradients),
      human_bytes(at.optimizer),
      human_bytes(at.activations),
      human_bytes(at.inputs),
      human_bytes(at.temporary));
  const bool states = at.parameters + at.gradients + at.optimizer > at.activations + at.temporary;
  out += states ? "; more devices or a smaller optimizer would help"
                : "; a smaller batch, more microbatches or more devices would help";
  if (proven) {
    out += fmt::format("; proven: none needs less than {}",
                       human_bytes(static_cast<Bytes>(least_bytes)));
  }
  return out;
}

PlanResult conclude(const PlanRequest& request,
                    std::string_view planner,
                    const std::vector<Candidate>& candidates,
                    Bytes limit,
                    const Proof& proof,
                    const Budget& budget) {
  PlanResult result;
  result.limit = budget.limit();
  if (candidates.empty()) {
    result.explanation = result.limit == SearchLimit::kNone
                             ? fmt::format("planner {} has no plan for this model here", planner)
                             : "the search ended before it found a plan";
    return result;
  }
  const Candidate& best = candidates[pick(candidates, limit)];
  result.best = best.plan;
  result.simulation = best.simulation;
  result.best.planner = planner;
  result.best.recipe = request.recipe;
  plan::Prediction& prediction = result.best.prediction;
  prediction.memory_limit = limit;
  prediction.search_seconds = budget.watch().seconds();
  if (best.simulation.peak_bytes > limit) {
    result.status = SearchStatus::kInfeasible;
    result.explanation = infeasible_text(best.simulation, limit, proof.least_bytes);
    if (result.limit != SearchLimit::kNone && proof.least_bytes <= static_cast<double>(limit)) {
      result.explanation += "; the search was stopped before its end";
    }
    return result;
  }
  prediction.objective_seconds = least_additive_seconds(candidates, limit);
  // A plan of another mesh than those searched may be below the bound; then that is what is known.
  prediction.lower_bound_seconds = std::min(proof.lower_bound, prediction.objective_seconds);
  prediction.step_lower_bound_seconds = std::min(proof.step_lower_bound, prediction.step_seconds);
  const bool bounded = prediction.lower_bound_seconds > 0;
  prediction.gap = bounded ? prediction.objective_seconds / prediction.lower_bound_seconds - 1 : 0;
  prediction.rows = proof.rows;
  result.status =
      bounded && prediction.gap <= kOptimalGap ? SearchStatus::kOptimal : SearchStatus::kFeasible;
  return result;
}

}  // namespace shardplan::planners
