#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/sim/sim.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

struct Options {
  std::string plan{};
  std::string trace{};
};

nlohmann::ordered_json to_object(const Predicted& predicted) {
  const sim::Simulation& simulation = predicted.simulation;
  nlohmann::ordered_json object;
  object["step_seconds"] = simulation.step_seconds;
  object["additive_seconds"] = simulation.additive_seconds;
  object["compute_seconds"] = simulation.compute_seconds;
  object["communication_seconds"] = simulation.communication_seconds;
  object["exposed_communication_seconds"] = simulation.exposed_communication_seconds;
  object["peak_bytes"] = predicted.peak_bytes;
  object["memory_at_peak"] = memory_json(simulation.at_peak);
  object["flops_per_device"] = whole(simulation.flops);
  return object;
}

Result<int> simulate(const Options& options, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.plan, "simulate", "a PLAN file"));
  SHARDPLAN_ASSIGN_OR_RETURN(const LoadedPlan loaded, load_plan(options.plan));
  SHARDPLAN_ASSIGN_OR_RETURN(const Predicted predicted, predict(loaded, !options.trace.empty()));
  const sim::Simulation& simulation = predicted.simulation;
  if (!options.trace.empty()) {
    SHARDPLAN_RETURN_IF_ERROR(write_file(options.trace, predicted.trace));
  }
  if (session.json) {
    nlohmann::ordered_json object = to_object(predicted);
    if (!options.trace.empty()) {
      object["trace"] = options.trace;
    }
    print_json(object);
    return 0;
  }
  fmt::print("plan      {} of {} on {}, mesh {}\n",
             loaded.plan.planner,
             loaded.plan.model,
             loaded.plan.cluster.name,
             shape_text(loaded.plan));
  fmt::print("step      {}\n", human_seconds(simulation.step_seconds));
  fmt::print("compute   {}\n", human_seconds(simulation.compute_seconds));
  if (loaded.pipeline) {
    fmt::print("idle      {}  bubbles and communication not hidden, on the busiest device\n",
               human_seconds(simulation.exposed_communication_seconds));
  } else {
    fmt::print("transfers {}  {} of it not hidden\n",
               human_seconds(simulation.communication_seconds),
               human_seconds(simulation.exposed_communication_seconds));
  }
  fmt::print("memory    {} on {} of {} devices  {}\n",
             human_bytes(simulation.peak_bytes),
             loaded.pipeline ? "the fullest" : "each",
             loaded.ranks(),
             memory_text(simulation.at_peak));
  if (!options.trace.empty()) {
    fmt::print("wrote     {}  open it at ui.perfetto.dev or chrome://tracing\n", options.trace);
  }
  return 0;
}

}  // namespace

Action add_simulate(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("PLAN", options->plan, "file that shardplan plan wrote");
  app.add_option("--trace", options->trace, "file for the timeline, in Chrome's trace format");
  return [options](const Session& session) { return simulate(*options, session); };
}

}  // namespace shardplan::cli
