// Predictions of Megatron-style runs: one alone, and the sweep of all configurations with a memory
// check. Wanted: at least 5,000,000 configurations a second of CPU time (items_per_second);
// Calculon examines about 105.
#include <benchmark/benchmark.h>

#include <string>

#include "shardplan/cost/megatron.h"
#include "shardplan/cost/megatron_sweep.h"

namespace shardplan::cost {
namespace {

constexpr MegatronModel kGpt3{
    .layers = 96, .hidden = 12288, .heads = 96, .seq = 2048, .vocab = 51200};

cluster::Cluster dgx(std::int64_t nodes) {
  return cluster::load_cluster("dgx-a100:" + std::to_string(nodes)).value();
}

void predict_one(benchmark::State& state) {
  const cluster::Cluster cluster = dgx(8);
  MegatronConfig config;
  config.tensor = 8;
  config.pipeline = 8;
  config.batch = 64;
  config.interleave = 3;
  for (auto _ : state) {
    benchmark::DoNotOptimize(predict_megatron(kGpt3, cluster, config));
  }
}
BENCHMARK(predict_one)->Unit(benchmark::kMicrosecond);

void sweep(benchmark::State& state, const MegatronModel& model) {
  const cluster::Cluster cluster = dgx(state.range(0) / 8);
  MegatronSweepOptions options;
  options.batch = state.range(1);
  std::int64_t examined = 0;
  for (auto _ : state) {
    const auto swept = sweep_megatron(model, cluster, options);
    examined += swept->examined;
    benchmark::DoNotOptimize(swept->best.data());
  }
  state.SetItemsProcessed(examined);
  state.counters["configurations"] =
      static_cast<double>(examined) / static_cast<double>(state.iterations());
}

/// GPT-3 175B; devices, batch.
void sweep_gpt3(benchmark::State& state) {
  sweep(state, kGpt3);
}
BENCHMARK(sweep_gpt3)
    ->Args({64, 64})
    ->Args({1024, 1536})
    ->Args({4096, 4096})
    ->Args({16384, 5040})
    ->Unit(benchmark::kMillisecond);

/// 105 layers and 1,920 samples, as MT-NLG, on as many devices.
void sweep_mt_nlg(benchmark::State& state) {
  sweep(state, {.layers = 105, .hidden = 20480, .heads = 128, .seq = 2048, .vocab = 51200});
}
BENCHMARK(sweep_mt_nlg)->Args({3360, 1920})->Unit(benchmark::kMillisecond);

/// Few configurations of each kind: tables and placements weigh most.
void sweep_small(benchmark::State& state) {
  sweep(state, {.layers = 7, .hidden = 1024, .heads = 8, .seq = 1024, .vocab = 50257});
}
BENCHMARK(sweep_small)->Args({8, 13})->Args({64, 64})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan::cost
