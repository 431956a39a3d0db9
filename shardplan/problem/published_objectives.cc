#include "shardplan/problem/published_objectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace shardplan::problem {
namespace {

/// Memory sums are compared with this relative slack: they are added in another order than the
/// planner's.
constexpr double kSlack = 1e-9;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

Error broken(const std::string& message, std::size_t stage) {
  return Error{ErrorCode::kRuntime, message, fmt::format("stage {}", stage), {}};
}

/// The stage of each layer, when every layer has one and no other.
Result<std::vector<int>> stage_of_layers(const LayerGraph& graph, const LayerPlan& plan) {
  std::vector<int> stage_of(graph.layers.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const LayerStage& stage = plan.stages[s];
    if (!stage.choices.empty() && stage.choices.size() != stage.layers.size()) {
      return broken(
          fmt::format("{} choices for {} layers", stage.choices.size(), stage.layers.size()), s);
    }
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const int v = stage.layers[i];
      if (v < 0 || at(v) >= graph.layers.size()) {
        return broken(fmt::format("there is no layer {}", v), s);
      }
      if (stage_of[at(v)] >= 0) {
        return broken(
            fmt::format("{} is in stage {} too", describe(graph.layers[at(v)]), stage_of[at(v)]),
            s);
      }
      const int choice = stage.choices.empty() ? 0 : stage.choices[i];
      if (choice < 0 || at(choice) >= graph.layers[at(v)].choices.size()) {
        return broken(fmt::format("{} has no choice {}", describe(graph.layers[at(v)]), choice), s);
      }
      stage_of[at(v)] = static_cast<int>(s);
    }
  }
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    if (stage_of[v] < 0) {
      return Error{ErrorCode::kRuntime,
                   fmt::format("{} is in no stage", describe(graph.layers[v])),
                   "plan",
                   {}};
    }
  }
  return stage_of;
}

Status check_forward(const LayerGraph& graph, const std::vector<int>& stage_of) {
  for (const LayerEdge& edge : graph.edges) {
    if (stage_of[at(edge.source)] > stage_of[at(edge.target)]) {
      return broken(fmt::format("{} runs before {}, which it needs",
                                describe(graph.layers[at(edge.target)]),
                                describe(graph.layers[at(edge.source)])),
                    at(stage_of[at(edge.target)]));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<int>> stages_in_order(const LayerGraph& graph, const LayerPlan& plan) {
  SHARDPLAN_ASSIGN_OR_RETURN(std::vector<int> stage_of, stage_of_layers(graph, plan));
  SHARDPLAN_RETURN_IF_ERROR(check_forward(graph, stage_of));
  return stage_of;
}

Result<double> largest_block_objective(const LayerGraph& graph,
                                       const LayerMachines& machines,
                                       const LayerPlan& plan,
                                       const PublishedOptions& /*options*/) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stages_in_order(graph, plan));
  if (plan.stages.size() > at(machines.devices)) {
    return broken(fmt::format("{} stages on {} devices", plan.stages.size(), machines.devices), 0);
  }
  std::vector<double> times(plan.stages.size(), 0);
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    times[at(stage_of[v])] += graph.layers[v].choices.front().time;
  }
  return *std::max_element(times.begin(), times.end());
}

namespace {

/// Piper's time of one microbatch in stage `s` and its memory, with y microbatches in flight.
struct StageCost {
  double time = 0;
  double memory = 0;
};

Result<StageCost> piper_stage(const LayerGraph& graph,
                              const LayerMachines& machines,
                              const LayerPlan& plan,
                              const std::vector<int>& stage_of,
                              std::size_t s,
                              double y) {
  const LayerStage& stage = plan.stages[s];
  const LayerAdjacency adjacent = adjacency(graph);
  const double per_byte = graph.units_per_transfer_second / machines.bandwidth;
  const auto batch = static_cast<double>(machines.microbatches);
  const double d = stage.replicas;
  StageCost cost;
  for (std::size_t i = 0; i < stage.layers.size(); ++i) {
    const std::size_t v = at(stage.layers[i]);
    const LayerChoice& choice =
        graph.layers[v].choices[stage.choices.empty() ? 0 : at(stage.choices[i])];
    if (choice.degree != stage.degree) {
      return broken(fmt::format("{} runs by a choice of degree {} in a stage of degree {}",
                                describe(graph.layers[v]),
                                choice.degree,
                                stage.degree),
                    s);
    }
    double cut_bytes = 0;
    for (std::size_t k = 0; k < adjacent.in[v].size(); ++k) {
      const LayerEdge& edge = graph.edges[at(adjacent.in[v][k])];
      if (stage_of[at(edge.source)] != stage_of[v]) {
        cut_bytes += edge.bytes + (choice.extra_in_bytes.empty() ? 0 : choice.extra_in_bytes[k]);
      }
    }
    for (std::size_t k = 0; k < adjacent.out[v].size(); ++k) {
      const LayerEdge& edge = graph.edges[at(adjacent.out[v][k])];
      if (stage_of[at(edge.target)] != stage_of[v]) {
        cut_bytes += edge.bytes + (choice.extra_out_bytes.empty() ? 0 : choice.extra_out_bytes[k]);
      }
    }
    // Activations forward and gradients back; weights to a server and from it, each way twice.
    cost.time += choice.time / d + per_byte * 2 * cut_bytes / d +
                 per_byte * 4 * (d - 1) / d * choice.parameter_bytes / batch;
    cost.memory += choice.in_flight_bytes * y + choice.constant_bytes;
  }
  return cost;
}

}  // namespace

Result<double> piper_objective(const LayerGraph& graph,
                               const LayerMachines& machines,
                               const LayerPlan& plan,
                               const PublishedOptions& /*options*/) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stages_in_order(graph, plan));
  std::int64_t devices = 0;
  std::int64_t replicas = 0;  // of this stage and all behind it
  double slowest = 0;
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    const LayerStage& stage = plan.stages[s];
    if (stage.replicas < 1 || machines.microbatches % stage.replicas != 0) {
      return broken(
          fmt::format(
              "{} replicas do not divide {} microbatches", stage.replicas, machines.microbatches),
          s);
    }
    devices += std::int64_t{stage.replicas} * stage.degree;
    replicas += stage.replicas;
    const std::int64_t in_flight = (replicas + stage.replicas - 1) / stage.replicas;
    SHARDPLAN_ASSIGN_OR_RETURN(
        const StageCost cost,
        piper_stage(graph, machines, plan, stage_of, s, static_cast<double>(in_flight)));
    if (machines.memory_bytes > 0 && cost.memory > machines.memory_bytes * (1 + kSlack)) {
      return broken(
          fmt::format("{} bytes on a device that has {}", cost.memory, machines.memory_bytes), s);
    }
    slowest = std::max(slowest, cost.time);
  }
  if (devices > machines.devices || replicas > machines.microbatches) {
    return broken(
        fmt::format("{} devices and {} replicas; there are {} devices and {} microbatches",
                    devices,
                    replicas,
                    machines.devices,
                    machines.microbatches),
        0);
  }
  return slowest;
}

namespace {

bool is_backward(const LayerGraph& graph, int layer) {
  const std::optional<LayerPlacement>& placement = graph.layers[at(layer)].placement;
  return placement && placement->backward;
}

/// No forward path leaves the stage and comes back: nothing outside that the stage reaches reaches
/// the stage.
Status check_contiguous(const LayerGraph& graph, const std::vector<int>& stage_of, int s) {
  const LayerAdjacency adjacent = adjacency(graph);
  std::vector<bool> outside_below(graph.layers.size(), false);
  for (const int v : topological_order(graph)) {
    for (const int e : adjacent.in[at(v)]) {
      const LayerEdge& edge = graph.edges[at(e)];
      if (is_backward(graph, v) || is_backward(graph, edge.source)) {
        continue;
      }
      const bool from_outside = outside_below[at(edge.source)];
      if (stage_of[at(v)] == s && from_outside) {
        return broken(fmt::format("a path leaves the device and comes back to it at {}",
                                  describe(graph.layers[at(v)])),
                      at(s));
      }
      if (stage_of[at(v)] != s && (from_outside || stage_of[at(edge.source)] == s)) {
        outside_below[at(v)] = true;
      }
    }
  }
  return {};
}

Status check_colors(const LayerGraph& graph, const std::vector<int>& stage_of) {
  std::map<std::int64_t, int> device_of;
  for (std::size_t v = 0; v < graph.layers.size(); ++v) {
    const std::optional<LayerPlacement>& placement = graph.layers[v].placement;
    if (!placement || !placement->color) {
      continue;
    }
    const auto [known, is_new] = device_of.emplace(*placement->color, stage_of[v]);
    if (known->second != stage_of[v]) {
      return broken(fmt::format("{} is apart from other layers of colour {}",
                                describe(graph.layers[v]),
                                *placement->color),
                    at(stage_of[v]));
    }
  }
  return {};
}

double transfer_of(const LayerGraph& graph, const LayerMachines& machines, const LayerEdge& edge) {
  return edge.transfer_time ? *edge.transfer_time
                            : 2 * graph.layers[at(edge.source)].output_bytes / machines.bandwidth *
                                  graph.units_per_transfer_second;
}

Result<double> load_of(const LayerGraph& graph,
                       const LayerMachines& machines,
                       const LayerPlan& plan,
                       const std::vector<int>& stage_of,
                       std::size_t s) {
  const LayerStage& stage = plan.stages[s];
  double load = 0;
  double bytes = 0;
  for (const int v : stage.layers) {
    const Layer& layer = graph.layers[at(v)];
    const LayerChoice& choice = layer.choices.front();
    bytes += choice.constant_bytes + choice.in_flight_bytes;
    if (stage.on_cpu) {
      load += layer.placement ? layer.placement->cpu_time : 0;
      continue;
    }
    load += choice.time;
    if (layer.placement && !layer.placement->on_accelerator) {
      return broken(fmt::format("no accelerator runs {}", describe(layer)), s);
    }
  }
  if (stage.on_cpu) {
    return load;
  }
  if (machines.memory_bytes > 0 && bytes > machines.memory_bytes * (1 + kSlack)) {
    return broken(fmt::format("{} bytes on a device that has {}", bytes, machines.memory_bytes), s);
  }
  std::map<int, double> sources;
  for (const LayerEdge& edge : graph.edges) {
    const bool leaves = stage_of[at(edge.source)] == static_cast<int>(s);
    const bool arrives = stage_of[at(edge.target)] == static_cast<int>(s);
    if (leaves != arrives) {
      sources[edge.source] = transfer_of(graph, machines, edge);
    }
  }
  for (const auto& [source, time] : sources) {
    load += time;
  }
  return load;
}

}  // namespace

Result<double> dnn_partitioning_objective(const LayerGraph& graph,
                                          const LayerMachines& machines,
                                          const LayerPlan& plan,
                                          const PublishedOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stage_of_layers(graph, plan));
  SHARDPLAN_RETURN_IF_ERROR(check_colors(graph, stage_of));
  const auto contiguous = options.find("contiguous");
  int accelerators = 0;
  int cpus = 0;
  double largest = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    ++(plan.stages[s].on_cpu ? cpus : accelerators);
    if (contiguous == options.end() || contiguous->second == "yes") {
      SHARDPLAN_RETURN_IF_ERROR(check_contiguous(graph, stage_of, static_cast<int>(s)));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const double load, load_of(graph, machines, plan, stage_of, s));
    largest = std::max(largest, load);
  }
  if (accelerators > machines.devices || cpus > machines.cpus) {
    return broken(fmt::format("{} accelerators and {} CPUs; there are {} and {}",
                              accelerators,
                              cpus,
                              machines.devices,
                              machines.cpus),
                  0);
  }
  return largest;
}

}  // namespace shardplan::problem
