// The symbolic profile of a whole training step: build the step from the forward graph, then count.
// Wanted: GPT-2 small below 10 ms.

#include <benchmark/benchmark.h>

#include <string>

#include "shardplan/frontends/frontends.h"
#include "shardplan/sim/sim.h"
#include "shardplan/support/result.h"
#include "shardplan/training/training.h"

namespace shardplan {
namespace {

void profile(benchmark::State& state, const std::string& model) {
  const Result<ir::Graph> forward = frontends::load_model(model);
  if (!forward) {
    state.SkipWithError(forward.error().text().c_str());
    return;
  }
  Bytes peak = 0;
  std::size_t ops = 0;
  for ([[maybe_unused]] const auto iteration : state) {
    const Result<ir::Graph> step = training::build_training_step(*forward, training::Recipe{});
    if (!step) {
      state.SkipWithError(step.error().text().c_str());
      return;
    }
    ops = step->ops().size();
    peak = sim::profile(*step).peak_bytes;
    benchmark::DoNotOptimize(peak);
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["peak_GiB"] = static_cast<double>(peak) / (1 << 30);
}

BENCHMARK_CAPTURE(profile, gpt2_small, "gpt2-small")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(profile, llama2_7b, "llama2-7b")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(profile, gpt3_175b, "gpt3-175b")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan
