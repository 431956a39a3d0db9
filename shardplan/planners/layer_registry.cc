#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/alpa2022.h"
#include "shardplan/planners/pipeline/block_partition.h"
#include "shardplan/planners/pipeline/chimera2021.h"
#include "shardplan/planners/pipeline/dapple2021.h"
#include "shardplan/planners/pipeline/distir2021.h"
#include "shardplan/planners/pipeline/dnn_partitioning2020.h"
#include "shardplan/planners/pipeline/dnn_partitioning_ip.h"
#include "shardplan/planners/pipeline/dnn_partitioning_latency.h"
#include "shardplan/planners/pipeline/merak2023.h"
#include "shardplan/planners/pipeline/pipedream2019.h"
#include "shardplan/planners/pipeline/pipedream_2bw2021.h"
#include "shardplan/planners/pipeline/piper2021.h"
#include "shardplan/planners/pipeline/vpipe2021.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {
namespace {

constexpr double kTolerance = 1e-9;  // of a plan's objective against its evaluation
constexpr std::int64_t kMostDevices = 1 << 24;

Status check_hierarchy(problem::LayerMachines& machines) {
  if (machines.hierarchy.empty()) {
    return machines.bandwidths.empty()
               ? Status{}
               : invalid_input("bandwidths of levels need the levels: --hierarchy 4x4",
                               "--bandwidths");
  }
  std::int64_t product = 1;
  for (const int level : machines.hierarchy) {
    product = level < 1 || product > kMostDevices ? kMostDevices + 1 : product * level;
  }
  if (product > kMostDevices) {
    return invalid_input(
        fmt::format("levels must have at least 1 machine each, and {} devices at most",
                    kMostDevices),
        "--hierarchy");
  }
  if (machines.devices != 0 && machines.devices != product) {
    return invalid_input(fmt::format("the levels have {} devices together, and {} were asked for",
                                     product,
                                     machines.devices),
                         "--devices");
  }
  machines.devices = static_cast<int>(product);
  if (machines.bandwidths.empty() && machines.bandwidth > 0) {
    machines.bandwidths.assign(machines.hierarchy.size(), machines.bandwidth);
  }
  if (machines.bandwidths.size() != machines.hierarchy.size()) {
    return invalid_input(fmt::format("{} bandwidths for {} levels of machines",
                                     machines.bandwidths.size(),
                                     machines.hierarchy.size()),
                         "--bandwidths");
  }
  for (const double bandwidth : machines.bandwidths) {
    if (!std::isfinite(bandwidth) || bandwidth <= 0) {
      return invalid_input(fmt::format("a bandwidth is {}; it must be positive", bandwidth),
                           "--bandwidths");
    }
  }
  return {};
}

}  // namespace

const std::vector<LayerPlannerInfo>& layer_planners() {
  static const std::vector<LayerPlannerInfo> planners{
      piper_planner(),
      dnn_partitioning_dp_planner(),
      dnn_partitioning_linear_planner(),
      dnn_partitioning_ip_planner(),
      dnn_partitioning_latency_planner(),
      gpipe_planner(),
      torchgpipe_planner(),
      pipedream_planner(),
      pipedream_2bw_planner(),
      dapple_planner(),
      chimera_planner(),
      distir_planner(),
      merak_planner(),
      alpa_planner(),
      vpipe_planner(),
  };
  return planners;
}

Result<const LayerPlannerInfo*> find_layer_planner(std::string_view name) {
  std::vector<std::string> names;
  for (const LayerPlannerInfo& planner : layer_planners()) {
    if (planner.name == name) {
      return &planner;
    }
    names.emplace_back(planner.name);
  }
  const std::string close = suggest(name, names);
  return Error{ErrorCode::kNotFound,
               fmt::format("unknown planner of layer graphs '{}'{}",
                           name,
                           close.empty() ? "" : fmt::format("; did you mean '{}'?", close)),
               {},
               {"list them with: shardplan planners"}};
}

Result<problem::LayerMachines> complete_machines(const problem::LayerGraph& graph,
                                                 const problem::LayerMachines& asked) {
  problem::LayerMachines machines = asked;
  const problem::LayerResources& defaults = graph.defaults;
  if (!std::isfinite(machines.memory_bytes) || machines.memory_bytes < 0) {
    return invalid_input(fmt::format("{} bytes of memory", machines.memory_bytes), "--memory");
  }
  if (!std::isfinite(machines.bandwidth) || machines.bandwidth < 0) {
    return invalid_input(
        fmt::format("the bandwidth is {}; it must be positive", machines.bandwidth), "--bandwidth");
  }
  if (machines.microbatches < 0) {
    return invalid_input(fmt::format("a batch of {} microbatches", machines.microbatches),
                         "--microbatches");
  }
  machines.memory_bytes =
      machines.memory_bytes > 0 ? machines.memory_bytes : defaults.memory_bytes.value_or(0);
  machines.bandwidth = machines.bandwidth > 0 ? machines.bandwidth : defaults.bandwidth.value_or(0);
  machines.microbatches =
      machines.microbatches > 0 ? machines.microbatches : defaults.microbatches.value_or(0);
  machines.cpus = machines.cpus > 0 ? machines.cpus : defaults.cpus.value_or(0);
  SHARDPLAN_RETURN_IF_ERROR(check_hierarchy(machines));
  if (machines.devices == 0) {
    machines.devices = defaults.devices.value_or(0);
  }
  if (machines.devices < 1 || machines.devices > kMostDevices) {
    return invalid_input(
        fmt::format(
            "say how many devices there are, 1 to {}; got {}", kMostDevices, machines.devices),
        "--devices");
  }
  return machines;
}

Status require_both_passes(const problem::LayerGraph& graph, std::string_view method) {
  for (const problem::Layer& layer : graph.layers) {
    if (layer.placement && layer.placement->backward) {
      return unsupported(fmt::format("{} wants layers with forward and backward time; {} is a part "
                                     "of the backward pass by itself",
                                     method,
                                     problem::describe(layer)),
                         graph.name);
    }
  }
  return {};
}

Status require_layer_for_each_device(const LayerRequest& request, std::string_view method) {
  const std::size_t layers = request.graph.layers.size();
  if (static_cast<std::size_t>(request.machines.devices) > layers) {
    return unsupported(fmt::format("{} makes a stage for every device, and {} layers are not "
                                   "enough for {} devices",
                                   method,
                                   layers,
                                   request.machines.devices),
                       "--devices");
  }
  return {};
}

Status require_batch_and_bandwidth(const LayerRequest& request, std::string_view method) {
  if (request.machines.microbatches < 1 || request.machines.bandwidth <= 0) {
    return invalid_input(
        fmt::format("{} needs the microbatches of a batch and a bandwidth", method),
        request.machines.microbatches < 1 ? "--microbatches" : "--bandwidth");
  }
  return {};
}

solvers::SolveOptions limits_of(const LayerRequest& request) {
  solvers::SolveOptions options;
  options.time_limit = request.time_limit;
  options.control = request.control;
  return options;
}

SearchLimit search_limit(solvers::SolveLimit limit) {
  switch (limit) {
    case solvers::SolveLimit::kTime:
      return SearchLimit::kTime;
    case solvers::SolveLimit::kInterrupted:
      return SearchLimit::kInterrupted;
    default:
      return SearchLimit::kNone;
  }
}

Result<std::map<std::string, std::string>> complete_options(
    const LayerPlannerInfo& planner, const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> all;
  std::vector<std::string> names;
  for (const LayerOption& option : planner.options) {
    all.emplace(option.name, option.fallback);
    names.emplace_back(option.name);
  }
  for (const auto& [name, value] : given) {
    const auto option = std::find_if(planner.options.begin(),
                                     planner.options.end(),
                                     [&](const LayerOption& one) { return one.name == name; });
    if (option == planner.options.end()) {
      return invalid_input(
          fmt::format("{} has no option '{}'; it has: {}",
                      planner.name,
                      name,
                      names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
          "--option");
    }
    const std::vector<std::string_view>& values = option->values;
    double number = 0;
    const auto [rest, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number =
        failed == std::errc{} && rest == value.data() + value.size() && std::isfinite(number);
    if (values.empty() ? !is_number
                       : std::find(values.begin(), values.end(), value) == values.end()) {
      return invalid_input(
          fmt::format("'{}' is no value of {}'s option '{}'; expected {}",
                      value,
                      planner.name,
                      name,
                      values.empty() ? "a number" : fmt::format("{}", fmt::join(values, " or "))),
          "--option");
    }
    all[name] = value;
  }
  return all;
}

Result<LayerPlanResult> solve_layers(const LayerPlannerInfo& planner, const LayerRequest& request) {
  LayerRequest complete = request;
  SHARDPLAN_ASSIGN_OR_RETURN(complete.machines, complete_machines(request.graph, request.machines));
  SHARDPLAN_ASSIGN_OR_RETURN(complete.options, complete_options(planner, request.options));
  SHARDPLAN_ASSIGN_OR_RETURN(LayerPlanResult result, planner.solve(complete));
  if (result.status != SearchStatus::kOptimal && result.status != SearchStatus::kFeasible) {
    return result;
  }
  const Result<double> again =
      planner.evaluate(request.graph, complete.machines, result.best, complete.options);
  if (!again) {
    Error error = again.error();
    error.message = fmt::format("the plan of {} is not valid: {}", planner.name, error.message);
    return error;
  }
  if (!(std::abs(*again - result.objective) <= kTolerance * std::abs(*again))) {
    return Error{
        ErrorCode::kRuntime,
        fmt::format(
            "{} claims {} for a plan that evaluates to {}", planner.name, result.objective, *again),
        request.graph.name,
        {}};
  }
  return result;
}

}  // namespace shardplan::planners
