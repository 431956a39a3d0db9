// Pipelines of GPT-3 175B, 1,536 sequences in 64 microbatches, on 1,024 A100. Wanted: less than 1
// ms for each configuration of a sweep over 8 stages (DistIR's simulator takes 380 ms), and less
// than 10 s of CPU time for our own planner.
//
// `configuration`: a configuration as the search sees it, its blocks lowered and measured once for
// all: the cut, what runs again, memory over all tasks, and the schedule's time. `whole`: the same
// configuration with every stage lowered and simulated instruction by instruction. `blocks`: what
// is made once for a sweep of all options for groups of 128 devices.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/intra/map2023.h"
#include "shardplan/planners/pipeline/compose.h"
#include "shardplan/planners/pipeline/shardplan.h"
#include "shardplan/training/training.h"

namespace shardplan::planners {
namespace {

constexpr int kStages = 8;

struct Job {
  training::Recipe recipe{};
  ir::Graph step{};
  cluster::Cluster cluster{};

  Job() {
    recipe.microbatches = 64;
    recipe.precision = training::Precision::kBFloat16;
    const ir::Graph forward = frontends::load_model("gpt3-175b:batch=1536").value();
    step = training::build_training_step(forward, recipe).value();
    cluster = cluster::load_cluster("dgx-a100:128").value();
  }

  [[nodiscard]] PlanRequest request() const {
    PlanRequest request{.step = step};
    request.recipe = recipe;
    request.cluster = cluster;
    return request;
  }
};

/// The best one of 8 stages under 1F1B.
Result<Composition> find_choice(const PlanRequest& request, BlockCosts& costs) {
  const Budget budget(request);
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<Composition> all,
                             Composer(request, costs).compose(memory_limit(request), budget));
  const auto found = std::find_if(all.begin(), all.end(), [](const Composition& choice) {
    return choice.groups == kStages && choice.schedule->name == "1f1b";
  });
  if (found == all.end()) {
    return invalid_input("8 stages do not fit", "bench");
  }
  return *found;
}

/// Calls `measure(request, costs, choice)` with that one.
template <class Measure>
void with_choice(benchmark::State& state, const Measure& measure) {
  const Job job;
  const PlanRequest request = job.request();
  Result<BlockCosts> costs = BlockCosts::make(request);
  const Result<Composition> choice = find_choice(request, *costs);
  if (!choice) {
    state.SkipWithError(choice.error().text().c_str());
    return;
  }
  measure(request, *costs, *choice);
}

void blocks(benchmark::State& state) {
  const Job job;
  const PlanRequest request = job.request();
  const Budget budget(request);
  std::size_t options = 0;
  for ([[maybe_unused]] const auto iteration : state) {
    Result<BlockCosts> costs = BlockCosts::make(request);
    options = (*costs->options(request.cluster.device_count() / kStages, budget))->size();
  }
  state.counters["options"] = static_cast<double>(options);
}
BENCHMARK(blocks)->Unit(benchmark::kMillisecond);

void configuration(benchmark::State& state) {
  with_choice(state, [&](const PlanRequest& request, BlockCosts& costs, const Composition& choice) {
    const Composer composer(request, costs);
    for ([[maybe_unused]] const auto iteration : state) {
      benchmark::DoNotOptimize(composer.again(choice, memory_limit(request)));
    }
    state.counters["step_s"] = choice.seconds;
  });
}
BENCHMARK(configuration)->Unit(benchmark::kMillisecond);

void whole(benchmark::State& state) {
  with_choice(state,
              [&](const PlanRequest& request, BlockCosts& /*costs*/, const Composition& choice) {
                const PlannerInfo inside = map_planner();
                const Result<Candidate> made = StagePlans(request, inside).plan(choice.cut);
                for ([[maybe_unused]] const auto iteration : state) {
                  benchmark::DoNotOptimize(evaluate(made->plan, request.step));
                }
                state.counters["step_s"] = made->simulation.step_seconds;
              });
}
BENCHMARK(whole)->Unit(benchmark::kMillisecond);

void own_planner(benchmark::State& state) {
  const Job job;
  const PlanRequest request = job.request();
  plan::Prediction prediction;
  for ([[maybe_unused]] const auto iteration : state) {
    prediction = shardplan_planner().plan(request)->best.prediction;
  }
  state.counters["step_s"] = prediction.step_seconds;
  state.counters["bound_s"] = prediction.step_lower_bound_seconds;
}
BENCHMARK(own_planner)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan::planners
