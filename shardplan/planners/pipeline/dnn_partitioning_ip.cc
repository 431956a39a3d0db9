// Binaries x[g,m]: group g is on device m. For each accelerator m and layer u that sends something,
// c[u,m] is at least |x[u,m] - x[v,m]| for every edge (u,v): 1 when an edge of u crosses m's
// border. Contiguous parts: placement_program.h.
//
// The linearised program's answer bounds the load from above; it is returned when CBC finds nothing
// better in its time. Deviations: the paper solves by a commercial solver, up to a gap of 1 % or 20
// minutes; here a minute is the default, and groups are folded as for the dynamic program.
#include "shardplan/planners/pipeline/dnn_partitioning_ip.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "shardplan/planners/pipeline/dnn_partitioning2020.h"
#include "shardplan/planners/pipeline/placement_groups.h"
#include "shardplan/planners/pipeline/placement_program.h"
#include "shardplan/problem/published_objectives.h"
#include "shardplan/solvers/budget.h"
#include "shardplan/solvers/mixed_program.h"

namespace shardplan::planners {
namespace {

using solvers::MixedProgram;

constexpr std::string_view kMethod = "dnn_partitioning_ip";
constexpr Seconds kDefaultTime = 60;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

class IntegerProgram {
 public:
  IntegerProgram(const LayerRequest& request, PlacementGroups groups)
      : request_(request),
        groups_(std::move(groups)),
        accelerators_(request.machines.devices),
        devices_(request.machines.devices + request.machines.cpus) {}

  Result<LayerPlanResult> run() {
    solvers::SolveOptions options = limits_of(request_);
    options.time_limit = options.time_limit > 0 ? options.time_limit : kDefaultTime;
    const solvers::Budget budget(options);
    SHARDPLAN_ASSIGN_OR_RETURN(LayerPlanResult result,
                               dnn_partitioning_linear_planner().solve(request_));
    result.lower_bound = 0;
    if (groups_.groups.size() * at(devices_) > kMostBinaries || budget.exhausted()) {
      return result;
    }
    scale_ = 0;
    for (const PlacementGroups::Group& group : groups_.groups) {
      scale_ += std::max(group.time, group.cpu_time);
    }
    scale_ = scale_ > 0 ? scale_ / devices_ : 1;
    const double most = std::isfinite(result.objective) ? result.objective / scale_
                                                        : std::numeric_limits<double>::infinity();
    load_ = program_.add({1, 0, most, false});
    add_choices();
    add_loads();
    add_transfers();
    for (int m = 0; m < devices_ && request_.options.at("contiguous") == "yes"; ++m) {
      add_contiguity(groups_, x_, m, program_);
    }
    const std::string& gap = request_.options.at("gap");
    std::from_chars(gap.data(), gap.data() + gap.size(), options.gap);
    options.time_limit = budget.seconds_left();
    const solvers::MixedSolution solution = solvers::solve_mixed(program_, options);
    conclude(solution, result);
    return result;
  }

 private:
  void add_choices() {
    x_ = {static_cast<int>(program_.columns.size()), devices_};
    const auto groups = static_cast<int>(groups_.groups.size());
    for (int g = 0; g < groups; ++g) {
      MixedProgram::Row one{{}, 1, 1};
      for (int m = 0; m < devices_; ++m) {
        const bool possible = m >= accelerators_ || groups_.groups[at(g)].on_accelerator;
        one.terms.emplace_back(program_.add({0, 0, possible ? 1.0 : 0.0, true}), 1);
      }
      program_.add(std::move(one));
    }
  }

  /// Rows for the load of each device, to which add_transfers() adds, and for its memory.
  void add_loads() {
    const double memory = request_.machines.memory_bytes;
    for (int m = 0; m < devices_; ++m) {
      MixedProgram::Row load{{{load_, -1}}, -std::numeric_limits<double>::infinity(), 0};
      MixedProgram::Row bytes{{}, -std::numeric_limits<double>::infinity(), 1};
      for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
        const PlacementGroups::Group& group = groups_.groups[g];
        const double time = m < accelerators_ ? group.time : group.cpu_time;
        load.terms.emplace_back(x_(static_cast<int>(g), m), time / scale_);
        if (memory > 0 && group.bytes > 0) {
          bytes.terms.emplace_back(x_(static_cast<int>(g), m), group.bytes / memory);
        }
      }
      load_rows_.push_back(program_.rows.size());
      program_.add(std::move(load));
      if (m < accelerators_ && !bytes.terms.empty()) {
        program_.add(std::move(bytes));
      }
    }
  }

  void add_transfers() {
    const std::vector<std::vector<int>> receivers = receivers_of(request_.graph, groups_);
    for (std::size_t u = 0; u < receivers.size(); ++u) {
      if (groups_.transfer[u] <= 0 || receivers[u].empty()) {
        continue;
      }
      for (int m = 0; m < accelerators_; ++m) {
        const int crossing = program_.add({0, 0, 1, false});
        program_.rows[load_rows_[at(m)]].terms.emplace_back(crossing, groups_.transfer[u] / scale_);
        for (const int to : receivers[u]) {
          const int from = groups_.group_of[u];
          program_.add({{{crossing, 1}, {x_(from, m), -1}, {x_(to, m), 1}}, 0});
          program_.add({{{crossing, 1}, {x_(from, m), 1}, {x_(to, m), -1}}, 0});
        }
      }
    }
  }

  void conclude(const solvers::MixedSolution& solution, LayerPlanResult& result) const {
    result.limit = search_limit(solution.limit);
    if (!solution.values.empty()) {
      problem::LayerPlan plan = decode(solution.values);
      const Result<double> value = problem::dnn_partitioning_objective(
          request_.graph, request_.machines, plan, request_.options);
      if (value && *value < result.objective) {
        result.objective = *value;
        result.best = std::move(plan);
      }
    }
    if (result.best.stages.empty()) {
      result.status = solution.status == solvers::SolveStatus::kInfeasible
                          ? SearchStatus::kInfeasible
                          : SearchStatus::kNoPlanFound;
      result.explanation =
          result.explanation.empty() ? "CBC found no placement in its time" : result.explanation;
      return;
    }
    if (std::isfinite(solution.lower_bound)) {
      result.lower_bound = std::clamp(solution.lower_bound * scale_, 0.0, result.objective);
    }
    result.status = result.lower_bound >= result.objective * (1 - kProven)
                        ? SearchStatus::kOptimal
                        : SearchStatus::kFeasible;
  }

  [[nodiscard]] problem::LayerPlan decode(const std::vector<double>& values) const {
    std::vector<problem::LayerStage> parts(at(devices_));
    for (const int layer : problem::topological_order(request_.graph)) {
      const int group = groups_.group_of[at(layer)];
      for (int m = 0; m < devices_; ++m) {
        if (values[at(x_(group, m))] > 0.5) {
          parts[at(m)].layers.push_back(layer);
        }
      }
    }
    problem::LayerPlan plan;
    for (int m = 0; m < devices_; ++m) {
      problem::LayerStage& part = parts[at(m)];
      if (part.layers.empty()) {
        continue;
      }
      part.on_cpu = m >= accelerators_;
      for (const int layer : part.layers) {
        const problem::LayerChoice& choice = request_.graph.layers[at(layer)].choices.front();
        part.memory_bytes += choice.constant_bytes + choice.in_flight_bytes;
      }
      part.time = load_of(values, m);
      plan.stages.push_back(std::move(part));
    }
    return plan;
  }

  /// The device's row of the program, by its values.
  [[nodiscard]] double load_of(const std::vector<double>& values, int device) const {
    double load = 0;
    for (const auto& [column, element] : program_.rows[load_rows_[at(device)]].terms) {
      load += column == load_ ? 0 : values[at(column)] * element * scale_;
    }
    return load;
  }

  static constexpr std::size_t kMostBinaries = 20'000;  // CBC would not finish a relaxation
  static constexpr double kProven = 1e-5;               ///< relative; CBC has no more digits

  const LayerRequest& request_;
  PlacementGroups groups_;
  int accelerators_;
  int devices_;
  double scale_ = 1;  ///< time that the program calls 1
  MixedProgram program_{};
  int load_ = 0;
  PlacementColumns x_{};
  std::vector<std::size_t> load_rows_{};
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  SHARDPLAN_ASSIGN_OR_RETURN(PlacementGroups groups, placement_groups(request, kMethod));
  return IntegerProgram(request, std::move(groups)).run();
}

}  // namespace

LayerPlannerInfo dnn_partitioning_ip_planner() {
  const LayerPlannerInfo dynamic = dnn_partitioning_dp_planner();
  return {kMethod,
          dynamic.paper,
          dynamic.year,
          "parts on accelerators and CPUs with the least largest load, by an integer program",
          dynamic.cannot,
          dynamic.per,
          {{"contiguous", "yes", {"yes", "no"}, "whether parts must be contiguous"},
           {"gap", "0.01", {}, "relative gap at which to stop; as published, 1 %"}},
          &solve,
          &problem::dnn_partitioning_objective};
}

}  // namespace shardplan::planners
