#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/sim/sim.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

struct Options {
  ModelOptions model{};
  RecipeOptions recipe{};
};

/// Operators that run by their PyTorch names, with the number of calls.
std::map<std::string, int> called_operators(const ir::Graph& step) {
  std::map<std::string, int> calls;
  for (const ir::Op& op : step.ops()) {
    if (op.name == "call") {
      ++calls[op.attributes.string("target")];
    }
  }
  return calls;
}

nlohmann::ordered_json to_object(const sim::Profile& profile,
                                 const ir::Graph& step,
                                 Seconds seconds) {
  nlohmann::ordered_json object;
  object["parameters"] = profile.parameters;
  object["parameter_bytes"] = profile.parameter_bytes;
  object["forward_flops"] = whole(profile.forward_flops);
  object["backward_flops"] = whole(profile.backward_flops);
  object["forward_bytes"] = profile.forward_bytes;
  object["backward_bytes"] = profile.backward_bytes;
  object["saved_activation_bytes"] = profile.saved_activation_bytes;
  object["peak_bytes"] = profile.peak_bytes;
  object["memory_at_peak"] = memory_json(profile.at_peak);
  object["seconds"] = seconds;
  object["called_operators"] = called_operators(step);
  object["layers"] = nlohmann::ordered_json::array();
  for (const sim::LayerProfile& layer : profile.layers) {
    nlohmann::ordered_json row;
    row["layer"] = layer.layer;
    row["parameters"] = layer.parameters;
    row["forward_flops"] = whole(layer.forward_flops);
    row["backward_flops"] = whole(layer.backward_flops);
    row["saved_activation_bytes"] = layer.saved_activation_bytes;
    object["layers"].push_back(std::move(row));
  }
  return object;
}

void print_called(const ir::Graph& step) {
  std::string text;
  for (const auto& [target, count] : called_operators(step)) {
    text += fmt::format("{}{} {}×", text.empty() ? "" : ", ", target, count);
  }
  if (!text.empty()) {
    fmt::print("called    by their PyTorch names: {}\n\n", text);
  }
}

void print_table(const sim::Profile& profile,
                 const ir::Graph& step,
                 const std::string& model,
                 Seconds seconds) {
  fmt::print("model     {}  {}\n", model, model_text(step));
  fmt::print("weights   {}\n", human_bytes(profile.parameter_bytes));
  fmt::print("forward   {}  {} read and written\n",
             human_flops(profile.forward_flops),
             human_bytes(profile.forward_bytes));
  fmt::print("backward  {}  {} read and written\n",
             human_flops(profile.backward_flops),
             human_bytes(profile.backward_bytes));
  fmt::print("saved     {} of activations, from the forward to the backward pass\n",
             human_bytes(profile.saved_activation_bytes));
  fmt::print("peak      {}  {}\n\n", human_bytes(profile.peak_bytes), memory_text(profile.at_peak));
  print_called(step);
  TextTable table({"block", "parameters", "forward", "backward", "saved"});
  for (const sim::LayerProfile& layer : profile.layers) {
    table.add({layer.layer.empty() ? "(outside blocks)" : layer.layer,
               human_count(static_cast<double>(layer.parameters)),
               human_flops(layer.forward_flops),
               human_flops(layer.backward_flops),
               human_bytes(layer.saved_activation_bytes)});
  }
  fmt::print(
      "{}\nFLOPs count 2 for a multiply-add. Peak: forward, backward and update on one "
      "device. Took {}.\n",
      table.text(),
      human_seconds(seconds));
}

Result<int> profile_model(const Options& options, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.model.model, "profile", "a MODEL"));
  SHARDPLAN_ASSIGN_OR_RETURN(const plan::Binding binding, read_binding(options.model));
  SHARDPLAN_ASSIGN_OR_RETURN(const training::Recipe recipe, read_recipe(options.recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward,
                             load_model(options.model.model, binding, false));
  const Seconds start = now();
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph step, training::build_training_step(forward, recipe));
  const sim::Profile profile = sim::profile(step);
  const Seconds seconds = now() - start;
  if (session.json) {
    print_json(to_object(profile, step, seconds));
  } else {
    print_table(profile, step, options.model.model, seconds);
  }
  return 0;
}

}  // namespace

Action add_profile(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  add_model_options(app, options->model);
  add_recipe_options(app, options->recipe);
  return [options](const Session& session) { return profile_model(*options, session); };
}

}  // namespace shardplan::cli
