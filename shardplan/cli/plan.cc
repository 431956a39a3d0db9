#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/cli/sweep.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

struct Options {
  PlanningOptions planning{};
  std::string planner = "map";
  std::string memory{};
  std::string sweep{};
  std::string output{};
};

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
  const ir::Graph& graph = planning.step_of(plan);
  fmt::print("model     {}  {}\n", plan.model, model_text(graph));
  fmt::print("cluster   {}  {}\n", plan.cluster.name, cluster_text(plan.cluster));
  fmt::print("planner   {}  found in {}{}\n",
             plan.planner,
             human_seconds(prediction.search_seconds),
             result.limit == planners::SearchLimit::kNone          ? ""
             : result.limit == planners::SearchLimit::kInterrupted ? ", interrupted"
                                                                   : ", stopped by its time limit");
  if (!planning.alternatives.empty()) {
    std::vector<std::int64_t> tried;
    tried.reserve(planning.alternatives.size());
    for (const Planning::Alternative& alternative : planning.alternatives) {
      tried.push_back(alternative.recipe.microbatches);
    }
    std::sort(tried.begin(), tried.end());
    fmt::print("batch     in {} microbatch{}, the fastest {}of {}\n",
               plan.recipe.microbatches,
               plan.recipe.microbatches == 1 ? "" : "es",
               result.limit == planners::SearchLimit::kNone ? "" : "so far ",
               fmt::join(tried, ", "));
  }
  fmt::print("mesh      {}\n", shape_text(plan));
  std::string step = human_seconds(prediction.step_seconds);
  const double part = part_of_peak(result, graph);
  if (part > 0) {
    step += fmt::format("  {:.0f} % of peak", 100 * part);
  }
  if (prediction.step_seconds > 0) {
    step += fmt::format(
        " · {:.0f} % of it {}",
        100 * result.simulation.exposed_communication_seconds / prediction.step_seconds,
        plan.pipeline ? "bubbles and communication not hidden" : "communication not hidden");
  }
  fmt::print("step      {}\n", step);
  if (prediction.lower_bound_seconds > 0) {
    print_proof(prediction);
  } else if (prediction.step_lower_bound_seconds > 0) {
    fmt::print("proof     no step below {}, at the devices' rate of matrix products\n",
               human_seconds(prediction.step_lower_bound_seconds));
  }
  fmt::print("memory    {} of {}  {}\n",
             human_bytes(prediction.peak_bytes),
             human_bytes(prediction.memory_limit > 0 ? prediction.memory_limit
                                                     : plan.cluster.device.memory),
             memory_text(result.simulation.at_peak));
  fmt::print("recompute {}\n", recompute_text(plan));
  print_remarks(result);
  if (!plan.pipeline) {
    print_whole_calls(planners::whole_calls(plan, graph));
  }
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
    SHARDPLAN_RETURN_IF_ERROR(
        write_file(output, plan::to_json(result.best, planning.step_of(result.best))));
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

/// Options that contradict each other.
Status check_sweep(const Options& options) {
  const bool over_memory = options.memory.find(':') != std::string::npos;
  const bool over_microbatches = sweeps_microbatches(options.sweep);
  const bool over_devices = !options.sweep.empty() && !over_microbatches;
  if (!over_memory && options.sweep.empty()) {
    return {};
  }
  if (options.planning.recipe.microbatches == kAuto) {
    return invalid_input("is auto, which is a search for one plan; give a number with a sweep",
                         "--microbatches");
  }
  if (over_microbatches && options.planning.recipe.microbatches != "1") {
    return invalid_input("is one number of them; leave it out of a --sweep of microbatches",
                         "--microbatches");
  }
  if (!options.output.empty() && !over_microbatches) {
    return invalid_input(
        "a sweep makes several plans and -o takes one; plan again without the sweep to keep it",
        "-o");
  }
  if (over_memory && !options.sweep.empty()) {
    return invalid_input(fmt::format("sweeps {}, and --memory sweeps memory; sweep one of them",
                                     over_devices ? "devices" : "microbatches"),
                         "--sweep");
  }
  if (over_devices && !options.planning.mesh.empty()) {
    return invalid_input("is a mesh of one number of devices; leave it out of a --sweep of devices",
                         "--mesh");
  }
  return {};
}

Result<int> plan_model(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* planner,
                             planners::find_planner(options.planner));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<Bytes> limits, read_limits(options.memory));
  SHARDPLAN_RETURN_IF_ERROR(check_sweep(options));
  SHARDPLAN_ASSIGN_OR_RETURN(const Planning planning, read_planning("plan", options.planning));
  if (sweeps_microbatches(options.sweep)) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<Planning> plannings,
                               read_microbatch_sweep(options.sweep, planning));
    return sweep_microbatches(*planner, plannings, limits.front(), options.output, session);
  }
  if (!options.sweep.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<cluster::Cluster> clusters,
                               read_device_sweep(options.sweep, planning.cluster));
    return sweep_devices(*planner, planning, clusters, limits.front(), session);
  }
  if (options.memory.find(':') != std::string::npos) {
    return sweep_memory(*planner, planning, limits, session);
  }
  return plan_once(*planner, planning, limits.front(), options.output, session);
}

}  // namespace

Action add_plan(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  options->planning.finds_microbatches = true;
  add_planning_options(app, options->planning);
  app.add_option("--planner", options->planner, "who plans (shardplan planners)")
      ->capture_default_str();
  app.add_option("--memory",
                 options->memory,
                 "limit of each device, such as 20GiB, or a sweep FROM:TO:STEP; default: the "
                 "device's memory");
  app.add_option("--sweep",
                 options->sweep,
                 "devices: plan for 1, 2, 4, ... of the cluster's devices; microbatches: for the "
                 "batch in every number of them (many: 1, 2, 4, ...); devices=1,2,8 or "
                 "microbatches=4,8: for these "
                 "numbers");
  app.add_option("-o,--output", options->output, "file for the plan");
  return [options](const Session& session) { return plan_model(*options, session); };
}

}  // namespace shardplan::cli
