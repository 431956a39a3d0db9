#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

struct Options {
  PlanningOptions planning{};
  std::string planners{};
  std::string memory{};
};

struct Row {
  std::string planner{};
  planners::PlanResult result{};
};

Result<std::vector<const planners::PlannerInfo*>> read_planners(const std::string& text) {
  std::vector<const planners::PlannerInfo*> found;
  if (text.empty()) {
    for (const planners::PlannerInfo& planner : planners::registry()) {
      found.push_back(&planner);
    }
    return found;
  }
  for (const std::string& name : CLI::detail::split(text, ',')) {
    SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* planner, planners::find_planner(name));
    found.push_back(planner);
  }
  return found;
}

std::string verdict(const planners::PlanResult& result) {
  switch (result.status) {
    case planners::SearchStatus::kOptimal:
    case planners::SearchStatus::kFeasible:
      return "fits";
    case planners::SearchStatus::kInfeasible:
      return "too large";
    case planners::SearchStatus::kNoPlanFound:
      break;
  }
  return "no plan";
}

void print_rows(const std::vector<Row>& rows, const Planning& planning) {
  fmt::print("model     {}  {}\n", planning.model, model_text(planning.step));
  fmt::print("cluster   {}  {}\n\n", planning.cluster.name, cluster_text(planning.cluster));
  const bool finds_microbatches = !planning.alternatives.empty();
  std::vector<std::string> heads{
      "planner", "step", "not hidden", "memory", "", "mesh", "recomputed", "gap", "search"};
  if (finds_microbatches) {
    heads.emplace_back("microbatches");
  }
  TextTable table(heads);
  for (const auto& [planner, result] : rows) {
    if (result.status == planners::SearchStatus::kNoPlanFound) {
      table.add({planner, "-", "-", "-", verdict(result), result.explanation});
      continue;
    }
    const plan::Plan& plan = result.best;
    std::vector<std::string> row{planner,
                                 human_seconds(plan.prediction.step_seconds),
                                 human_seconds(result.simulation.exposed_communication_seconds),
                                 human_bytes(plan.prediction.peak_bytes),
                                 verdict(result),
                                 shape_text(plan),
                                 recompute_text(plan),
                                 plan.prediction.lower_bound_seconds > 0
                                     ? fmt::format("{:.1f} %", 100 * plan.prediction.gap)
                                     : "-",
                                 human_seconds(plan.prediction.search_seconds)};
    if (finds_microbatches) {
      row.push_back(std::to_string(plan.recipe.microbatches));
    }
    table.add(std::move(row));
  }
  fmt::print("{}\nTimes and bytes of all planners are the simulator's.\n", table.text());
  for (const auto& [planner, result] : rows) {
    if (fits(result) && !result.explanation.empty()) {
      fmt::print("{}\n", result.explanation);
    }
    if (fits(result) && result.best.pipeline && result.best.pipeline->steps > 1) {
      fmt::print("{}: asynchronous; its steps do not compute what one device does\n", planner);
    }
  }
}

Result<int> compare(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const auto planners, read_planners(options.planners));
  SHARDPLAN_ASSIGN_OR_RETURN(const Bytes memory, read_memory(options.memory));
  SHARDPLAN_ASSIGN_OR_RETURN(const Planning planning, read_planning("compare", options.planning));
  std::vector<Row> rows;
  for (const planners::PlannerInfo* planner : planners) {
    session.control.report(fmt::format("planning with {}", planner->name),
                           static_cast<double>(rows.size()) / static_cast<double>(planners.size()));
    SHARDPLAN_ASSIGN_OR_RETURN(planners::PlanResult result,
                               make_plan(*planner, planning, memory, session.control));
    rows.push_back({std::string(planner->name), std::move(result)});
  }
  if (session.json) {
    nlohmann::ordered_json object;
    object["plans"] = nlohmann::ordered_json::array();
    for (const auto& [planner, result] : rows) {
      object["plans"].push_back(plan_json(result, planner));
    }
    print_json(object);
  } else {
    clear_progress();
    print_rows(rows, planning);
  }
  if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return fits(row.result); })) {
    return Error{ErrorCode::kInfeasible,
                 fmt::format("no planner fits the memory; {}", rows.back().result.explanation),
                 "",
                 {}};
  }
  return 0;
}

}  // namespace

Action add_compare(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  options->planning.finds_microbatches = true;
  add_planning_options(app, options->planning);
  app.add_option("--planners", options->planners, "names with commas between; default: all");
  app.add_option("--memory", options->memory, "limit of each device; default: its memory");
  return [options](const Session& session) { return compare(*options, session); };
}

}  // namespace shardplan::cli
