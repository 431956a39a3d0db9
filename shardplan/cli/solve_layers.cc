#include "shardplan/cli/solve_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/planners/layer_planner.h"
#include "shardplan/problem/layer_graph_json.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

using planners::LayerPlannerInfo;
using planners::LayerPlanResult;
using problem::LayerGraph;
using problem::LayerMachines;
using problem::LayerStage;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<double> read_bytes(const std::string& text, const std::string& option) {
  Result<Bytes> bytes = parse_bytes(text);
  if (!bytes) {
    return invalid_input(bytes.error().message, option);
  }
  if (*bytes <= 0) {
    return invalid_input(fmt::format("'{}' must be more than 0", text), option);
  }
  return static_cast<double>(*bytes);
}

Result<LayerMachines> read_machines(const LayerSolveOptions& options) {
  LayerMachines machines;
  machines.devices = options.devices;
  machines.cpus = options.cpus;
  machines.microbatches = options.microbatches;
  if (!options.memory.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(machines.memory_bytes, read_bytes(options.memory, "--memory"));
  }
  if (!options.bandwidth.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(machines.bandwidth, read_bytes(options.bandwidth, "--bandwidth"));
  }
  for (const std::string& level :
       options.hierarchy.empty() ? std::vector<std::string>{} : split(options.hierarchy, 'x')) {
    int count = 0;
    const auto [rest, failed] = std::from_chars(level.data(), level.data() + level.size(), count);
    if (failed != std::errc{} || rest != level.data() + level.size()) {
      return invalid_input(
          fmt::format("'{}' is no hierarchy; write the machines of each level, from "
                      "the devices of a server up, as 4x4",
                      options.hierarchy),
          "--hierarchy");
    }
    machines.hierarchy.push_back(count);
  }
  for (const std::string& one :
       options.bandwidths.empty() ? std::vector<std::string>{} : split(options.bandwidths, ',')) {
    SHARDPLAN_ASSIGN_OR_RETURN(const double bandwidth, read_bytes(one, "--bandwidths"));
    machines.bandwidths.push_back(bandwidth);
  }
  return machines;
}

Result<std::map<std::string, std::string>> read_settings(const LayerSolveOptions& options) {
  std::map<std::string, std::string> settings;
  for (const std::string& one : options.settings) {
    const std::size_t sign = one.find('=');
    if (sign == std::string::npos || sign == 0) {
      return invalid_input(fmt::format("'{}' is no setting; write NAME=VALUE", one), "--option");
    }
    if (!settings.emplace(one.substr(0, sign), one.substr(sign + 1)).second) {
      return invalid_input(fmt::format("'{}' is given twice", one.substr(0, sign)), "--option");
    }
  }
  return settings;
}

std::string_view status_name(planners::SearchStatus status) {
  switch (status) {
    case planners::SearchStatus::kOptimal:
      return "optimal";
    case planners::SearchStatus::kFeasible:
      return "feasible";
    case planners::SearchStatus::kInfeasible:
      return "infeasible";
    case planners::SearchStatus::kNoPlanFound:
      return "unknown";
  }
  return "";
}

const problem::LayerChoice& choice_of(const LayerGraph& graph,
                                      const LayerStage& stage,
                                      std::size_t i) {
  const problem::Layer& layer = graph.layers[static_cast<std::size_t>(stage.layers[i])];
  return layer.choices[stage.choices.empty() ? 0 : static_cast<std::size_t>(stage.choices[i])];
}

nlohmann::ordered_json stages_json(const LayerGraph& graph, const std::vector<LayerStage>& stages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LayerStage& stage : stages) {
    nlohmann::ordered_json object;
    object["replicas"] = stage.replicas;
    object["degree"] = stage.degree;
    if (stage.on_cpu) {
      object["on_cpu"] = true;
    }
    if (!stage.devices.empty()) {
      object["devices"] = stage.devices;
    }
    object["time"] = stage.time;
    object["memory_bytes"] = stage.memory_bytes;
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    nlohmann::ordered_json choices = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      layers.push_back(graph.layers[static_cast<std::size_t>(stage.layers[i])].id);
      choices.push_back(choice_of(graph, stage, i).name);
    }
    object["layers"] = layers;
    if (!stage.choices.empty()) {
      object["choices"] = choices;
    }
    if (!stage.inner.empty()) {
      object["inner"] = stages_json(graph, stage.inner);
    }
    list.push_back(object);
  }
  return list;
}

nlohmann::ordered_json result_json(const LayerGraph& graph,
                                   const LayerPlannerInfo& planner,
                                   const LayerPlanResult& result,
                                   Seconds seconds) {
  const bool found = !result.best.stages.empty();
  nlohmann::ordered_json object;
  object["planner"] = planner.name;
  object["status"] = status_name(result.status);
  object["objective"] = found ? number_or_null(result.objective) : nlohmann::ordered_json();
  object["unit"] = graph.time_unit;
  object["objective_of"] = planner.per;
  object["lower_bound"] = number_or_null(result.lower_bound);
  object["seconds"] = seconds;
  object["stopped_by"] = limit_name(result.limit);
  object["explanation"] = result.explanation;
  object["cannot"] = planner.cannot;
  object["schedule"] = result.best.schedule;
  object["pipelines"] = result.best.pipelines;
  object["microbatches"] = result.best.microbatches;
  object["stages"] = stages_json(graph, result.best.stages);
  return object;
}

/// "12: embed … pooler": how many layers a stage has, the first and the last.
std::string layers_text(const LayerGraph& graph, const LayerStage& stage) {
  if (stage.layers.empty()) {
    return "0";
  }
  const auto name = [&](int v) {
    const problem::Layer& layer = graph.layers[static_cast<std::size_t>(v)];
    return layer.id;
  };
  return stage.layers.size() == 1 ? fmt::format("1: {}", name(stage.layers.front()))
                                  : fmt::format("{}: {} … {}",
                                                stage.layers.size(),
                                                name(stage.layers.front()),
                                                name(stage.layers.back()));
}

/// How many of a stage's layers run otherwise than by their plain choice of its degree: "3
/// activation recomp".
std::string choices_text(const LayerGraph& graph, const LayerStage& stage) {
  std::map<std::string, int> counts;
  for (std::size_t i = 0; i < stage.choices.size(); ++i) {
    ++counts[choice_of(graph, stage, i).name];
  }
  std::string out;
  for (const auto& [name, count] : counts) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, name);
  }
  return out.empty() ? "-" : out;
}

void add_rows(const LayerGraph& graph,
              const std::vector<LayerStage>& stages,
              const std::string& prefix,
              TextTable& table) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const LayerStage& stage = stages[s];
    table.add({fmt::format("{}{}", prefix, s),
               layers_text(graph, stage),
               stage.on_cpu ? "CPU" : fmt::format("{} x {}", stage.replicas, stage.degree),
               choices_text(graph, stage),
               fmt::format("{:.6g} {}", stage.time, graph.time_unit),
               stage.memory_bytes > 0 ? human_bytes(static_cast<Bytes>(stage.memory_bytes)) : "-"});
    add_rows(graph, stage.inner, fmt::format("{}{}.", prefix, s), table);
  }
}

void print_summary(const LayerGraph& graph,
                   const LayerPlannerInfo& planner,
                   const LayerPlanResult& result,
                   Seconds seconds) {
  fmt::print(
      "problem   {}  {} layers · {} edges\n", graph.name, graph.layers.size(), graph.edges.size());
  fmt::print("planner   {}  {} in {}{}\n",
             planner.name,
             status_name(result.status),
             human_seconds(seconds),
             result.limit == planners::SearchLimit::kNone
                 ? ""
                 : fmt::format(", stopped by: {}", limit_name(result.limit)));
  fmt::print("objective {:.10g} {} {}\n", result.objective, graph.time_unit, planner.per);
  if (std::isfinite(result.lower_bound)) {
    fmt::print("proof     nothing below {:.10g} {}\n", result.lower_bound, graph.time_unit);
  }
  if (!result.explanation.empty()) {
    fmt::print("note      {}\n", result.explanation);
  }
  fmt::print("method    does not handle {}\n", planner.cannot);
  TextTable table({"stage", "layers", "replicas x degree", "choices", "time", "memory"});
  add_rows(graph, result.best.stages, "", table);
  fmt::print("{}", table.text());
}

}  // namespace

void add_layer_options(CLI::App& app, LayerSolveOptions& options) {
  app.add_option("--planner", options.planner, "of a layer graph: who plans (shardplan planners)");
  app.add_option("--devices", options.devices, "of a layer graph; default: the file's")
      ->check(number_at_least(1));
  app.add_option("--cpus", options.cpus, "that a placement may use; default: the file's")
      ->check(number_at_least(1));
  app.add_option("--bandwidth",
                 options.bandwidth,
                 "of a device in bytes a second, such as 25GiB; default: the file's");
  app.add_option("--microbatches", options.microbatches, "in a batch; default: the file's")
      ->check(number_at_least(1));
  app.add_option("--hierarchy",
                 options.hierarchy,
                 "machines of each level, from the devices of a server up: 4x4");
  app.add_option("--bandwidths", options.bandwidths, "within each level: 15e9,1.25e9");
  app.add_option("--option",
                 options.settings,
                 "a planner's own option as NAME=VALUE (shardplan planners --json)");
}

Result<int> solve_layer_file(std::string_view content,
                             const std::string& file,
                             const LayerSolveOptions& options,
                             const Session& session) {
  if (options.planner.empty()) {
    return invalid_input(
        "is a layer graph: say which planner, as --planner piper (shardplan planners)", file);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const LayerPlannerInfo* planner,
                             planners::find_layer_planner(options.planner));
  SHARDPLAN_ASSIGN_OR_RETURN(const LayerGraph graph, problem::parse_layer_graph(content, file));
  planners::LayerRequest request{graph, {}, {}, options.time_limit, session.control};
  SHARDPLAN_ASSIGN_OR_RETURN(request.machines, read_machines(options));
  SHARDPLAN_ASSIGN_OR_RETURN(request.options, read_settings(options));
  const Seconds start = now();
  SHARDPLAN_ASSIGN_OR_RETURN(const LayerPlanResult result,
                             planners::solve_layers(*planner, request));
  const Seconds seconds = now() - start;
  clear_progress();
  if (session.json) {
    print_json(result_json(graph, *planner, result, seconds));
  }
  if (result.best.stages.empty()) {
    return Error{ErrorCode::kInfeasible,
                 fmt::format("{} found no plan{}{}",
                             planner->name,
                             result.explanation.empty() ? "" : ": ",
                             result.explanation),
                 "",
                 {}};
  }
  if (!session.json) {
    print_summary(graph, *planner, result, seconds);
  }
  return 0;
}

}  // namespace shardplan::cli
