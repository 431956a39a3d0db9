// A whole plan, from the training step to the simulated Program, by every planner that is asked.
// Wanted: Llama-2 7B for 8xA100-80GB by `map` below 2 s of CPU time.

#include <benchmark/benchmark.h>

#include <string>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/planner.h"
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

constexpr const char* kCluster = "8xA100-80GB";

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
