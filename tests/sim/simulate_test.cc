#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardplan/ops/op.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using lower::LocalId;
using lower::Program;
using lower::Step;
using lower::StepKind;
using sharding::CollectiveKind;

constexpr double kBandwidth = 1e9;  // bytes/s of memory and of links: 1 GB takes 1 s
constexpr Seconds kSecond = 1.0;

/// Memory and links of 1 GB/s, no overheads: a kernel of n GB takes n seconds; so does an
/// all-gather over two devices whose output has 2n GB.
cost::CostModel plain_cost() {
  cluster::Cluster cluster;
  cluster.device.peak_flops = {{"f32", 1e18}};
  cluster.device.memory_bandwidth = kBandwidth;
  cluster.device.memory_efficiency = 1;
  cluster.device.kernel_overhead = 0;
  cluster::LinkLevel level;
  level.fanout = 2;
  level.bandwidth = kBandwidth;
  cluster.levels = {level};
  cluster::DeviceMesh mesh;
  mesh.axes = {{"m0", 2}};
  return {cluster, mesh};
}

/// Writes a graph and its Program side by side. Tensors are f32[n], one local value each.
class ProgramWriter {
 public:
  ProgramWriter() { program.mesh.axes = {{"m0", 2}}; }

  LocalId resident(ValueKind kind, std::int64_t n) {
    ir::Value value;
    value.kind = kind;
    value.type = {ir::DType::kFloat32, {n}};
    value.name = "v" + std::to_string(graph.values().size());
    const LocalId local = add_local(graph.add_value(std::move(value)), n);
    program.residents.push_back({local, program.value(local).global});
    return local;
  }

  /// out = op(inputs), a kernel of `seconds`.
  LocalId compute(const char* name,
                  const std::vector<LocalId>& inputs,
                  std::int64_t n,
                  Seconds seconds,
                  Phase phase = Phase::kForward) {
    ir::Op op;
    op.name = name;
    op.layer = "net.0";
    op.phase = phase;
    for (const LocalId input : inputs) {
      op.inputs.push_back(program.value(input).global);
    }
    const ir::OpId id = graph.add_op(op, {{ir::DType::kFloat32, {n}}});
    const LocalId out = add_local(graph.op(id).outputs[0], n);
    const ops::OpDef& def = ops::get(name);
    if (def.view || (!def.in_place.empty() && def.in_place[0] >= 0)) {
      program.values.back().view_of =
          program.root(inputs[def.view ? 0 : static_cast<std::size_t>(def.in_place[0])]);
    }
    Step step;
    step.op = id;
    step.inputs = inputs;
    step.outputs = {out};
    step.bytes = static_cast<Bytes>(seconds * kBandwidth);
    step.phase = phase;
    section(phase).push_back(step);
    return out;
  }

  /// All-gather over both devices; output of n elements in `seconds`.
  LocalId gather(LocalId input, std::int64_t n, Phase phase = Phase::kForward) {
    const LocalId out = add_local(program.value(input).global, n);
    Step step;
    step.kind = StepKind::kCollective;
    step.inputs = {input};
    step.outputs = {out};
    step.collective.kind = CollectiveKind::kAllGather;
    step.collective.axes = {0};
    step.collective.dim = 0;
    step.collective.from.shard(0, 0);
    step.phase = phase;
    section(phase).push_back(step);
    return out;
  }

  void free(LocalId value, Phase phase = Phase::kForward) {
    Step step;
    step.kind = StepKind::kFree;
    step.inputs = {value};
    step.phase = phase;
    section(phase).push_back(step);
  }

  void write(LocalId target, LocalId value) {
    Step step;
    step.kind = StepKind::kWrite;
    step.inputs = {value};
    step.outputs = {target};
    step.phase = Phase::kUpdate;
    program.update.push_back(step);
  }

  std::vector<Step>& section(Phase phase) {
    return phase == Phase::kUpdate ? program.update : program.microbatch;
  }

  LocalId add_local(ValueId global, std::int64_t n) {
    program.values.push_back({{ir::DType::kFloat32, {n}}, {}, global, {}});
    return LocalId(program.values.size() - 1);
  }

  ir::Graph graph;
  Program program;
};

constexpr std::int64_t kGiga = 250'000'000;  // elements of 1 GB

/// compute a (1 s) -> gather of its 2 GB (1 s) -> compute c (1 s) of the gathered value, with an
/// independent compute b (3 s) between.
ProgramWriter gather_beside_compute() {
  ProgramWriter w;
  const LocalId x = w.resident(ValueKind::kInput, kGiga);
  const LocalId a = w.compute("exp", {x}, 2 * kGiga, kSecond);
  const LocalId gathered = w.gather(a, 2 * kGiga);
  const LocalId b = w.compute("exp", {x}, kGiga, 3 * kSecond);
  const LocalId c = w.compute("exp", {gathered}, kGiga, kSecond);
  w.program.loss = w.compute("add", {b, c}, kGiga, kSecond);
  return w;
}

TEST(Simulate, CommunicationHidesBehindIndependentCompute) {
  const ProgramWriter w = gather_beside_compute();
  const Simulation s = simulate(w.program, w.graph, plain_cost());
  EXPECT_NEAR(s.step_seconds, 6, 1e-9);
  EXPECT_NEAR(s.compute_seconds, 6, 1e-9);
  EXPECT_NEAR(s.communication_seconds, 1, 1e-9);
  EXPECT_NEAR(s.additive_seconds, 7, 1e-9);
  EXPECT_NEAR(s.exposed_communication_seconds, 0, 1e-9);
}

TEST(Simulate, OneStreamAddsEverything) {
  const ProgramWriter w = gather_beside_compute();
  const Simulation s = simulate(w.program, w.graph, plain_cost(), {.overlap = false});
  EXPECT_NEAR(s.step_seconds, 7, 1e-9);
  EXPECT_NEAR(s.exposed_communication_seconds, 1, 1e-9);
}

TEST(Simulate, ComputeWaitsForItsOperands) {
  ProgramWriter w;
  const LocalId x = w.resident(ValueKind::kInput, kGiga);
  const LocalId a = w.compute("exp", {x}, 2 * kGiga, kSecond);
  const LocalId gathered = w.gather(a, 2 * kGiga);
  w.program.loss = w.compute("exp", {gathered}, kGiga, kSecond);
  SimOptions options;
  options.timeline = true;
  const Simulation s = simulate(w.program, w.graph, plain_cost(), options);
  EXPECT_NEAR(s.step_seconds, 3, 1e-9);
  EXPECT_NEAR(s.exposed_communication_seconds, 1, 1e-9);
  ASSERT_EQ(s.timeline.size(), 3U);
  EXPECT_EQ(s.timeline[1].name, "all_gather");
  EXPECT_TRUE(s.timeline[1].communication);
  EXPECT_NEAR(s.timeline[1].start, 1, 1e-9);
  EXPECT_NEAR(s.timeline[2].start, 2, 1e-9);
  EXPECT_EQ(s.timeline[2].layer, "net.0");
}

TEST(Simulate, UpdatesInPlaceWaitForCollectivesThatReadTheOldContent) {
  ProgramWriter w;
  const LocalId sum = w.resident(ValueKind::kAccumulator, 2 * kGiga);
  const LocalId g = w.resident(ValueKind::kInput, 2 * kGiga);
  w.program.loss = w.gather(sum, 2 * kGiga);
  w.compute("accumulate", {sum, g}, 2 * kGiga, kSecond, Phase::kBackward);
  EXPECT_NEAR(simulate(w.program, w.graph, plain_cost()).step_seconds, 2, 1e-9);
}

TEST(Simulate, MicrobatchesRepeatAndTheUpdateRunsOnce) {
  ProgramWriter w = gather_beside_compute();
  const LocalId p = w.resident(ValueKind::kParameter, kGiga);
  w.compute("exp", {p}, kGiga, 2 * kSecond, Phase::kUpdate);
  w.program.microbatches = 3;
  SimOptions options;
  options.timeline = true;
  const Simulation s = simulate(w.program, w.graph, plain_cost(), options);
  EXPECT_NEAR(s.step_seconds, 3 * 6 + 2, 1e-9);
  EXPECT_NEAR(s.additive_seconds, 3 * 7 + 2, 1e-9);
  EXPECT_EQ(s.timeline.size(), 3U * 5 + 1);
  EXPECT_EQ(s.timeline.back().microbatch, -1);
  EXPECT_EQ(s.timeline[5].microbatch, 1);
}

TEST(Simulate, SlicesAreLocalCopies) {
  ProgramWriter w;
  const LocalId x = w.resident(ValueKind::kInput, 2 * kGiga);
  w.program.loss = w.gather(x, kGiga);
  w.program.microbatch[0].collective.kind = CollectiveKind::kSlice;
  w.program.microbatch[0].collective.from = {};
  w.program.microbatch[0].collective.to.shard(0, 0);
  const Simulation s = simulate(w.program, w.graph, plain_cost());
  EXPECT_EQ(s.communication_seconds, 0);
  EXPECT_NEAR(s.compute_seconds, 2, 1e-9);  // reads 1 GB, writes 1 GB
}

TEST(SimulateMemory, PeakByHand) {
  ProgramWriter w;
  const LocalId x = w.resident(ValueKind::kInput, 10);
  const LocalId p = w.resident(ValueKind::kParameter, 100);
  const LocalId m = w.resident(ValueKind::kState, 200);
  const LocalId a = w.compute("add", {x, p}, 100, 0);           // activation, 400 B
  const LocalId whole = w.gather(p, 300);                       // temporary, 1200 B
  const LocalId view = w.compute("identity", {a}, 100, 0);      // nothing
  const LocalId loss = w.compute("add", {view, whole}, 50, 0);  // 200 B + workspace 1000 B
  w.program.microbatch.back().workspace = 1000;
  w.free(whole);
  const LocalId g = w.compute("exp", {a}, 100, 0, Phase::kBackward);  // gradient, 400 B
  w.free(a, Phase::kBackward);
  w.graph.gradients.push_back({w.program.value(p).global, w.program.value(g).global});
  w.program.loss = loss;
  (void)m;
  const Simulation s = simulate(w.program, w.graph, plain_cost());
  EXPECT_EQ(s.peak_bytes, 40 + 400 + 800 + 400 + 1200 + 200 + 1000);
  EXPECT_EQ(s.at_peak.parameters, 400);
  EXPECT_EQ(s.at_peak.optimizer, 800);
  EXPECT_EQ(s.at_peak.inputs, 40);
  EXPECT_EQ(s.at_peak.activations, 600);
  EXPECT_EQ(s.at_peak.temporary, 2200);
  EXPECT_EQ(s.at_peak.gradients, 0);
  EXPECT_EQ(s.peak.op, w.graph.value(w.program.value(loss).global).producer);
  EXPECT_FALSE(s.peak.again);

  w.program.microbatch[3].workspace = 0;
  w.program.values[whole.index()].type.shape = {1};
  const Simulation late = simulate(w.program, w.graph, plain_cost());
  EXPECT_EQ(late.peak_bytes, 40 + 400 + 800 + 400 + 200 + 400);  // loss and gradient, nothing freed
  EXPECT_EQ(late.at_peak.gradients, 400);
}

TEST(SimulateMemory, WritesHandTheStorageOver) {
  ProgramWriter w;
  const LocalId p = w.resident(ValueKind::kParameter, 100);
  w.program.loss = w.compute("exp", {p}, 1, 0);
  const LocalId fresh = w.compute("exp", {p}, 100, 0, Phase::kUpdate);
  w.write(p, fresh);
  const LocalId after = w.compute("exp", {p}, 150, 0, Phase::kUpdate);
  w.free(after, Phase::kUpdate);
  const Simulation s = simulate(w.program, w.graph, plain_cost());
  EXPECT_EQ(s.peak_bytes, 400 + 4 + 600);
  EXPECT_EQ(s.at_peak.parameters, 400);
}

TEST(SimulateMemory, LaterMicrobatchesDoNotGrow) {
  ProgramWriter w;
  const LocalId x = w.resident(ValueKind::kInput, 10);
  w.program.loss = w.compute("exp", {x}, 10, 0);
  const Bytes one = simulate(w.program, w.graph, plain_cost()).peak_bytes;
  w.program.microbatches = 5;
  EXPECT_EQ(simulate(w.program, w.graph, plain_cost()).peak_bytes, one);
}

TEST(ChromeTrace, IsJsonWithTwoThreads) {
  const ProgramWriter w = gather_beside_compute();
  SimOptions options;
  options.timeline = true;
  Simulation s = simulate(w.program, w.graph, plain_cost(), options);
  s.timeline[0].layer = "bad \xff bytes \" and quotes";
  const auto trace = nlohmann::json::parse(chrome_trace(s));
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 3U + s.timeline.size());
  EXPECT_EQ(events[1].at("args").at("name"), "compute");
  EXPECT_EQ(events[2].at("args").at("name"), "communication");
  const auto& gather = events[4];
  EXPECT_EQ(gather.at("ph"), "X");
  EXPECT_EQ(gather.at("tid"), 1);
  EXPECT_NEAR(gather.at("ts").get<double>(), 1e6, 1e-3);
  EXPECT_NEAR(gather.at("dur").get<double>(), 1e6, 1e-3);
  EXPECT_EQ(gather.at("cat"), "forward");
}

}  // namespace
}  // namespace shardplan::sim
