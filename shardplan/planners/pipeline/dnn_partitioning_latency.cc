// A subgraph of an accelerator starts when all that it needs is in the host's memory; it moves that
// in, runs its layers, and moves out what others need. A layer on a CPU starts when its inputs are
// there. Binaries x[g,s]: group g is in subgraph s, or on CPUs. For every layer u and subgraph s
// that u's output may enter or leave:
//
//   in[u,s] >= x[v,s] - x[u,s],   out[u,s] >= x[u,s] - x[v,s]     for each edge (u,v)
//   start[s] >= L[u] - H (1 - in[u,s]),   start[s] >= finish[s-1] on the same accelerator
//   finish[s] = start[s] + sum_u in[u,s] c[u] + sum_v x[v,s] p[v] + sum_u out[u,s] c[u]
//   L[v] >= finish[s] - H (1 - x[v,s]),   L[v] >= L[u] + x[v,cpu] cpu[v],   least L >= L[v]
//
// Deviations: the paper's H is the sum of all CPU times; here it is the latency of a plan in hand,
// found along depth-first orders and by moving groups, which also is the answer when CBC finds
// nothing better in its time. Accelerators are told apart by their first groups. The paper solves
// by a commercial solver, up to a gap of 1 % or an hour; here a minute is the default.
#include "shardplan/planners/pipeline/dnn_partitioning_latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/planners/pipeline/dnn_partitioning2020.h"
#include "shardplan/planners/pipeline/downsets.h"
#include "shardplan/planners/pipeline/placement_latency.h"
#include "shardplan/planners/pipeline/placement_program.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/solvers/mixed_program.h"
#include "shardplan/support/text.h"

namespace shardplan::planners {
namespace {

using solvers::MixedProgram;
using Slots = PlacementLatency::Slots;

constexpr std::string_view kMethod = "dnn_partitioning_latency";
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Seconds kDefaultTime = 60;
constexpr double kProven = 1e-5;  // relative; CBC has no more digits

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

double number(const std::string& text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// The program of the head of this file; times are in units of `scale`, which no plan that is
/// wanted exceeds.
class LatencyProgram {
 public:
  LatencyProgram(const problem::LayerGraph& graph,
                 const PlacementGroups& groups,
                 const PlacementLatency& costs,
                 const problem::LayerMachines& machines,
                 double scale)
      : graph_(graph), groups_(groups), costs_(costs), machines_(machines), scale_(scale) {
    const int last = program_.add({1, 0, 1, false});
    first_latency_ = last + 1;
    for (const double earliest : costs.earliest()) {
      program_.add(MixedProgram::Column{0, std::min(1.0, earliest / scale), 1, false});
    }
    add_choices();
    add_subgraphs();
    for (std::size_t v = 0; v < graph.layers.size(); ++v) {
      program_.add({{{last, 1}, {latency(static_cast<int>(v)), -1}}, 0});
    }
    for (const problem::LayerEdge& edge : graph.edges) {
      program_.add({{{latency(edge.target), 1},
                     {latency(edge.source), -1},
                     {x_(group_of(edge.target), cpu()), -costs.cpu_time(edge.target) / scale}},
                    0});
    }
  }

  [[nodiscard]] solvers::MixedSolution solve(const solvers::SolveOptions& options) const {
    return solvers::solve_mixed(program_, options);
  }

  [[nodiscard]] Slots decode(const std::vector<double>& values) const {
    Slots slot(groups_.groups.size(), PlacementLatency::kCpu);
    for (std::size_t g = 0; g < slot.size(); ++g) {
      for (int s = 0; s < costs_.slots(); ++s) {
        slot[g] = values[at(x_(static_cast<int>(g), s))] > 0.5 ? s : slot[g];
      }
    }
    return slot;
  }

 private:
  [[nodiscard]] int cpu() const { return costs_.slots(); }
  [[nodiscard]] int latency(int layer) const { return first_latency_ + layer; }
  [[nodiscard]] int group_of(int layer) const { return groups_.group_of[at(layer)]; }

  void add_choices() {
    x_ = {static_cast<int>(program_.columns.size()), costs_.slots() + 1};
    for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
      MixedProgram::Row one{{}, 1, 1};
      for (int s = 0; s <= cpu(); ++s) {
        // Accelerators are alike: the first group is on the first one, if on any.
        const bool possible =
            s == cpu() ? machines_.cpus > 0
                       : groups_.groups[g].on_accelerator && at(s / costs_.subgraphs()) <= g;
        one.terms.emplace_back(program_.add({0, 0, possible ? 1.0 : 0.0, true}), 1);
      }
      program_.add(std::move(one));
    }
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const auto layer = static_cast<int>(v);
      program_.add(
          {{{latency(layer), 1}, {x_(group_of(layer), cpu()), -costs_.cpu_time(layer) / scale_}},
           0});
    }
    add_memory();
  }

  void add_memory() {
    const double memory = machines_.memory_bytes;
    for (int a = 0; a < machines_.devices && memory > 0; ++a) {
      MixedProgram::Row bytes{{}, -kInfinity, 1};
      for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
        for (int q = 0; q < costs_.subgraphs() && groups_.groups[g].bytes > 0; ++q) {
          bytes.terms.emplace_back(x_(static_cast<int>(g), a * costs_.subgraphs() + q),
                                   groups_.groups[g].bytes / memory);
        }
      }
      if (!bytes.terms.empty()) {
        program_.add(std::move(bytes));
      }
    }
  }

  void add_subgraphs() {
    const std::vector<std::vector<int>> receivers = receivers_of(graph_, groups_);
    int before = -1;  // finish of the subgraph before, on the same accelerator
    for (int s = 0; s < costs_.slots(); ++s) {
      const int start = program_.add({0, 0, 1, false});
      const int finish = program_.add({0, 0, 1, false});
      if (s % costs_.subgraphs() != 0) {
        program_.add({{{start, 1}, {before, -1}}, 0});
      }
      before = finish;
      MixedProgram::Row length{{{finish, 1}, {start, -1}}, 0, 0};
      for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
        const auto layer = static_cast<int>(v);
        program_.add({{{latency(layer), 1}, {finish, -1}, {x_(group_of(layer), s), -1}}, -1});
        add_transfers(layer, receivers[v], s, start, length);
      }
      for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
        double time = 0;
        for (const int layer : groups_.groups[g].layers) {
          time += costs_.time(layer);
        }
        length.terms.emplace_back(x_(static_cast<int>(g), s), -time / scale_);
      }
      program_.add(std::move(length));
      add_contiguity(groups_, x_, s, program_);
    }
  }

  void add_transfers(int source,
                     const std::vector<int>& receivers,
                     int subgraph,
                     int start,
                     MixedProgram::Row& length) {
    if (receivers.empty()) {
      return;
    }
    const int in = program_.add({0, 0, 1, false});
    const int out = program_.add({0, 0, 1, false});
    const int from = x_(group_of(source), subgraph);
    for (const int to : receivers) {
      program_.add({{{in, 1}, {from, 1}, {x_(to, subgraph), -1}}, 0});
      program_.add({{{out, 1}, {from, -1}, {x_(to, subgraph), 1}}, 0});
    }
    program_.add({{{start, 1}, {latency(source), -1}, {in, -1}}, -1});
    if (costs_.transfer(source) > 0) {
      length.terms.emplace_back(in, -costs_.transfer(source) / scale_);
      length.terms.emplace_back(out, -costs_.transfer(source) / scale_);
    }
  }

  const problem::LayerGraph& graph_;
  const PlacementGroups& groups_;
  const PlacementLatency& costs_;
  const problem::LayerMachines& machines_;
  double scale_;
  MixedProgram program_{};
  int first_latency_ = 0;
  PlacementColumns x_{};
};

class LatencyPlacement {
 public:
  LatencyPlacement(const LayerRequest& request, const PlacementGroups& groups, int subgraphs)
      : request_(request),
        groups_(groups),
        costs_(request, groups, subgraphs),
        options_(limits_of(request)) {
    options_.time_limit = options_.time_limit > 0 ? options_.time_limit : kDefaultTime;
  }

  LayerPlanResult run() {
    const solvers::Budget budget(options_);
    if (request_.options.at("search") == "greedy") {
      keep(costs_.greedy(depth_first_order(groups_.needs, {DepthFirst::Rule::kBranches, true})));
      return answer(search_limit(budget.limit()));
    }
    start(budget);
    const std::vector<double> earliest = costs_.earliest();
    lower_bound_ = std::max(proven_, *std::max_element(earliest.begin(), earliest.end()));
    const double gap = number(request_.options.at("gap"));
    if (lower_bound_ >= latency_ * (1 - gap) || proven_infeasible_ || budget.exhausted() ||
        too_large()) {
      return answer(search_limit(budget.limit()));
    }
    return answer(solve(budget, gap));
  }

 private:
  /// CBC would not get through its first relaxation.
  [[nodiscard]] bool too_large() const {
    return groups_.groups.size() * (at(costs_.slots()) + 1) > kMostBinaries;
  }

  void keep(const Slots& slot) {
    const double latency = slot.empty() ? kInfinity : costs_.latency(slot);
    if (latency < latency_) {
      latency_ = latency;
      best_ = slot;
    }
  }

  void start(const solvers::Budget& budget) {
    keep(Slots(groups_.groups.size(), PlacementLatency::kCpu));
    for (const DepthFirst::Rule rule : {DepthFirst::Rule::kBranches, DepthFirst::Rule::kNeeds}) {
      for (const bool reversed : {false, true}) {
        const std::vector<int> order = depth_first_order(groups_.needs, {rule, reversed});
        keep(costs_.greedy(order));
        Slots slot = costs_.cut(order, budget);
        if (one_by_one(order) && !budget.exhausted()) {
          proven_infeasible_ = slot.empty();
          proven_ = slot.empty() ? kInfinity : costs_.latency(slot);
        }
        if (!slot.empty()) {
          costs_.improve(slot, budget);
          keep(slot);
        }
      }
    }
  }

  /// Whether nothing can ever run at the same time, so that the best cut of the order is the best
  /// placement: each group needs the one before it, and has one layer that takes time.
  [[nodiscard]] bool one_by_one(const std::vector<int>& order) const {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::vector<int>& layers = groups_.groups[at(order[i])].layers;
      const std::vector<int>& needs = groups_.needs[at(order[i])];
      const auto slow = std::count_if(layers.begin(), layers.end(), [&](int layer) {
        return costs_.time(layer) > 0 || costs_.cpu_time(layer) > 0;
      });
      if (slow > 1 ||
          (i > 0 && std::find(needs.begin(), needs.end(), order[i - 1]) == needs.end())) {
        return false;
      }
    }
    return costs_.subgraphs() == 1;
  }

  SearchLimit solve(const solvers::Budget& budget, double gap) {
    double scale = latency_;
    if (scale == kInfinity) {
      scale = 0;
      for (std::size_t v = 0; v < request_.graph.layers.size(); ++v) {
        const auto layer = static_cast<int>(v);
        scale += costs_.time(layer) + costs_.cpu_time(layer) + 2 * costs_.transfer(layer);
      }
    }
    const LatencyProgram program(
        request_.graph, groups_, costs_, request_.machines, scale > 0 ? scale : 1);
    solvers::SolveOptions options = options_;
    options.gap = gap;
    options.time_limit = budget.seconds_left();
    const solvers::MixedSolution solution = program.solve(options);
    if (!solution.values.empty()) {
      Slots slot = program.decode(solution.values);
      costs_.improve(slot, budget);
      keep(slot);
    }
    proven_infeasible_ = solution.status == solvers::SolveStatus::kInfeasible && best_.empty();
    if (std::isfinite(solution.lower_bound)) {
      lower_bound_ = std::max(lower_bound_, solution.lower_bound * scale);
    }
    return search_limit(solution.limit);
  }

  [[nodiscard]] LayerPlanResult answer(SearchLimit limit) const {
    LayerPlanResult result;
    result.limit = limit;
    if (best_.empty()) {
      result.status = proven_infeasible_ ? SearchStatus::kInfeasible : SearchStatus::kNoPlanFound;
      result.explanation = fmt::format(
          "{}: {} accelerators of {}{}",
          proven_infeasible_ ? "nothing fits" : "no plan was found",
          request_.machines.devices,
          request_.machines.memory_bytes > 0
              ? human_bytes(static_cast<Bytes>(request_.machines.memory_bytes))
              : "any memory",
          request_.machines.cpus > 0 ? " and CPUs" : ", and no CPUs for what they do not hold");
      return result;
    }
    result.objective = latency_;
    result.lower_bound = std::min(lower_bound_, latency_);
    result.status = result.lower_bound >= latency_ * (1 - kProven) ? SearchStatus::kOptimal
                                                                   : SearchStatus::kFeasible;
    fill(result.best);
    return result;
  }

  void fill(problem::LayerPlan& plan) const {
    std::vector<problem::LayerStage> parts(at(costs_.slots()) + 1);
    for (const int layer : problem::topological_order(request_.graph)) {
      const int slot = best_[at(groups_.group_of[at(layer)])];
      problem::LayerStage& part = parts[at(slot + 1)];
      part.layers.push_back(layer);
      part.on_cpu = slot == PlacementLatency::kCpu;
      part.time += part.on_cpu ? costs_.cpu_time(layer) : costs_.time(layer);
      const problem::LayerChoice& choice = request_.graph.layers[at(layer)].choices.front();
      part.memory_bytes += choice.constant_bytes + choice.in_flight_bytes;
      if (!part.on_cpu) {
        part.devices = {slot / costs_.subgraphs()};
      }
    }
    for (problem::LayerStage& part : parts) {
      if (!part.layers.empty()) {
        plan.stages.push_back(std::move(part));
      }
    }
  }

  static constexpr std::size_t kMostBinaries = 20'000;

  const LayerRequest& request_;
  const PlacementGroups& groups_;
  PlacementLatency costs_;
  solvers::SolveOptions options_;
  Slots best_{};
  double latency_ = kInfinity;
  double lower_bound_ = 0;
  double proven_ = 0;  ///< latency that no plan beats, where groups run one by one
  bool proven_infeasible_ = false;
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  for (const problem::Layer& layer : request.graph.layers) {
    if (layer.placement && layer.placement->backward) {
      return unsupported(fmt::format("{} is for the latency of inference, and {} is a part of the "
                                     "backward pass",
                                     kMethod,
                                     problem::describe(layer)),
                         request.graph.name);
    }
  }
  constexpr double kMostSubgraphs = 100;
  const double subgraphs = number(request.options.at("subgraphs"));
  if (subgraphs < 1 || subgraphs > kMostSubgraphs || subgraphs != std::floor(subgraphs)) {
    return invalid_input(
        fmt::format("{} wants a whole number of subgraphs for each accelerator, 1 to {}",
                    kMethod,
                    kMostSubgraphs),
        "--option");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const PlacementGroups groups, placement_groups(request, kMethod));
  return LatencyPlacement(request, groups, static_cast<int>(subgraphs)).run();
}

}  // namespace

LayerPlannerInfo dnn_partitioning_latency_planner() {
  const LayerPlannerInfo throughput = dnn_partitioning_dp_planner();
  return {kMethod,
          throughput.paper,
          throughput.year,
          "one query of inference: subgraphs on accelerators, the rest on CPUs, done soonest",
          "training, data and tensor parallelism, a hierarchy of bandwidths",
          "of latency",
          {{"search", "ip", {"ip", "greedy"}, "the integer program, or the paper's greedy rule"},
           {"subgraphs", "1", {}, "how many an accelerator runs, one after the other"},
           {"gap", "0.01", {}, "relative gap at which to stop; as published, 1 %"}},
          &solve,
          &problem::dnn_partitioning_latency_objective};
}

}  // namespace shardplan::planners
