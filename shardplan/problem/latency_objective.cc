#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "shardplan/problem/published_objectives.h"

namespace shardplan::problem {
namespace {

constexpr double kSlack = 1e-9;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

Error broken(const std::string& message, std::size_t stage) {
  return Error{ErrorCode::kRuntime, message, fmt::format("stage {}", stage), {}};
}

double move_time(const LayerGraph& graph, const LayerMachines& machines, const LayerEdge& edge) {
  return edge.transfer_time ? *edge.transfer_time
                            : graph.layers[at(edge.source)].output_bytes / machines.bandwidth *
                                  graph.units_per_transfer_second;
}

/// The run of one query.
class Query {
 public:
  Query(const LayerGraph& graph, const LayerMachines& machines, const LayerPlan& plan)
      : graph_(graph), machines_(machines), plan_(plan) {}

  Result<double> run() {
    SHARDPLAN_RETURN_IF_ERROR(place());
    SHARDPLAN_RETURN_IF_ERROR(check_devices());
    find_units();
    move_outputs();
    return last_finish();
  }

 private:
  Status place() {
    stage_of_.assign(graph_.layers.size(), -1);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      for (const int v : plan_.stages[s].layers) {
        if (v < 0 || at(v) >= stage_of_.size() || stage_of_[at(v)] >= 0) {
          return broken(fmt::format("layer {} is unknown, or placed twice", v), s);
        }
        stage_of_[at(v)] = static_cast<int>(s);
      }
    }
    std::map<std::int64_t, int> colors;
    for (std::size_t v = 0; v < stage_of_.size(); ++v) {
      const Layer& layer = graph_.layers[v];
      if (stage_of_[v] < 0) {
        return broken(fmt::format("{} is nowhere", describe(layer)), 0);
      }
      if (layer.placement && layer.placement->color &&
          colors.emplace(*layer.placement->color, stage_of_[v]).first->second != stage_of_[v]) {
        return broken(fmt::format("{} is apart from other layers of its colour", describe(layer)),
                      at(stage_of_[v]));
      }
    }
    return {};
  }

  Status check_devices() {
    std::map<int, double> bytes;  // of each accelerator
    before_.assign(plan_.stages.size(), -1);
    std::map<int, int> last;  // subgraph of each accelerator
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const LayerStage& stage = plan_.stages[s];
      if (stage.on_cpu) {
        if (machines_.cpus < 1) {
          return broken("layers on CPUs, and there are none", s);
        }
        continue;
      }
      if (stage.devices.size() != 1 || stage.devices[0] < 0 ||
          stage.devices[0] >= machines_.devices) {
        return broken("a subgraph is on one of the accelerators", s);
      }
      for (const int v : stage.layers) {
        const Layer& layer = graph_.layers[at(v)];
        const LayerChoice& choice = layer.choices.front();
        bytes[stage.devices[0]] += choice.constant_bytes + choice.in_flight_bytes;
        if (layer.placement && !layer.placement->on_accelerator) {
          return broken(fmt::format("no accelerator runs {}", describe(layer)), s);
        }
      }
      if (machines_.memory_bytes > 0 &&
          bytes[stage.devices[0]] > machines_.memory_bytes * (1 + kSlack)) {
        return broken(fmt::format("{} bytes on a device that has {}",
                                  bytes[stage.devices[0]],
                                  machines_.memory_bytes),
                      s);
      }
      const auto [known, is_new] = last.emplace(stage.devices[0], static_cast<int>(s));
      before_[s] = is_new ? -1 : std::exchange(known->second, static_cast<int>(s));
    }
    return {};
  }

  /// What runs at once: every subgraph, every layer on a CPU.
  void find_units() {
    unit_of_.assign(graph_.layers.size(), -1);
    std::vector<int> unit_of_stage(plan_.stages.size(), -1);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      for (const int v : plan_.stages[s].layers) {
        if (plan_.stages[s].on_cpu || unit_of_stage[s] < 0) {
          unit_of_stage[s] = static_cast<int>(units_.size());
          units_.emplace_back();
        }
        units_[at(unit_of_stage[s])].duration += duration(plan_.stages[s], graph_.layers[at(v)]);
        unit_of_[at(v)] = unit_of_stage[s];
      }
      if (before_[s] >= 0 && unit_of_stage[s] >= 0 && unit_of_stage[at(before_[s])] >= 0) {
        add_need(unit_of_stage[at(before_[s])], unit_of_stage[s]);
      }
    }
  }

  static double duration(const LayerStage& stage, const Layer& layer) {
    if (stage.on_cpu) {
      return layer.placement.value_or(LayerPlacement{}).cpu_time;
    }
    return layer.placement ? layer.choices.front().time : layer.choices.front().forward();
  }

  void add_need(int unit, int by) {
    units_[at(unit)].needed_by.push_back(by);
    ++units_[at(by)].needs;
  }

  /// Each output that a subgraph takes in, or gives away, is moved once.
  void move_outputs() {
    std::set<std::pair<int, int>> moved;  // layer, unit
    for (const LayerEdge& edge : graph_.edges) {
      const int from = unit_of_[at(edge.source)];
      const int to = unit_of_[at(edge.target)];
      if (from == to) {
        continue;
      }
      add_need(from, to);
      for (const int layer : {edge.source, edge.target}) {
        const int unit = unit_of_[at(layer)];
        if (!plan_.stages[at(stage_of_[at(layer)])].on_cpu &&
            moved.emplace(edge.source, unit).second) {
          units_[at(unit)].duration += move_time(graph_, machines_, edge);
        }
      }
    }
  }

  Result<double> last_finish() {
    std::vector<std::size_t> ready;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].needs == 0) {
        ready.push_back(u);
      }
    }
    double last = 0;
    std::size_t done = 0;
    for (; done < ready.size(); ++done) {
      const Unit& unit = units_[ready[done]];
      const double finish = unit.start + unit.duration;
      last = std::max(last, finish);
      for (const int other : unit.needed_by) {
        units_[at(other)].start = std::max(units_[at(other)].start, finish);
        if (--units_[at(other)].needs == 0) {
          ready.push_back(at(other));
        }
      }
    }
    if (done < units_.size()) {
      return broken("subgraphs wait for each other: one is not contiguous, or out of turn", 0);
    }
    return last;
  }

  struct Unit {
    double duration = 0;
    double start = 0;
    int needs = 0;
    std::vector<int> needed_by{};
  };

  const LayerGraph& graph_;
  const LayerMachines& machines_;
  const LayerPlan& plan_;
  std::vector<int> stage_of_{};
  std::vector<int> unit_of_{};
  std::vector<Unit> units_{};
  std::vector<int> before_{};  ///< of each subgraph: the one before it on its accelerator
};

}  // namespace

Result<double> dnn_partitioning_latency_objective(const LayerGraph& graph,
                                                  const LayerMachines& machines,
                                                  const LayerPlan& plan,
                                                  const PublishedOptions& /*options*/) {
  return Query(graph, machines, plan).run();
}

}  // namespace shardplan::problem
