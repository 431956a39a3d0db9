#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

constexpr std::size_t kMostLimits = 1000;

struct Options {
  PlanningOptions planning{};
  std::string planner = "map";
  std::string memory{};
  std::string output{};
};

/// "20GiB:80GiB:5GiB" as a list of limits; one limit for anything without a colon.
Result<std::vector<Bytes>> read_limits(const std::string& text) {
  if (text.find(':') == std::string::npos) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Bytes one, read_memory(text));
    return std::vector<Bytes>{one};
  }
  const std::vector<std::string> parts = CLI::detail::split(text, ':');
  if (parts.size() != 3) {
    return invalid_input(
        fmt::format("'{}' is no sweep; write FROM:TO:STEP, such as 20GiB:80GiB:5GiB", text),
        "--memory");
  }
  std::vector<Bytes> ends;
  for (const std::string& part : parts) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Bytes end, read_memory(part.empty() ? "''" : part));
    ends.push_back(end);
  }
  if (ends[1] < ends[0]) {
    return invalid_input(fmt::format("'{}' ends below its start", text), "--memory");
  }
  std::vector<Bytes> limits;
  for (Bytes limit = ends[0]; limit <= ends[1]; limit += ends[2]) {
    limits.push_back(limit);
    if (limits.size() > kMostLimits) {
      return invalid_input(
          fmt::format("'{}' has more than {} limits; make the step larger", text, kMostLimits),
          "--memory");
    }
  }
  return limits;
}

Error infeasible(const planners::PlanResult& result, const std::string& planner) {
  if (result.status == planners::SearchStatus::kNoPlanFound) {
    return Error{ErrorCode::kInfeasible,
                 result.explanation.empty()
                     ? fmt::format("{} found no plan; give it more time (--time-limit)", planner)
                     : result.explanation,
                 "",
                 {}};
  }
  return Error{ErrorCode::kInfeasible, result.explanation, "", {}};
}

/// The sums of all kernels and collectives, the simulated time, and what is proven of both.
void print_proof(const plan::Prediction& prediction) {
  fmt::print(
      "proof     all kernels and collectives {} · least found {}, none below {} (gap {:.2f} %)\n",
      human_seconds(prediction.additive_seconds),
      human_seconds(prediction.objective_seconds),
      human_seconds(prediction.lower_bound_seconds),
      100 * prediction.gap);
  if (prediction.step_lower_bound_seconds > 0) {
    fmt::print("          no step below {}, however well communication hides\n",
               human_seconds(prediction.step_lower_bound_seconds));
  }
  for (const plan::BindingRow& row : prediction.rows) {
    fmt::print("binds     {} at {}: 1 GiB more there is worth up to {}\n",
               human_bytes(row.bytes),
               row.where,
               human_seconds(row.seconds_per_gib));
  }
}

void print_summary(const planners::PlanResult& result,
                   const Planning& planning,
                   const std::string& output) {
  const plan::Plan& plan = result.best;
  const plan::Prediction& prediction = plan.prediction;
  fmt::print("model     {}  {}\n", plan.model, model_text(planning.step));
  fmt::print("cluster   {}  {}\n", plan.cluster.name, cluster_text(plan.cluster));
  fmt::print("planner   {}  found in {}{}\n",
             plan.planner,
             human_seconds(prediction.search_seconds),
             result.limit == planners::SearchLimit::kNone          ? ""
             : result.limit == planners::SearchLimit::kInterrupted ? ", interrupted"
                                                                   : ", stopped by its time limit");
  fmt::print("mesh      {}\n", cluster::to_string(plan.mesh));
  std::string step = human_seconds(prediction.step_seconds);
  const double part = part_of_peak(result, planning.step);
  if (part > 0) {
    step += fmt::format("  {:.0f} % of peak", 100 * part);
  }
  if (prediction.step_seconds > 0) {
    step += fmt::format(
        " · {:.0f} % of it communication not hidden",
        100 * result.simulation.exposed_communication_seconds / prediction.step_seconds);
  }
  fmt::print("step      {}\n", step);
  if (prediction.lower_bound_seconds > 0) {
    print_proof(prediction);
  }
  fmt::print("memory    {} of {}  {}\n",
             human_bytes(prediction.peak_bytes),
             human_bytes(prediction.memory_limit > 0 ? prediction.memory_limit
                                                     : plan.cluster.device.memory),
             memory_text(result.simulation.at_peak));
  fmt::print("recompute {}\n", recompute_text(plan));
  if (output.empty()) {
    fmt::print("wrote     nothing; give -o plan.json to keep the plan\n");
  } else {
    fmt::print("wrote     {}  explain it: shardplan explain {}\n", output, output);
  }
}

Result<int> plan_once(const planners::PlannerInfo& planner,
                      const Planning& planning,
                      Bytes limit,
                      const std::string& output,
                      const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlanResult result,
                             make_plan(planner, planning, limit, session.control));
  const std::string name(planner.name);
  if (!fits(result)) {
    if (session.json) {
      print_json(plan_json(result, name));
    }
    return infeasible(result, name);
  }
  if (!output.empty()) {
    SHARDPLAN_RETURN_IF_ERROR(write_file(output, plan::to_json(result.best, planning.step)));
  }
  if (session.json) {
    nlohmann::ordered_json object = plan_json(result, name);
    if (!output.empty()) {
      object["file"] = output;
    }
    print_json(object);
  } else {
    clear_progress();
    print_summary(result, planning, output);
  }
  return 0;
}

/// Plans that no other plan of the list beats in both time and memory, by growing memory.
std::vector<const planners::PlanResult*> pareto(const std::vector<planners::PlanResult>& results) {
  std::vector<const planners::PlanResult*> order;
  for (const planners::PlanResult& result : results) {
    if (fits(result)) {
      order.push_back(&result);
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const plan::Prediction& x = a->best.prediction;
    const plan::Prediction& y = b->best.prediction;
    return std::tie(x.peak_bytes, x.step_seconds) < std::tie(y.peak_bytes, y.step_seconds);
  });
  std::vector<const planners::PlanResult*> kept;
  for (const auto* candidate : order) {
    if (kept.empty() ||
        candidate->best.prediction.step_seconds < kept.back()->best.prediction.step_seconds) {
      kept.push_back(candidate);
    }
  }
  return kept;
}

Result<int> sweep(const planners::PlannerInfo& planner,
                  const Planning& planning,
                  const std::vector<Bytes>& limits,
                  const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<planners::PlanResult> results,
                             make_plans(planner, planning, limits, session.control));
  const std::string name(planner.name);
  const auto kept = pareto(results);
  if (session.json) {
    nlohmann::ordered_json object;
    object["plans"] = nlohmann::ordered_json::array();
    for (const auto* result : kept) {
      object["plans"].push_back(plan_json(*result, name));
    }
    print_json(object);
  } else if (!kept.empty()) {
    clear_progress();
    TextTable table({"memory", "step", "mesh", "recomputed", "limit"});
    for (const auto* result : kept) {
      const plan::Plan& plan = result->best;
      table.add({human_bytes(plan.prediction.peak_bytes),
                 human_seconds(plan.prediction.step_seconds),
                 cluster::to_string(plan.mesh),
                 recompute_text(plan),
                 human_bytes(plan.prediction.memory_limit)});
    }
    fmt::print("{}", table.text());
  }
  if (kept.empty()) {
    return infeasible(results.back(), name);
  }
  return 0;
}

Result<int> plan_model(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* planner,
                             planners::find_planner(options.planner));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<Bytes> limits, read_limits(options.memory));
  const bool sweeping = options.memory.find(':') != std::string::npos;
  if (sweeping && !options.output.empty()) {
    return invalid_input(
        "a sweep makes several plans and -o takes one; plan again with one --memory to keep it",
        "-o");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const Planning planning, read_planning("plan", options.planning));
  if (sweeping) {
    return sweep(*planner, planning, limits, session);
  }
  return plan_once(*planner, planning, limits.front(), options.output, session);
}

}  // namespace

Action add_plan(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  add_planning_options(app, options->planning);
  app.add_option("--planner", options->planner, "who plans (shardplan planners)")
      ->capture_default_str();
  app.add_option("--memory",
                 options->memory,
                 "limit of each device, such as 20GiB, or a sweep FROM:TO:STEP; default: the "
                 "device's memory");
  app.add_option("-o,--output", options->output, "file for the plan");
  return [options](const Session& session) { return plan_model(*options, session); };
}

}  // namespace shardplan::cli
