#include "shardplan/cli/planning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "shardplan/support/text.h"
#include "shardplan/training/microbatch.h"

namespace shardplan::cli {

namespace {

Result<cluster::DeviceMesh> read_mesh(const std::string& text, std::int64_t devices) {
  const auto wrong = [&](std::string_view what) {
    return invalid_input(
        fmt::format(
            "'{}' {}; write named axes, outermost first, such as data=2,tensor=4", text, what),
        "--mesh");
  };
  cluster::DeviceMesh mesh;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      return wrong("is not a mesh");
    }
    const std::string name = part.substr(0, equals);
    std::int64_t size = 0;
    const char* const end = part.data() + part.size();
    const auto [rest, failed] = std::from_chars(part.data() + equals + 1, end, size);
    if (failed != std::errc{} || rest != end || size < 1) {
      return wrong(fmt::format("gives axis '{}' no whole size of 1 or more", name));
    }
    if (std::any_of(mesh.axes.begin(), mesh.axes.end(), [&](const auto& axis) {
          return axis.name == name;
        })) {
      return wrong(fmt::format("names axis '{}' twice", name));
    }
    if (size > devices) {
      return wrong(fmt::format("has more than the {} devices of the cluster", devices));
    }
    mesh.axes.push_back({name, size});
  }
  if (mesh.axes.size() > sharding::kMaxMeshAxes) {
    return wrong(fmt::format("has more than {} axes", sharding::kMaxMeshAxes));
  }
  if (mesh.size() != devices) {
    return wrong(fmt::format("has {} devices and the cluster {}", mesh.size(), devices));
  }
  return mesh;
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
      return "no_plan_found";
  }
  return "";
}

/// Name and bytes of every part, in the order in which they are shown.
std::vector<std::pair<std::string_view, Bytes>> parts_of(const sim::MemoryBreakdown& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations},
          {"inputs", memory.inputs},
          {"temporary", memory.temporary}};
}

/// 25 GB/s, 300 GB/s: rates are decimal.
std::string rate_text(double bytes_per_second) {
  return fmt::format("{:.3g} GB/s", bytes_per_second / 1e9);
}

}  // namespace

void add_planning_options(CLI::App& app, PlanningOptions& options) {
  add_model_options(app, options.model);
  app.add_option("--cluster", options.cluster, "a preset (shardplan clusters) or a YAML file");
  add_recipe_options(app, options.recipe);
  app.add_option("--mesh", options.mesh, "only this mesh, such as data=2,tensor=4");
  app.add_option(
         "--max-mesh-axes",
         options.max_mesh_axes,
         "of the meshes that are tried; default: one more than the cluster has levels of links")
      ->check(CLI::Range(1, sharding::kMaxMeshAxes));
  app.add_option("--time-limit", options.time_limit, "of the search, in seconds; 0 = none")
      ->check(number_at_least(0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of random choices of the search")
      ->check(number_at_least(0))
      ->capture_default_str();
}

Result<Planning> read_planning(const std::string& command, const PlanningOptions& options) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.model.model, command, "a MODEL"));
  SHARDPLAN_RETURN_IF_ERROR(require(options.cluster, command, "a --cluster"));
  Planning planning;
  planning.model = options.model.model;
  SHARDPLAN_ASSIGN_OR_RETURN(planning.binding, read_binding(options.model));
  planning.max_mesh_axes = options.max_mesh_axes;
  planning.time_limit = options.time_limit;
  planning.seed = options.seed;
  RecipeOptions recipe = options.recipe;
  const bool any_microbatches = options.finds_microbatches && recipe.microbatches == kAuto;
  if (any_microbatches) {
    recipe.microbatches = "1";
  }
  SHARDPLAN_ASSIGN_OR_RETURN(planning.recipe, read_recipe(recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(planning.cluster, cluster::load_cluster(options.cluster));
  if (!options.mesh.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(planning.mesh,
                               read_mesh(options.mesh, planning.cluster.device_count()));
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward,
                             load_model(planning.model, planning.binding, false));
  SHARDPLAN_ASSIGN_OR_RETURN(planning.step,
                             training::build_training_step(forward, planning.recipe));
  if (any_microbatches) {
    SHARDPLAN_ASSIGN_OR_RETURN(planning.alternatives,
                               in_microbatches(forward, planning.recipe, {}));
    // The middle first: with few there are bubbles, with many small kernels and messages.
    std::vector<Planning::Alternative>& all = planning.alternatives;
    const auto middle = static_cast<std::ptrdiff_t>(all.size() / 2);
    std::rotate(all.begin(), all.begin() + middle, all.end());
  }
  return planning;
}

const ir::Graph& Planning::step_of(const plan::Plan& plan) const {
  const auto found = std::find_if(alternatives.begin(), alternatives.end(), [&](const auto& a) {
    return a.recipe.microbatches == plan.recipe.microbatches;
  });
  return found != alternatives.end() ? found->step : step;
}

namespace {

/// The divisors of a batch that has few, else 1, 2, 4, ...
std::vector<std::int64_t> numbers_of_microbatches(std::int64_t batch) {
  constexpr std::size_t kMost = 12;
  std::vector<std::int64_t> divisors;
  for (std::int64_t count = 1; count <= batch / count; ++count) {
    if (batch % count == 0) {
      divisors.push_back(count);
      if (count != batch / count) {
        divisors.push_back(batch / count);
      }
    }
  }
  if (divisors.size() <= kMost) {
    std::sort(divisors.begin(), divisors.end());
    return divisors;
  }
  std::vector<std::int64_t> powers{1};
  while (powers.back() <= batch / 2) {
    powers.push_back(2 * powers.back());
  }
  return powers;
}

/// The largest first dimension of an input.
std::int64_t batch_rows(const ir::Graph& forward) {
  std::int64_t rows = 1;
  for (const ir::Value& value : forward.values()) {
    if (value.kind == ir::ValueKind::kInput && value.type.rank() > 0) {
      rows = std::max(rows, value.type.shape.front());
    }
  }
  return rows;
}

}  // namespace

Result<std::vector<Planning::Alternative>> in_microbatches(
    const ir::Graph& forward,
    const training::Recipe& recipe,
    const std::vector<std::int64_t>& counts) {
  const std::vector<std::int64_t> all =
      counts.empty() ? numbers_of_microbatches(batch_rows(forward)) : counts;
  std::vector<Planning::Alternative> out;
  for (const std::int64_t count : all) {
    training::Recipe with = recipe;
    with.microbatches = count;
    Result<ir::Graph> step = training::build_training_step(forward, with);
    if (step) {
      out.push_back({with, *std::move(step)});
    } else if (!counts.empty() || out.empty()) {
      return std::move(step).error();
    }
  }
  return out;
}

Result<Bytes> read_memory(const std::string& text) {
  if (text.empty()) {
    return Bytes{0};
  }
  Result<Bytes> bytes = parse_bytes(text);
  if (!bytes) {
    Error error = std::move(bytes).error();
    error.location = "--memory";
    return error;
  }
  if (*bytes == 0) {
    return invalid_input("is 0; leave it out for the device's own memory", "--memory");
  }
  return bytes;
}

namespace {

planners::PlanRequest request_of(const Planning& planning,
                                 const training::Recipe& recipe,
                                 const ir::Graph& step,
                                 const Control& control) {
  planners::PlanRequest request{.step = step};
  request.recipe = recipe;
  request.cluster = planning.cluster;
  request.mesh = planning.mesh;
  request.max_mesh_axes = planning.max_mesh_axes;
  request.time_limit = planning.time_limit;
  request.seed = planning.seed;
  request.control = control;
  return request;
}

}  // namespace

Result<std::vector<planners::PlanResult>> make_plans(const planners::PlannerInfo& planner,
                                                     const Planning& planning,
                                                     const std::vector<Bytes>& limits,
                                                     const Control& control) {
  planners::PlanRequest request = request_of(planning, planning.recipe, planning.step, control);
  std::vector<planners::PlanResult> results;
  if (limits.size() == 1) {
    request.memory_limit = limits.front();
    SHARDPLAN_ASSIGN_OR_RETURN(planners::PlanResult result, planner.plan(request));
    results.push_back(std::move(result));
  } else {
    SHARDPLAN_ASSIGN_OR_RETURN(results, planners::sweep(planner, request, limits));
  }
  for (planners::PlanResult& result : results) {
    result.best.model = planning.model;
    result.best.binding = planning.binding;
  }
  return results;
}

Result<planners::PlanResult> make_plan(const planners::PlannerInfo& planner,
                                       const Planning& planning,
                                       Bytes memory_limit,
                                       const Control& control) {
  if (planning.alternatives.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(std::vector<planners::PlanResult> results,
                               make_plans(planner, planning, {memory_limit}, control));
    return std::move(results.front());
  }
  std::vector<planners::PlanRequest> requests;
  for (const Planning::Alternative& alternative : planning.alternatives) {
    requests.push_back(request_of(planning, alternative.recipe, alternative.step, control));
    requests.back().memory_limit = memory_limit;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(planners::Fastest fastest, planners::plan_fastest(planner, requests));
  fastest.result.best.model = planning.model;
  fastest.result.best.binding = planning.binding;
  return std::move(fastest.result);
}

void print_remarks(const planners::PlanResult& result) {
  const std::optional<plan::Pipeline>& pipeline = result.best.pipeline;
  if (pipeline && pipeline->steps > 1) {
    fmt::print(
        "weights   stale: {} steps follow each other without a flush, and do not compute what "
        "one device does\n",
        pipeline->steps);
  }
  if (!result.explanation.empty()) {
    fmt::print("note      {}\n", result.explanation);
  }
}

std::string_view limit_name(planners::SearchLimit limit) {
  switch (limit) {
    case planners::SearchLimit::kNone:
      return "none";
    case planners::SearchLimit::kTime:
      return "time";
    case planners::SearchLimit::kInterrupted:
      return "interrupted";
  }
  return "";
}

nlohmann::ordered_json plan_json(const planners::PlanResult& result, const std::string& planner) {
  const plan::Prediction& prediction = result.best.prediction;
  nlohmann::ordered_json object;
  object["planner"] = planner;
  object["status"] = status_name(result.status);
  object["stopped_by"] = limit_name(result.limit);
  object["model"] = result.best.model;
  object["microbatches"] = result.status == planners::SearchStatus::kNoPlanFound
                               ? nlohmann::ordered_json()
                               : nlohmann::ordered_json(result.best.recipe.microbatches);
  object["cluster"] = result.best.cluster.name;
  nlohmann::ordered_json mesh = nlohmann::ordered_json::object();
  for (const cluster::MeshAxis& axis : result.best.mesh.axes) {
    mesh[axis.name] = axis.size;
  }
  object["mesh"] = mesh;
  object["step_seconds"] = prediction.step_seconds;
  object["additive_seconds"] = prediction.additive_seconds;
  object["objective_seconds"] = prediction.objective_seconds;
  object["lower_bound_seconds"] = prediction.lower_bound_seconds;
  // A planner that proves nothing has no gap, and a gap of 0 would claim the optimum.
  object["gap"] = prediction.lower_bound_seconds > 0 ? nlohmann::ordered_json(prediction.gap)
                                                     : nlohmann::ordered_json();
  object["step_lower_bound_seconds"] = prediction.step_lower_bound_seconds;
  object["binding"] = nlohmann::ordered_json::array();
  for (const plan::BindingRow& row : prediction.rows) {
    object["binding"].push_back(
        {{"where", row.where}, {"bytes", row.bytes}, {"seconds_per_gib", row.seconds_per_gib}});
  }
  object["peak_bytes"] = prediction.peak_bytes;
  object["memory_limit"] = prediction.memory_limit;
  object["memory_at_peak"] = memory_json(result.simulation.at_peak);
  object["exposed_communication_seconds"] = result.simulation.exposed_communication_seconds;
  object["flops_per_device"] = whole(result.simulation.flops);
  object["recompute"] = nlohmann::ordered_json::array();
  for (const plan::RecomputedBlock& block : result.best.recompute) {
    object["recompute"].push_back(
        {{"block", block.block},
         {"mode", block.how == plan::Recompute::kWhole ? "whole" : "selective"}});
  }
  object["stale_weights"] = result.best.pipeline && result.best.pipeline->steps > 1;
  object["search_seconds"] = prediction.search_seconds;
  if (!result.explanation.empty()) {
    object["explanation"] = result.explanation;
  }
  return object;
}

nlohmann::ordered_json memory_json(const sim::MemoryBreakdown& memory) {
  nlohmann::ordered_json object;
  for (const auto& [name, bytes] : parts_of(memory)) {
    object[std::string(name)] = bytes;
  }
  return object;
}

std::string memory_text(const sim::MemoryBreakdown& memory) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : parts_of(memory)) {
    if (bytes != 0) {
      parts.push_back(fmt::format("{} {}", name, human_bytes(bytes)));
    }
  }
  return fmt::format("{}", fmt::join(parts, " · "));
}

void print_whole_calls(const std::vector<planners::WholeCall>& calls) {
  std::string_view label = "whole     ";
  for (const planners::WholeCall& call : calls) {
    fmt::print("{}{} ({}×): {} of each step on every device, it is not known how to cut it\n",
               label,
               call.target,
               call.count,
               human_seconds(call.seconds));
    label = "          ";
  }
}

std::string recompute_text(const plan::Plan& plan) {
  if (plan.recompute.empty()) {
    return "nothing";
  }
  const auto whole =
      std::count_if(plan.recompute.begin(), plan.recompute.end(), [](const auto& block) {
        return block.how == plan::Recompute::kWhole;
      });
  const auto selective = static_cast<std::ptrdiff_t>(plan.recompute.size()) - whole;
  std::string out;
  if (whole > 0) {
    out = fmt::format("{} {} whole", whole, whole == 1 ? "block" : "blocks");
  }
  if (selective > 0) {
    out += whole > 0
               ? fmt::format(", {} selective", selective)
               : fmt::format("{} {} selective", selective, selective == 1 ? "block" : "blocks");
  }
  return out;
}

std::string cluster_text(const cluster::Cluster& cluster) {
  const std::int64_t devices = cluster.device_count();
  std::string text = fmt::format("{} {} of {}",
                                 devices,
                                 devices == 1 ? "device" : "devices",
                                 human_bytes(cluster.device.memory));
  for (const cluster::LinkLevel& level : cluster.levels) {
    if (level.fanout > 1) {
      text += fmt::format(" · {} {} a direction", level.name, rate_text(level.bandwidth));
    }
  }
  return text;
}

std::string model_text(const ir::Graph& step) {
  std::string text = fmt::format("{} parameters · {} ops a step",
                                 human_count(static_cast<double>(step.parameter_count())),
                                 step.ops().size());
  for (const ir::Value& value : step.values()) {
    if (value.kind == ir::ValueKind::kInput && !training::input_of_whole_batch(value.name)) {
      text += fmt::format(" · {} {}", value.name, ir::to_string(value.type));
    }
  }
  return text;
}

double part_of_peak(const planners::PlanResult& result, const ir::Graph& step) {
  // The parameters' type is that of nearly all the arithmetic.
  const auto parameter =
      std::find_if(step.values().begin(), step.values().end(), [](const auto& v) {
        return v.kind == ir::ValueKind::kParameter && v.trainable;
      });
  if (parameter == step.values().end() || result.best.prediction.step_seconds <= 0) {
    return 0;
  }
  const auto& peaks = result.best.cluster.device.peak_flops;
  const auto peak = peaks.find(std::string(ir::dtype_name(parameter->type.dtype)));
  if (peak == peaks.end() || peak->second <= 0) {
    return 0;
  }
  return result.simulation.flops / result.best.prediction.step_seconds / peak->second;
}

}  // namespace shardplan::cli
