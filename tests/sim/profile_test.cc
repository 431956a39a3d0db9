#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "shardplan/ops/op.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using ir::Attributes;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

/// Builds training steps op by op.
class StepWriter {
 public:
  ValueId input(ValueKind kind, ir::Shape shape) {
    ir::Value value;
    value.kind = kind;
    value.type = {ir::DType::kFloat32, std::move(shape)};
    value.name = "v" + std::to_string(graph.values().size());
    return graph.add_value(std::move(value));
  }

  ValueId op(const char* name,
             std::vector<ValueId> inputs,
             Attributes attributes,
             Phase phase,
             const std::string& layer = "") {
    ir::Op op;
    op.name = name;
    op.inputs = std::move(inputs);
    op.attributes = std::move(attributes);
    op.phase = phase;
    op.layer = layer;
    const Result<ir::OpId> id = ops::append(graph, std::move(op));
    EXPECT_TRUE(id.has_value()) << (id ? "" : id.error().text());
    return graph.op(*id).outputs[0];
  }

  ir::Graph graph;
};

Attributes equation(const char* text) {
  return {{"equation", std::string(text)}};
}

Attributes sgd() {
  return {{"lr", 0.1},
          {"momentum", 0.0},
          {"dampening", 0.0},
          {"weight_decay", 0.0},
          {"nesterov", false},
          {"has_momentum", false}};
}

/// Two linear layers with a ReLU between, summed; batch 8, sizes 16, 32, 4.
ir::Graph mlp_step() {
  StepWriter w;
  const ValueId x = w.input(ValueKind::kInput, {8, 16});
  const ValueId w1 = w.input(ValueKind::kParameter, {32, 16});
  const ValueId w2 = w.input(ValueKind::kParameter, {4, 32});
  const ValueId count = w.input(ValueKind::kState, {});
  const auto f = Phase::kForward;
  const auto b = Phase::kBackward;
  const ValueId h = w.op("einsum", {x, w1}, equation("bi,oi->bo"), f, "net.0.linear");
  const ValueId r = w.op("relu", {h}, {}, f, "net.0.act");
  const ValueId y = w.op("einsum", {r, w2}, equation("bi,oi->bo"), f, "head");
  const ValueId loss =
      w.op("sum", {y}, {{"dims", ir::IntList{0, 1}}, {"keepdim", false}}, f, "loss");
  const ValueId gy =
      w.op("full",
           {},
           {{"shape", ir::IntList{8, 4}}, {"value", 1.0}, {"dtype", std::string("f32")}},
           b,
           "loss");
  const ValueId gw2 = w.op("einsum", {gy, r}, equation("bo,bi->oi"), b, "head");
  const ValueId gr = w.op("einsum", {gy, w2}, equation("bo,oi->bi"), b, "head");
  const ValueId gh = w.op("relu_backward", {gr, r}, {}, b, "net.0.act");
  const ValueId gw1 = w.op("einsum", {gh, x}, equation("bo,bi->oi"), b, "net.0.linear");
  const ValueId p1 = w.op("sgd_update", {w1, gw1, count}, sgd(), Phase::kUpdate);
  const ValueId p2 = w.op("sgd_update", {w2, gw2, count}, sgd(), Phase::kUpdate);
  w.graph.outputs = {loss};
  w.graph.writes = {{w1, p1}, {w2, p2}};
  w.graph.gradients = {{w1, gw1}, {w2, gw2}};
  return w.graph;
}

Simulation simulate_on_one_device(const ir::Graph& step) {
  cluster::Cluster cluster;
  cluster.device.peak_flops = {{"f32", 1e12}};
  cluster.device.memory_bandwidth = 1e11;
  plan::Plan plan;
  plan.strategies.resize(step.ops().size());
  const cost::CostModel cost(cluster, plan.mesh);
  const auto price = [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
    return cost.reshard_step(move, type);
  };
  const Result<lower::Program> program = lower::lower(step, plan, price);
  EXPECT_TRUE(program.has_value()) << (program ? "" : program.error().text());
  return simulate(*program, step, cost);
}

void expect_same_breakdown(const MemoryBreakdown& a, const MemoryBreakdown& b) {
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.activations, b.activations);
  EXPECT_EQ(a.inputs, b.inputs);
  EXPECT_EQ(a.temporary, b.temporary);
}

TEST(Profile, MlpByHand) {
  const Profile p = profile(mlp_step());
  EXPECT_EQ(p.parameters, 32 * 16 + 4 * 32);
  EXPECT_EQ(p.parameter_bytes, 4 * p.parameters);
  const double products = 2.0 * 8 * 16 * 32 + 2.0 * 8 * 32 * 4;
  EXPECT_NEAR(p.forward_flops, products + 8 * 32 + 8 * 4, 40);  // + relu, sum
  EXPECT_NEAR(p.backward_flops, 2.0 * 8 * 16 * 32 + 2 * 2.0 * 8 * 32 * 4 + 8 * 32, 1);
  EXPECT_EQ(p.saved_activation_bytes, 4 * 8 * 32);  // r: h and y are not needed
  EXPECT_EQ(p.at_peak.parameters, p.parameter_bytes);
  EXPECT_EQ(p.at_peak.inputs, 4 * 8 * 16);
  EXPECT_EQ(p.at_peak.optimizer, 4);
  // Peak at relu_backward: residents, loss, gradient of w2 (512), r, dr, dh (1024 each).
  EXPECT_EQ(p.peak_bytes, p.parameter_bytes + 512 + 4 + 4 + 512 + Bytes{3} * 1024);
  EXPECT_EQ(p.at_peak.gradients, 4 * 4 * 32);
  EXPECT_EQ(p.at_peak.activations, 4 + 4 * 8 * 32);
}

/// Sum of a field over the layers of a profile.
template <class Field>
double layer_total(const Profile& profile, Field field) {
  return std::accumulate(
      profile.layers.begin(), profile.layers.end(), 0.0, [&](double n, const LayerProfile& layer) {
        return n + static_cast<double>(layer.*field);
      });
}

TEST(Profile, LayersAddUp) {
  const Profile p = profile(mlp_step());
  ASSERT_EQ(p.layers.size(), 3U);
  EXPECT_EQ(p.layers[0].layer, "net.0");
  EXPECT_EQ(p.layers[1].layer, "head");
  EXPECT_EQ(p.layers[0].parameters, 32 * 16);
  EXPECT_EQ(p.layers[0].saved_activation_bytes, 4 * 8 * 32);
  EXPECT_EQ(layer_total(p, &LayerProfile::parameters), p.parameters);
  EXPECT_EQ(layer_total(p, &LayerProfile::forward_flops), p.forward_flops);
  EXPECT_EQ(layer_total(p, &LayerProfile::backward_flops), p.backward_flops);
  EXPECT_EQ(layer_total(p, &LayerProfile::saved_activation_bytes), p.saved_activation_bytes);
}

TEST(Profile, MicrobatchesCountEveryTime) {
  ir::Graph step = mlp_step();
  const Profile one = profile(step);
  step.microbatches = 4;
  const Profile four = profile(step);
  EXPECT_EQ(four.forward_flops, 4 * one.forward_flops);
  EXPECT_EQ(four.backward_bytes, 4 * one.backward_bytes);
  EXPECT_EQ(four.parameters, one.parameters);
}

TEST(Profile, EqualsTheSimulatedProgramOfOneDevice) {
  const ir::Graph step = mlp_step();
  const Profile p = profile(step);
  const Simulation s = simulate_on_one_device(step);
  EXPECT_EQ(p.peak_bytes, s.peak_bytes);
  expect_same_breakdown(p.at_peak, s.at_peak);
}

/// A step of elementwise ops that read random earlier values, with views, updates in place and
/// writes that replace a parameter.
ir::Graph random_step(std::mt19937& random) {
  StepWriter w;
  std::vector<ValueId> pool = {w.input(ValueKind::kInput, {4, 4}),
                               w.input(ValueKind::kParameter, {4, 4}),
                               w.input(ValueKind::kParameter, {4, 4})};
  const auto pick = [&] { return pool[static_cast<std::size_t>(random()) % pool.size()]; };
  const int count = 5 + static_cast<int>(random() % 40);
  for (int i = 0; i < count; ++i) {
    const Phase phase = i < count / 2 ? Phase::kForward : Phase::kBackward;
    const std::string layer = "b." + std::to_string(i / 7);
    switch (random() % 4) {
      case 0:
        pool.push_back(w.op("identity", {pick()}, {}, phase, layer));
        break;
      case 1:
        pool.push_back(
            w.op("gelu", {pick()}, {{"approximate", std::string("tanh")}}, phase, layer));
        break;
      default:
        pool.push_back(w.op("add", {pick(), pick()}, {}, phase, layer));
    }
  }
  const ValueId loss =
      w.op("sum", {pool[4]}, {{"dims", ir::IntList{0, 1}}, {"keepdim", false}}, Phase::kBackward);
  const ValueId step_count = w.input(ValueKind::kState, {});
  ValueId gradient = pick();
  if (random() % 2 == 0) {
    w.graph.microbatches = 1 + static_cast<std::int64_t>(random() % 3);
    const ValueId sum = w.input(ValueKind::kAccumulator, {4, 4});
    gradient = w.op("accumulate", {sum, gradient}, {}, Phase::kBackward);
    w.graph.writes.push_back({sum, gradient});
  }
  const ValueId updated =
      w.op("sgd_update", {pool[1], gradient, step_count}, sgd(), Phase::kUpdate);
  w.graph.writes.push_back({pool[1], updated});
  const ValueId fresh = w.op("exp", {updated}, {}, Phase::kUpdate);
  w.graph.writes.push_back({pool[2], fresh});
  w.graph.outputs = {loss};
  return w.graph;
}

TEST(ProfileProperty, EqualsTheSimulatedProgramOnRandomSteps) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const ir::Graph step = random_step(random);
    ASSERT_TRUE(ops::verify(step).has_value());
    const Profile p = profile(step);
    const Simulation s = simulate_on_one_device(step);
    EXPECT_EQ(p.peak_bytes, s.peak_bytes) << ir::print(step);
    expect_same_breakdown(p.at_peak, s.at_peak);
  }
}

/// Op index of the last reader of the result of op `made`, or `made`. By definition, slow.
std::size_t last_reader(const ir::Graph& g, std::size_t made) {
  std::size_t last = made;
  for (std::size_t reader = 0; reader < g.ops().size(); ++reader) {
    const std::vector<ValueId>& inputs = g.ops()[reader].inputs;
    if (std::count(inputs.begin(), inputs.end(), g.ops()[made].outputs[0]) > 0) {
      last = std::max(last, reader);
    }
  }
  return last;
}

// The slow twin: bytes live at each op by definition, for steps without views and writes.
TEST(ProfileProperty, EqualsLivenessByDefinition) {
  constexpr std::size_t kForwardOps = 15;
  constexpr Bytes kBytes = 12;
  std::mt19937 random(9);
  for (int round = 0; round < 50; ++round) {
    StepWriter w;
    std::vector<ValueId> pool = {w.input(ValueKind::kInput, {3})};
    pool.reserve(31);
    for (std::size_t i = 0; i < 30; ++i) {
      const ValueId a = pool[static_cast<std::size_t>(random()) % pool.size()];
      const ValueId b = pool[static_cast<std::size_t>(random()) % pool.size()];
      pool.push_back(w.op("add", {a, b}, {}, i < kForwardOps ? Phase::kForward : Phase::kBackward));
    }
    Bytes peak = 0;
    Bytes saved = 0;
    for (std::size_t at = 0; at < 30; ++at) {
      Bytes live = kBytes;  // the input
      for (std::size_t made = 0; made <= at; ++made) {
        const Bytes bytes = last_reader(w.graph, made) >= at ? kBytes : 0;
        live += bytes;
        saved += at == kForwardOps && made < at ? bytes : 0;
      }
      peak = std::max(peak, live);
    }
    const Profile p = profile(w.graph);
    EXPECT_EQ(p.peak_bytes, peak);
    EXPECT_EQ(p.saved_activation_bytes, saved);
  }
}

}  // namespace
}  // namespace shardplan::sim
