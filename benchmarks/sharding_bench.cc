// The inner loops of planners: the strategies of an op and their layouts, and cheapest changes of
// layout, first asked (a new Resharder) and asked again.
#include <benchmark/benchmark.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/sharding/reshard.h"
#include "shardplan/sharding/strategy.h"

namespace shardplan::sharding {
namespace {

cluster::DeviceMesh mesh_of(std::int64_t axes) {
  cluster::DeviceMesh mesh;
  for (std::int64_t axis = 0; axis < axes; ++axis) {
    mesh.axes.push_back({"m" + std::to_string(axis), 2});
  }
  return mesh;
}

cluster::Cluster cluster_of(std::int64_t devices) {
  cluster::Cluster cluster;
  cluster.name = "bench";
  cluster.device.name = "device";
  cluster.device.memory = Bytes{80} << 30;
  cluster.device.peak_flops = {{"f32", 1e14}};
  cluster.device.memory_bandwidth = 2e12;
  cluster.levels = {{"network", devices / 2, 25e9, 1e-5, {}}, {"link", 2, 300e9, 2e-6, {}}};
  return cluster;
}

/// The product of attention scores of a large model: 5 axes, two partial rules.
ops::AxisMap einsum() {
  const std::vector<ir::TensorType> inputs{{ir::DType::kFloat32, {16, 2048, 16, 128}},
                                           {ir::DType::kFloat32, {16, 2048, 16, 128}}};
  const std::vector<ir::TensorType> results{{ir::DType::kFloat32, {16, 16, 2048, 2048}}};
  return ops::make_axis_map(
      "b q h d, b k h d -> b h q k", inputs, results, {{{0}, {0}}, {{1}, {0}}});
}

void enumerate_einsum(benchmark::State& state) {
  const ops::AxisMap map = einsum();
  const cluster::DeviceMesh mesh = mesh_of(state.range(0));
  std::size_t count = 0;
  for (auto _ : state) {
    const std::vector<Strategy> strategies = enumerate_strategies(map, mesh);
    count = strategies.size();
    benchmark::DoNotOptimize(strategies.data());
  }
  state.counters["strategies"] = static_cast<double>(count);
}
BENCHMARK(enumerate_einsum)->DenseRange(2, 4)->Unit(benchmark::kMicrosecond);

/// Layouts of every strategy: time of one layouts() call.
void layouts_einsum(benchmark::State& state) {
  const ops::AxisMap map = einsum();
  const cluster::DeviceMesh mesh = mesh_of(state.range(0));
  const std::vector<Strategy> strategies = enumerate_strategies(map, mesh);
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(layouts(map, strategies[next], mesh));
    next = next + 1 == strategies.size() ? 0 : next + 1;
  }
}
BENCHMARK(layouts_einsum)->DenseRange(2, 4);

/// Layouts of a matrix that a strategy can ask for or leave: up to one partial axis.
std::vector<ShardingSpec> matrix_layouts(std::int64_t mesh_axes) {
  ops::AxisMap map;
  map.axes = {{"m", 4096}, {"n", 4096}, {"k", 4096, ops::AxisRole::kSum}};
  map.inputs = {{{0}, {1}, {2}}};
  map.results = {{{0}, {1}}};
  const cluster::DeviceMesh mesh = mesh_of(mesh_axes);
  std::vector<ShardingSpec> out;
  for (const Strategy& strategy : enumerate_strategies(map, mesh)) {
    if (const std::optional<OpLayouts> found = layouts(map, strategy, mesh)) {
      out.push_back(found->results[0]);
    }
  }
  return out;
}

struct ReshardCase {
  explicit ReshardCase(std::int64_t mesh_axes)
      : mesh(mesh_of(mesh_axes)),
        model(cluster_of(mesh.size()), mesh),
        price([this](const ReshardStep& step, const ir::TensorType& tensor) {
          return model.reshard_step(step, tensor);
        }),
        specs(matrix_layouts(mesh_axes)) {}
  cluster::DeviceMesh mesh;
  cost::CostModel model;
  StepPrice price;
  std::vector<ShardingSpec> specs;
  ir::TensorType type{ir::DType::kFloat32, {4096, 4096}};
};

/// One pair, nothing known.
void reshard_first(benchmark::State& state) {
  const ReshardCase the(state.range(0));
  std::mt19937 random(1);
  for (auto _ : state) {
    Resharder resharder(the.mesh, the.price);
    const ShardingSpec& from = the.specs[random() % the.specs.size()];
    const ShardingSpec& to = the.specs[random() % the.specs.size()];
    benchmark::DoNotOptimize(resharder.path(from, to, the.type).price);
  }
}
BENCHMARK(reshard_first)->DenseRange(2, 4)->Unit(benchmark::kMicrosecond);

/// The table of all pairs, as a planner asks for it: time of one pair.
void reshard_table(benchmark::State& state) {
  const ReshardCase the(state.range(0));
  for (auto _ : state) {
    Resharder resharder(the.mesh, the.price);
    for (const ShardingSpec& from : the.specs) {
      for (const ShardingSpec& to : the.specs) {
        benchmark::DoNotOptimize(resharder.cost(from, to, the.type).price);
      }
    }
  }
  const auto pairs = static_cast<double>(the.specs.size() * the.specs.size());
  state.counters["pairs"] = pairs;
  state.counters["per_pair"] =
      benchmark::Counter(pairs * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(reshard_table)->DenseRange(2, 4)->Unit(benchmark::kMicrosecond);

/// A pair that is known.
void reshard_again(benchmark::State& state) {
  const ReshardCase the(state.range(0));
  Resharder resharder(the.mesh, the.price);
  std::mt19937 random(1);
  for (const ShardingSpec& from : the.specs) {
    for (const ShardingSpec& to : the.specs) {
      benchmark::DoNotOptimize(resharder.path(from, to, the.type).price);
    }
  }
  for (auto _ : state) {
    const ShardingSpec& from = the.specs[random() % the.specs.size()];
    const ShardingSpec& to = the.specs[random() % the.specs.size()];
    benchmark::DoNotOptimize(resharder.path(from, to, the.type).price);
  }
}
BENCHMARK(reshard_again)->DenseRange(2, 3);

}  // namespace
}  // namespace shardplan::sharding
