#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "shardplan/planners/evaluate.h"
#include "shardplan/planners/intra/expert.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/published.h"
#include "shardplan/planners/pipeline/shardplan.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {

const std::vector<PlannerInfo>& registry() {
  static const std::vector<PlannerInfo> planners = [] {
    std::vector<PlannerInfo> all{map_planner(), shardplan_planner()};
    const std::vector<PlannerInfo> experts = expert_planners();
    all.insert(all.end(), experts.begin(), experts.end());
    const std::vector<PlannerInfo> published = published_planners();
    all.insert(all.end(), published.begin(), published.end());
    return all;
  }();
  return planners;
}

Result<const PlannerInfo*> find_planner(std::string_view name) {
  std::vector<std::string> names;
  for (const PlannerInfo& planner : registry()) {
    if (planner.name == name) {
      return &planner;
    }
    names.emplace_back(planner.name);
  }
  const std::string close = suggest(name, names);
  return Error{ErrorCode::kNotFound,
               fmt::format("unknown planner '{}'{}",
                           name,
                           close.empty() ? "" : fmt::format("; did you mean '{}'?", close)),
               {},
               {"list them with: shardplan planners"}};
}

Result<std::vector<PlanResult>> sweep(const PlannerInfo& planner,
                                      const PlanRequest& request,
                                      const std::vector<Bytes>& limits) {
  if (planner.sweep != nullptr) {
    return planner.sweep(request, limits);
  }
  std::vector<PlanResult> results;
  for (const Bytes limit : limits) {
    PlanRequest one = request;
    one.memory_limit = limit;
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult result, planner.plan(one));
    results.push_back(std::move(result));
  }
  return results;
}

bool fits(const PlanResult& result) {
  return result.status == SearchStatus::kOptimal || result.status == SearchStatus::kFeasible;
}

namespace {

/// Whether the first is the better answer.
bool better(const PlanResult& a, const PlanResult& b) {
  if (fits(a) != fits(b)) {
    return fits(a);
  }
  if (fits(a)) {
    return a.best.prediction.step_seconds < b.best.prediction.step_seconds;
  }
  const bool none = a.status == SearchStatus::kNoPlanFound;
  if (none || b.status == SearchStatus::kNoPlanFound) {
    return !none && b.status == SearchStatus::kNoPlanFound;
  }
  return a.simulation.peak_bytes < b.simulation.peak_bytes;
}

}  // namespace

Result<Fastest> plan_fastest(const PlannerInfo& planner, const std::vector<PlanRequest>& requests) {
  SHARDPLAN_CHECK(!requests.empty());
  const Budget budget(requests.front());
  Result<Fastest> best = unsupported("no request has been answered");
  Seconds bound = std::numeric_limits<Seconds>::infinity();
  for (std::size_t i = 0; i < requests.size() && !(best && budget.exhausted()); ++i) {
    PlanRequest request = requests[i];
    request.time_limit = budget.remaining();
    if (best && fits(best->result)) {
      request.worth = best->result.best.prediction.step_seconds;
    }
    Result<PlanResult> made = planner.plan(request);
    if (!made) {
      if (i == 0) {
        best = std::move(made).error();
      }
      continue;
    }
    bound = std::min(bound, made->best.prediction.step_lower_bound_seconds);
    if (!best || better(*made, best->result)) {
      best = Fastest{i, *std::move(made)};
    }
  }
  if (!best || requests.size() == 1) {
    return best;
  }
  PlanResult& result = best->result;
  result.limit = budget.limit();
  const bool ended = result.limit == SearchLimit::kNone;
  plan::Prediction& prediction = result.best.prediction;
  prediction.search_seconds = budget.watch().seconds();
  // What is proven of one request says nothing of the others; a bound that all have does.
  prediction.lower_bound_seconds = 0;
  prediction.gap = 0;
  prediction.rows.clear();
  prediction.step_lower_bound_seconds = ended ? bound : 0;
  if (result.status == SearchStatus::kOptimal) {
    result.status = SearchStatus::kFeasible;
  } else if (result.status == SearchStatus::kInfeasible) {
    result.explanation =
        infeasible_text(result.simulation, memory_limit(requests[best->request]), 0);
    result.explanation += ended ? "" : "; the search was stopped before its end";
  }
  return best;
}

}  // namespace shardplan::planners
