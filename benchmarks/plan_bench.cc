// A whole plan, from the training step to the simulated Program, by every planner that is asked.
// Wanted: Llama-2 7B for 8xA100-80GB by `map` below 2 s of CPU time; strategies and resharding
// costs of GPT-2 small on 2 × 2 below 5 ms. `optimum` is the unlimited problem on every mesh:
// choices, tables, exact optimum or, where a join is too large, a bound and a plan near it.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/planner.h"
#include "shardplan/problem/step_structure.h"
#include "shardplan/solvers/class_elimination.h"
#include "shardplan/support/result.h"
#include "shardplan/training/training.h"

namespace shardplan {
namespace {

struct Case {
  std::string model;
  std::string cluster;
  training::Precision precision = training::Precision::kBFloat16;
};

Result<planners::PlanResult> plan_once(const Case& wanted, const std::string& planner) {
  training::Recipe recipe;
  recipe.precision = wanted.precision;
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward, frontends::load_model(wanted.model));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph step, training::build_training_step(forward, recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* found, planners::find_planner(planner));
  planners::PlanRequest request{.step = step};
  request.recipe = recipe;
  SHARDPLAN_ASSIGN_OR_RETURN(request.cluster, cluster::load_cluster(wanted.cluster));
  return found->plan(request);
}

void plan(benchmark::State& state, const Case& wanted, const std::string& planner) {
  plan::Prediction prediction;
  for ([[maybe_unused]] const auto iteration : state) {
    const Result<planners::PlanResult> result = plan_once(wanted, planner);
    if (!result) {
      state.SkipWithError(result.error().text().c_str());
      return;
    }
    prediction = result->best.prediction;
  }
  state.counters["step_ms"] = 1e3 * prediction.step_seconds;
  state.counters["peak_GiB"] = static_cast<double>(prediction.peak_bytes) / (1 << 30);
  state.counters["gap"] = prediction.gap;
}

Result<ir::Graph> step_of(const std::string& model) {
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward, frontends::load_model(model));
  return training::build_training_step(forward, training::Recipe{});
}

/// Choices of all nodes and tables of all edges on one mesh.
void tables(benchmark::State& state, const std::string& model, const cluster::DeviceMesh& mesh) {
  const Result<ir::Graph> step = step_of(model);
  const Result<cluster::Cluster> cluster = cluster::load_cluster("8xA100-80GB");
  if (!step || !cluster) {
    state.SkipWithError("no model or cluster");
    return;
  }
  const auto structure = std::make_shared<const problem::StepStructure>(*step);
  for ([[maybe_unused]] const auto iteration : state) {
    const cost::CostModel cost(*cluster, mesh);
    const auto problem = problem::IntraOpProblem::build(structure, cost);
    benchmark::DoNotOptimize(problem->class_network(false));
  }
}

void optimum(benchmark::State& state, const std::string& model, const std::string& devices) {
  const Result<ir::Graph> step = step_of(model);
  const Result<cluster::Cluster> cluster = cluster::load_cluster(devices);
  if (!step || !cluster) {
    state.SkipWithError("no model or cluster");
    return;
  }
  const auto meshes = cluster::enumerate_meshes(*cluster, static_cast<int>(state.range(0)));
  double best = 0;
  double bound = 0;
  for ([[maybe_unused]] const auto iteration : state) {
    best = bound = std::numeric_limits<double>::infinity();
    const auto structure = std::make_shared<const problem::StepStructure>(*step);
    for (const cluster::DeviceMesh& mesh : meshes) {
      const cost::CostModel cost(*cluster, mesh);
      const auto problem = problem::IntraOpProblem::build(structure, cost);
      const solvers::ClassSolution solution =
          solvers::minimise(problem->class_network(false), {.split_work = 3e8});
      best = std::min(best, solution.cost);
      bound = std::min(bound, solution.lower_bound);
    }
  }
  state.counters["meshes"] = static_cast<double>(meshes.size());
  state.counters["additive_ms"] = 1e3 * best;
  state.counters["gap"] = best / bound - 1;
}

constexpr const char* kCluster = "8xA100-80GB";

BENCHMARK_CAPTURE(tables, gpt2_small_2x2, "gpt2-small", {{{"a", 2}, {"b", 2}}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(tables, gpt2_small_2x4, "gpt2-small", {{{"a", 2}, {"b", 4}}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(optimum, llama3_8b_64, "llama3-8b", "dgx-a100:8")
    ->DenseRange(2, 4)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(optimum, gpt3_175b_1024, "gpt3-175b", "dgx-a100:128")
    ->DenseRange(2, 4)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

BENCHMARK_CAPTURE(plan, llama2_7b_map, Case{"llama2-7b", kCluster}, "map")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, llama2_7b_megatron, Case{"llama2-7b", kCluster}, "megatron")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, llama2_7b_zero3, Case{"llama2-7b", kCluster}, "zero3")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, gpt2_small_map, Case{"gpt2-small", kCluster}, "map")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan
