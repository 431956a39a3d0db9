#include "shardplan/problem/pipeline_objectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace shardplan::problem {
namespace {

constexpr double kSlack = 1e-9;  // of memory sums, added in another order than the planner's

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

Error broken(const std::string& message, const std::string& where = "plan") {
  return Error{ErrorCode::kRuntime, message, where, {}};
}

/// Layers of PipeDream's profiles that its code takes out before it plans.
bool is_taken_out(const LayerGraph& graph, const LayerAdjacency& adjacent, std::size_t v) {
  const std::string& name = graph.layers[v].name;
  return graph.origin == "pipedream" &&
         (name.starts_with("Input") ||
          (name.starts_with("__getitem__") && adjacent.out[v].empty()));
}

/// Stages of one level that together hold some layers, seen by the formulas of PipeDream.
class PipedreamLevel {
 public:
  PipedreamLevel(const LayerGraph& graph, const LayerMachines& machines)
      : graph_(graph), adjacent_(adjacency(graph)), machines_(machines) {
    if (machines_.hierarchy.empty()) {
      machines_.hierarchy = {machines.devices};
      machines_.bandwidths = {machines.bandwidth};
    }
  }

  Result<double> slowest(const std::vector<LayerStage>& stages,
                         std::size_t level,
                         const std::vector<int>& layers,
                         const PublishedOptions& options) const {
    SHARDPLAN_RETURN_IF_ERROR(check_layers(stages, layers));
    const int all = machines_.hierarchy[level];
    int used = 0;
    double slowest = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      used += stages[s].replicas;
      SHARDPLAN_ASSIGN_OR_RETURN(const double time, stage_time(stages, s, level, used, options));
      slowest = std::max(slowest, time);
    }
    const auto fewer = options.find("fewer");
    const bool may_leave = fewer != options.end() && fewer->second == "yes";
    if (used > all || (used < all && !may_leave)) {
      return broken(fmt::format("{} machines in use at level {}, of {}", used, level + 1, all));
    }
    return slowest;
  }

 private:
  /// Every layer in one stage, and no stage needs what a later one computes.
  [[nodiscard]] Status check_layers(const std::vector<LayerStage>& stages,
                                    const std::vector<int>& layers) const {
    std::vector<int> stage_of(graph_.layers.size(), -1);
    std::size_t count = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].replicas < 1) {
        return broken(fmt::format("stage {} has {} replicas", s, stages[s].replicas));
      }
      for (const int v : stages[s].layers) {
        if (v < 0 || at(v) >= graph_.layers.size() || stage_of[at(v)] >= 0) {
          return broken(fmt::format("layer {} is in two stages, or not in the graph", v));
        }
        stage_of[at(v)] = static_cast<int>(s);
        ++count;
      }
    }
    for (const int v : layers) {
      if (stage_of[at(v)] < 0) {
        return broken(fmt::format("{} is in no stage", describe(graph_.layers[at(v)])));
      }
    }
    if (count != layers.size()) {
      return broken("stages hold layers of other stages");
    }
    for (const LayerEdge& edge : graph_.edges) {
      const int source = stage_of[at(edge.source)];
      const int target = stage_of[at(edge.target)];
      if (source >= 0 && target >= 0 && source > target) {
        return broken(fmt::format("{} runs before {}, which it needs",
                                  describe(graph_.layers[at(edge.target)]),
                                  describe(graph_.layers[at(edge.source)])));
      }
    }
    return {};
  }

  /// Bytes that the layers up to and including `stage` send to later ones, which pass through the
  /// stages between.
  [[nodiscard]] double cut_after(const std::vector<LayerStage>& stages,
                                 std::size_t stage,
                                 const std::vector<bool>& before) const {
    std::vector<bool> early = before;
    for (std::size_t s = 0; s <= stage; ++s) {
      for (const int v : stages[s].layers) {
        early[at(v)] = true;
      }
    }
    double bytes = 0;
    for (std::size_t v = 0; v < early.size(); ++v) {
      if (!early[v] || is_taken_out(graph_, adjacent_, v)) {
        continue;
      }
      double most = 0;
      for (const int e : adjacent_.out[v]) {
        const LayerEdge& edge = graph_.edges[at(e)];
        if (!early[at(edge.target)] && !is_taken_out(graph_, adjacent_, at(edge.target))) {
          most = std::max(most, edge.bytes);
        }
      }
      bytes += most;
    }
    return bytes;
  }

  Result<double> stage_time(const std::vector<LayerStage>& stages,
                            std::size_t s,
                            std::size_t level,
                            int used,
                            const PublishedOptions& options) const {
    const LayerStage& stage = stages[s];
    const double m = stage.replicas;
    double within = 1;
    for (std::size_t lower = 0; lower < level; ++lower) {
      within *= machines_.hierarchy[lower];
    }
    double compute = 0;
    double weights = 0;
    double stashed = 0;
    for (const int v : stage.layers) {
      if (is_taken_out(graph_, adjacent_, at(v))) {
        continue;
      }
      const LayerChoice& choice = graph_.layers[at(v)].choices.front();
      compute += choice.time;
      weights += choice.parameter_bytes;
      stashed += choice.parameter_bytes + choice.in_flight_bytes;
    }
    // The last stage stashes nothing, but holds the weights and the microbatch that it works on.
    const double versions =
        std::max(1.0, std::ceil(static_cast<double>(machines_.hierarchy[level] - used) / m));
    if (machines_.memory_bytes > 0 && versions * stashed > machines_.memory_bytes * (1 + kSlack)) {
      return broken(fmt::format("{} bytes are stashed on a device that has {}",
                                versions * stashed,
                                machines_.memory_bytes),
                    fmt::format("stage {}", s));
    }
    const auto straight = options.find("straight");
    if (straight != options.end() && straight->second == "yes" && stage.replicas != 1) {
      return broken("has replicas in a straight pipeline", fmt::format("stage {}", s));
    }
    if (level > 0) {
      SHARDPLAN_ASSIGN_OR_RETURN(compute,
                                 PipedreamLevel(*this, before_of(stages, s))
                                     .slowest(stage.inner, level - 1, stage.layers, options));
    }
    const double per_byte = graph_.units_per_transfer_second / machines_.bandwidths[level];
    const double sync = 4 * (m - 1) / m * weights * per_byte;
    if (s == 0) {
      return (compute + sync / within) / m;  // the case of one stage, of the recurrence
    }
    const double in = cut_after(stages, s - 1, before_);
    const double out = cut_after(stages, s, before_);
    return std::max({(compute + sync) / m, 2 * in / m * per_byte, 2 * out / m * per_byte});
  }

  PipedreamLevel(const PipedreamLevel& upper, std::vector<bool> before)
      : graph_(upper.graph_),
        adjacent_(upper.adjacent_),
        machines_(upper.machines_),
        before_(std::move(before)) {}

  [[nodiscard]] std::vector<bool> before_of(const std::vector<LayerStage>& stages,
                                            std::size_t stage) const {
    std::vector<bool> before = before_;
    for (std::size_t s = 0; s < stage; ++s) {
      for (const int v : stages[s].layers) {
        before[at(v)] = true;
      }
    }
    return before;
  }

  const LayerGraph& graph_;
  LayerAdjacency adjacent_;
  LayerMachines machines_;
  /// Layers of earlier stages of the levels above.
  std::vector<bool> before_ = std::vector<bool>(graph_.layers.size(), false);
};

}  // namespace

Result<double> pipedream_objective(const LayerGraph& graph,
                                   const LayerMachines& machines,
                                   const LayerPlan& plan,
                                   const PublishedOptions& options) {
  std::vector<int> layers;
  for (std::size_t v = 0; v < graph.layers.size(); ++v) {
    layers.push_back(static_cast<int>(v));
  }
  const PipedreamLevel level(graph, machines);
  const std::size_t levels = std::max<std::size_t>(1, machines.hierarchy.size());
  return level.slowest(plan.stages, levels - 1, layers, options);
}

namespace {

/// Bytes that layers of the stages up to `stage` send to later ones.
double bytes_after(const LayerGraph& graph, const std::vector<int>& stage_of, std::size_t stage) {
  const LayerAdjacency adjacent = adjacency(graph);
  double bytes = 0;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    double most = 0;
    for (const int e : adjacent.out[v]) {
      const std::size_t reader = at(graph.edges[at(e)].target);
      if (at(stage_of[v]) <= stage && at(stage_of[reader]) > stage &&
          !is_taken_out(graph, adjacent, reader)) {
        most = std::max(most, graph.edges[at(e)].bytes);
      }
    }
    bytes += is_taken_out(graph, adjacent, v) ? 0 : most;
  }
  return bytes;
}

/// Seconds of DAPPLE's communication, in a cluster of equal servers.
struct DappleNetwork {
  int of_server = 1;
  double near = 0;
  double far = 0;
  double collective = 0;

  [[nodiscard]] bool in_one_server(const std::vector<int>& devices) const {
    return std::all_of(devices.begin(), devices.end(), [&](int device) {
      return device / of_server == devices.front() / of_server;
    });
  }
  [[nodiscard]] double all_reduce(double bytes, const std::vector<int>& devices) const {
    const auto n = static_cast<double>(devices.size());
    return 2 * bytes * (n - 1) / n / (in_one_server(devices) ? near * n / 2 : collective);
  }
  [[nodiscard]] double transfer(double bytes,
                                const std::vector<int>& from,
                                const std::vector<int>& to) const {
    if (!in_one_server(to)) {
      return bytes / collective;
    }
    const auto away = std::count_if(from.begin(), from.end(), [&](int device) {
      return device / of_server != to.front() / of_server;
    });
    return away == 0 ? bytes / near
                     : bytes * static_cast<double>(away) / static_cast<double>(from.size()) / far;
  }
};

Status check_devices(const LayerPlan& plan, const LayerMachines& machines) {
  std::vector<bool> used(at(machines.devices), false);
  for (const LayerStage& stage : plan.stages) {
    if (stage.devices.empty() || stage.devices.size() != at(stage.replicas)) {
      return broken(
          fmt::format("names {} devices for {} replicas", stage.devices.size(), stage.replicas));
    }
    for (const int device : stage.devices) {
      if (device < 0 || device >= machines.devices || used[at(device)]) {
        return broken(fmt::format("device {} is used twice, or does not exist", device));
      }
      used[at(device)] = true;
    }
  }
  return {};
}

}  // namespace

Result<double> dapple_objective(const LayerGraph& graph,
                                const LayerMachines& machines,
                                const LayerPlan& plan,
                                const PublishedOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stages_in_order(graph, plan));
  SHARDPLAN_RETURN_IF_ERROR(check_devices(plan, machines));
  const bool servers = machines.hierarchy.size() == 2;
  const auto factor = options.find("collective");
  DappleNetwork network;
  network.of_server = servers ? machines.hierarchy[0] : 1;
  network.far = machines.bandwidths.empty() ? machines.bandwidth : machines.bandwidths.back();
  network.near = servers ? machines.bandwidths[0] : network.far;
  network.collective = network.far * (factor == options.end() ? 3 : std::stod(factor->second));
  const LayerAdjacency adjacent = adjacency(graph);
  const double units = graph.units_per_transfer_second;
  // Stages and the transfers between them, in turn.
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> reduce;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const LayerStage& stage = plan.stages[s];
    double f = 0;
    double b = 0;
    double weights = 0;
    for (const int v : stage.layers) {
      if (!is_taken_out(graph, adjacent, at(v))) {
        const LayerChoice& choice = graph.layers[at(v)].choices.front();
        const double of_forward = choice.forward();
        f += of_forward / stage.replicas;
        b += (choice.time - of_forward) / stage.replicas;
        weights += choice.parameter_bytes;
      }
    }
    forward.push_back(f);
    backward.push_back(b);
    reduce.push_back(units * network.all_reduce(weights, stage.devices));
    if (s + 1 < plan.stages.size()) {
      const double bytes = bytes_after(graph, stage_of, s);
      forward.push_back(units * network.transfer(bytes, stage.devices, plan.stages[s + 1].devices));
      backward.push_back(units *
                         network.transfer(bytes, plan.stages[s + 1].devices, stage.devices));
      reduce.push_back(0);
    }
  }
  const auto m = static_cast<double>(machines.microbatches);
  std::size_t pivot = forward.size() - 1;
  for (std::size_t a = pivot; a-- > 0;) {
    double between = 0;
    for (std::size_t b = a + 1; b < pivot; ++b) {
      between += forward[b] + backward[b];
    }
    if ((m - 1) * (forward[a] + backward[a]) >
        (m - 1) * (forward[pivot] + backward[pivot]) + between) {
      pivot = a;
    }
  }
  double latency = (m - 1) * (forward[pivot] + backward[pivot]);
  for (std::size_t a = 0; a <= pivot; ++a) {
    latency += forward[a];
  }
  double ending = 0;
  for (std::size_t a = 0; a < forward.size(); ++a) {
    double offset = 0;  // of the end of its last backward pass, from the start of the pivot's
    for (std::size_t b = a; b <= pivot; ++b) {
      offset += backward[b];
    }
    for (std::size_t b = pivot + 1; b < a; ++b) {
      offset -= backward[b];
    }
    ending = std::max(ending, offset + reduce[a]);
  }
  return latency + ending;
}

}  // namespace shardplan::problem
