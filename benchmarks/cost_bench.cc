// What planners and tables call most: prices of kernels and collectives, the simulation of a
// program, the profile of a step. Wanted: a price below 100 ns, the profile of 10,000 ops below
// 5 ms.

#include <benchmark/benchmark.h>

#include <string>

#include "shardplan/cost/cost_model.h"
#include "shardplan/ops/op.h"
#include "shardplan/sim/sim.h"

namespace shardplan {
namespace {

using ir::Phase;
using ir::ValueId;

cost::CostModel two_nodes() {
  cluster::DeviceMesh mesh;
  mesh.axes = {{"m0", 2}, {"m1", 2}, {"m2", 4}};
  return {*cluster::load_cluster("dgx-a100:2"), mesh};
}

void collective(benchmark::State& state) {
  const cost::CostModel cost = two_nodes();
  const std::vector<int> axes = {0, 1};
  Bytes bytes = 1;
  for ([[maybe_unused]] const auto iteration : state) {
    bytes = bytes * 5 % 999'999'937;
    benchmark::DoNotOptimize(cost.collective(sharding::CollectiveKind::kAllReduce, bytes, axes));
  }
}
BENCHMARK(collective);

void kernel(benchmark::State& state) {
  const cost::CostModel cost = two_nodes();
  cost::Kernel kernel{"einsum", ir::DType::kBFloat16, 1e9, 1, true};
  for ([[maybe_unused]] const auto iteration : state) {
    kernel.bytes = kernel.bytes * 5 % 999'999'937;
    benchmark::DoNotOptimize(cost.kernel(kernel));
  }
}
BENCHMARK(kernel);

void cost_model_of_a_mesh(benchmark::State& state) {
  const cluster::Cluster cluster = *cluster::load_cluster("dgx-a100:2");
  const cluster::DeviceMesh mesh = two_nodes().mesh();
  for ([[maybe_unused]] const auto iteration : state) {
    benchmark::DoNotOptimize(cost::CostModel(cluster, mesh));
  }
}
BENCHMARK(cost_model_of_a_mesh)->Unit(benchmark::kMicrosecond);

ValueId input(ir::Graph& graph, ir::ValueKind kind, ir::Shape shape) {
  ir::Value value;
  value.name = "v" + std::to_string(graph.values().size());
  value.kind = kind;
  value.type = {ir::DType::kFloat32, std::move(shape)};
  return graph.add_value(std::move(value));
}

ValueId append(ir::Graph& graph,
               const char* name,
               std::vector<ValueId> inputs,
               const ir::Attributes& attributes,
               Phase phase,
               const std::string& layer) {
  ir::Op op;
  op.name = name;
  op.inputs = std::move(inputs);
  op.attributes = attributes;
  op.phase = phase;
  op.layer = layer;
  return graph.op(*ops::append(graph, std::move(op))).outputs[0];
}

/// A chain of `layers` linear layers with GELU, backwards too: 5 ops a layer.
ir::Graph chain(int layers) {
  ir::Graph graph;
  const ir::Attributes forward = {{"equation", std::string("bsk,nk->bsn")}};
  const ir::Attributes to_input = {{"equation", std::string("bsn,nk->bsk")}};
  const ir::Attributes to_weight = {{"equation", std::string("bsn,bsk->nk")}};
  const ir::Attributes tanh = {{"approximate", std::string("tanh")}};
  ValueId x = input(graph, ir::ValueKind::kInput, {8, 1024, 768});
  std::vector<ValueId> xs;
  std::vector<ValueId> hs;
  std::vector<ValueId> weights;
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "h." + std::to_string(i);
    xs.push_back(x);
    weights.push_back(input(graph, ir::ValueKind::kParameter, {768, 768}));
    hs.push_back(append(graph, "einsum", {x, weights.back()}, forward, Phase::kForward, layer));
    x = append(graph, "gelu", {hs.back()}, tanh, Phase::kForward, layer);
  }
  graph.outputs = {x};
  ValueId g = x;
  for (std::size_t i = xs.size(); i-- > 0;) {
    const std::string layer = "h." + std::to_string(i);
    const auto phase = Phase::kBackward;
    g = append(graph, "gelu_backward", {g, hs[i]}, tanh, phase, layer);
    append(graph, "einsum", {g, xs[i]}, to_weight, phase, layer);
    g = append(graph, "einsum", {g, weights[i]}, to_input, phase, layer);
  }
  return graph;
}

void profile_chain(benchmark::State& state) {
  const ir::Graph step = chain(static_cast<int>(state.range(0)) / 5);
  for ([[maybe_unused]] const auto iteration : state) {
    benchmark::DoNotOptimize(sim::profile(step).peak_bytes);
  }
}
BENCHMARK(profile_chain)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

void simulate_chain(benchmark::State& state) {
  const ir::Graph step = chain(static_cast<int>(state.range(0)) / 5);
  plan::Plan plan;
  plan.strategies.resize(step.ops().size());
  const cost::CostModel cost(*cluster::load_cluster("local:1"), plan.mesh);
  const Result<lower::Program> program =
      lower::lower(step, plan, [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
        return cost.reshard_step(move, type);
      });
  for ([[maybe_unused]] const auto iteration : state) {
    benchmark::DoNotOptimize(sim::simulate(*program, step, cost).peak_bytes);
  }
}
BENCHMARK(simulate_chain)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan
