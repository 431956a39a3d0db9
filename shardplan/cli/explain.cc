#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

using planners::LayerExplanation;

struct Options {
  std::string plan{};
  bool all = false;
  bool program = false;
};

nlohmann::ordered_json to_object(const plan::Plan& plan,
                                 const ir::Graph& step,
                                 const std::vector<LayerExplanation>& layers) {
  nlohmann::ordered_json object;
  object["planner"] = plan.planner;
  object["model"] = plan.model;
  object["cluster"] = plan.cluster.name;
  object["layers"] = nlohmann::ordered_json::array();
  for (const LayerExplanation& layer : layers) {
    nlohmann::ordered_json row;
    row["layer"] = layer.layer;
    row["choice"] = layer.choice;
    row["recomputed"] = layer.recomputed;
    row["compute_seconds"] = layer.compute_seconds;
    row["communication_seconds"] = layer.communication_seconds;
    row["parameter_bytes"] = layer.parameter_bytes;
    row["activation_bytes"] = layer.activation_bytes;
    row["next_best"] = layer.next_best;
    row["next_best_loss_seconds"] = layer.next_best_loss;
    object["layers"].push_back(std::move(row));
  }
  object["whole_calls"] = nlohmann::ordered_json::array();
  for (const planners::WholeCall& call : planners::whole_calls(plan, step)) {
    object["whole_calls"].push_back(
        {{"target", call.target}, {"count", call.count}, {"seconds", call.seconds}});
  }
  return object;
}

/// "einsum: data=s" for "einsum.58: data=s": the same op of every block has another number.
std::string without_number(const std::string& next_best) {
  const std::size_t dot = next_best.find('.');
  const std::size_t colon = next_best.find(':');
  return dot < colon && colon != std::string::npos
             ? next_best.substr(0, dot) + next_best.substr(colon)
             : next_best;
}

/// Whether two blocks would print the same row.
bool same_row(const LayerExplanation& a, const LayerExplanation& b) {
  return a.choice == b.choice && a.recomputed == b.recomputed &&
         without_number(a.next_best) == without_number(b.next_best) &&
         human_seconds(a.next_best_loss) == human_seconds(b.next_best_loss) &&
         human_seconds(a.compute_seconds) == human_seconds(b.compute_seconds) &&
         human_seconds(a.communication_seconds) == human_seconds(b.communication_seconds) &&
         a.parameter_bytes == b.parameter_bytes && a.activation_bytes == b.activation_bytes;
}

/// "563 µs more"; a search that was cut short may have left a choice that costs less.
std::string next_best_costs(const LayerExplanation& layer) {
  if (layer.next_best.empty()) {
    return "-";
  }
  return layer.next_best_loss < 0 ? human_seconds(-layer.next_best_loss) + " less"
                                  : human_seconds(layer.next_best_loss) + " more";
}

/// "transformer.h.0–11" for the blocks transformer.h.0 to transformer.h.11.
std::string name_of(const LayerExplanation& first, const LayerExplanation& last) {
  if (first.layer.empty()) {
    return "(outside blocks)";
  }
  if (first.layer == last.layer) {
    return first.layer;
  }
  const std::string number = last.layer.substr(last.layer.rfind('.') + 1);
  return fmt::format("{}–{}", first.layer, number);
}

void print_layers(const plan::Plan& plan, const std::vector<LayerExplanation>& layers, bool all) {
  fmt::print("plan      {} of {} on {}, mesh {}\n\n",
             plan.planner,
             plan.model,
             plan.cluster.name,
             cluster::to_string(plan.mesh));
  TextTable table({"block",
                   "compute",
                   "communication",
                   "weights",
                   "activations",
                   "recomputed",
                   "choice",
                   "next best costs",
                   "namely"});
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t last = first;
    while (!all && last + 1 < layers.size() && same_row(layers[first], layers[last + 1])) {
      ++last;
    }
    const LayerExplanation& layer = layers[first];
    table.add({name_of(layer, layers[last]),
               human_seconds(layer.compute_seconds),
               human_seconds(layer.communication_seconds),
               human_bytes(layer.parameter_bytes),
               human_bytes(layer.activation_bytes),
               layer.recomputed ? "yes" : "no",
               layer.choice,
               next_best_costs(layer),
               first == last ? layer.next_best : without_number(layer.next_best)});
    first = last + 1;
  }
  fmt::print(
      "{}\nTimes are of one step; weights include gradients and optimizer state; a row for "
      "several\nblocks says what each of them takes.\n",
      table.text());
}

/// Prints the table, or returns its object.
Result<nlohmann::ordered_json> explain_one(const plan::Plan& plan,
                                           const ir::Graph& step,
                                           const Options& options,
                                           const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<LayerExplanation> layers,
                             planners::explain(plan, step));
  if (session.json) {
    return to_object(plan, step, layers);
  }
  clear_progress();
  print_layers(plan, layers, options.all);
  print_whole_calls(planners::whole_calls(plan, step));
  return nlohmann::ordered_json();
}

/// Its number; of a copy, what it is a copy of.
std::string stage_text(const lower::PipelineProgram& program, std::size_t stage) {
  const auto stages = static_cast<std::size_t>(program.schedule.stages);
  return stage < stages
             ? fmt::format("{}", stage)
             : fmt::format("{}: stage {} of pipeline {}", stage, stage % stages, stage / stages);
}

Result<int> explain(const Options& options, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.plan, "explain", "a PLAN file"));
  SHARDPLAN_ASSIGN_OR_RETURN(const LoadedPlan loaded, load_plan(options.plan));
  if (options.program && !loaded.pipeline) {
    fmt::print("{}", lower::print(loaded.program, loaded.step));
    return 0;
  }
  for (std::size_t s = 0; options.program && s < loaded.pipeline->stages.size(); ++s) {
    fmt::print("stage {}\n{}",
               stage_text(*loaded.pipeline, s),
               lower::print(loaded.pipeline->programs[s], loaded.pipeline->stages[s].graph));
  }
  if (options.program) {
    return 0;
  }
  if (loaded.pipeline) {
    nlohmann::ordered_json stages = nlohmann::ordered_json::array();
    for (std::size_t s = 0; s < loaded.pipeline->stages.size(); ++s) {
      if (!session.json) {
        fmt::print("stage     {}\n", stage_text(*loaded.pipeline, s));
      }
      SHARDPLAN_ASSIGN_OR_RETURN(
          nlohmann::ordered_json stage,
          explain_one(
              loaded.plan.pipeline->stages[s], loaded.pipeline->stages[s].graph, options, session));
      stages.push_back(std::move(stage));
    }
    if (session.json) {
      print_json({{"stages", std::move(stages)}});
    }
    return 0;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json object,
                             explain_one(loaded.plan, loaded.step, options, session));
  if (session.json) {
    print_json(object);
  }
  return 0;
}

}  // namespace

Action add_explain(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("PLAN", options->plan, "file that shardplan plan wrote");
  app.add_flag("--all", options->all, "a row for every block, also where they are equal");
  app.add_flag("--program", options->program, "the instructions that every device runs instead");
  return [options](const Session& session) { return explain(*options, session); };
}

}  // namespace shardplan::cli
