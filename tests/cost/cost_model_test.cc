#include "shardplan/cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "shardplan/cost/curve.h"

namespace shardplan::cost {
namespace {

using cluster::Cluster;
using cluster::DeviceMesh;
using sharding::CollectiveKind;
using sharding::Reduction;
using sharding::ReshardStep;

Cluster box() {
  Cluster cluster;
  cluster.device.peak_flops = {{"bf16", 100e12}, {"f32", 10e12}};
  cluster.device.memory_bandwidth = 1e12;
  cluster.device.matmul_efficiency = 0.5;
  cluster.device.memory_efficiency = 0.8;
  cluster.device.kernel_overhead = 5e-6;
  cluster::LinkLevel level;
  level.fanout = 8;
  level.bandwidth = 1e11;
  level.latency = 1e-6;
  cluster.levels = {level};
  return cluster;
}

DeviceMesh grid() {
  DeviceMesh mesh;
  mesh.axes = {{"data", 2}, {"tensor", 4}};
  return mesh;
}

TEST(Kernel, RooflineTakesTheLongerOfArithmeticAndMemory) {
  const CostModel cost(box(), grid());
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kBFloat16, 1e12, 1 << 20, true}),
              5e-6 + 1e12 / 50e12,
              1e-12);
  EXPECT_NEAR(
      cost.kernel({"einsum", ir::DType::kFloat32, 1e12, 1 << 20, true}), 5e-6 + 1e12 / 5e12, 1e-12);
  EXPECT_NEAR(
      cost.kernel({"add", ir::DType::kFloat32, 1e6, 800'000'000, false}), 5e-6 + 1e-3, 1e-12);
  EXPECT_EQ(cost.kernel({"add", ir::DType::kFloat32, 0, 0, false}), 5e-6);
}

TEST(Kernel, ArithmeticOffTheMatrixUnitsRunsAtTheFloatRate) {
  const CostModel cost(box(), grid());
  EXPECT_NEAR(cost.kernel({"gelu", ir::DType::kBFloat16, 1e12, 1, false}), 5e-6 + 0.2, 1e-12);
}

TEST(Kernel, MissingRatesFallBack) {
  Cluster only_half = box();
  only_half.device.peak_flops = {{"f16", 1e12}};
  const CostModel cost(only_half, grid());
  const Seconds expected = 5e-6 + 2;
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kFloat64, 1e12, 1, true}), expected, 1e-12);
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kInt64, 1e12, 1, true}), expected, 1e-12);
}

TEST(Kernel, MeasuredCurvesReplaceTheRoofline) {
  Cluster measured = box();
  measured.device.matmul_curve["f32"] = {{1e6, 1e-5}, {1e9, 1e-3}};
  measured.device.memory_curve = {{1e3, 2e-6}, {1e6, 1e-5}};
  const CostModel cost(measured, grid());
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kFloat32, 1e9, 10, true}), 1e-3, 1e-12);
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kFloat32, 2e9, 10, true}), 2e-3, 1e-12);
  EXPECT_NEAR(cost.kernel({"add", ir::DType::kFloat32, 0, 1'000'000, false}), 1e-5, 1e-12);
  // Memory-bound product.
  EXPECT_NEAR(cost.kernel({"einsum", ir::DType::kFloat32, 1e6, 100'000'000, true}), 1e-3, 1e-12);
}

TEST(Kernel, TheCurveOfTheOpItselfComesFirst) {
  Cluster measured = box();
  measured.device.memory_curve = {{1e3, 1e-6}, {1e6, 1e-3}};
  measured.device.kernel_curves["gelu"] = {{1e3, 5e-6}, {1e6, 5e-3}};
  measured.device.kernel_curves["attention"] = {{1e6, 1e-4}, {1e9, 1e-1}};
  const CostModel cost(measured, grid());
  EXPECT_NEAR(cost.kernel({"gelu", ir::DType::kFloat32, 1e9, 1'000'000, false}), 5e-3, 1e-12);
  EXPECT_NEAR(cost.kernel({"add", ir::DType::kFloat32, 1, 1'000'000, false}), 1e-3, 1e-12);
  EXPECT_NEAR(cost.kernel({"attention", ir::DType::kFloat32, 1e9, 8, true}), 1e-1, 1e-9);
}

TEST(ReshardStep, MeasuredCollectivesHoldTheirCopies) {
  Cluster measured = box();
  measured.device.memory_curve = {{1e3, 1e-6}, {1e6, 1e-3}};
  measured.levels[0].collective_curves["all_reduce"] = {{1e3, 1e-4}, {1e6, 1e-2}};
  const CostModel cost(measured, DeviceMesh{{{"data", 8}}});
  ReshardStep step;
  step.kind = CollectiveKind::kAllReduce;
  step.axes = {0};
  step.from.make_partial(0, Reduction::kSum);
  EXPECT_NEAR(cost.reshard_step(step, {ir::DType::kFloat32, {250'000}}), 1e-2, 1e-12);
}

TEST(Curve, InterpolatesInLogSpaceAndClampsOutside) {
  const Curve curve({{100, 1e-4}, {10000, 1e-3}, {1000000, 1e-1}});
  EXPECT_NEAR(curve(100), 1e-4, 1e-15);
  EXPECT_NEAR(curve(1000), std::sqrt(1e-4 * 1e-3), 1e-12);
  EXPECT_NEAR(curve(1), 1e-5, 1e-12);    // slope 1/2
  EXPECT_NEAR(curve(2e6), 2e-1, 1e-12);  // rate of the last point
  EXPECT_EQ(curve(0), 0);
  const Curve one({{1000, 1e-3}});
  EXPECT_NEAR(one(500), 5e-4, 1e-15);
  EXPECT_NEAR(one(4000), 4e-3, 1e-15);
  EXPECT_TRUE(Curve().empty());
}

TEST(Curve, NoisyPointsNeverMakeMoreBytesCheaper) {
  const Curve curve({{100, 1e-4}, {1000, 5e-5}, {10000, 2e-4}, {100000, 1e-4}});
  Seconds before = 0;
  for (double size = 1; size < 1e8; size *= 1.1) {
    EXPECT_GE(curve(size), before * (1 - 1e-12));
    before = curve(size);
  }
}

TEST(KernelProperty, MoreWorkAndSlowerDevicesNeverCostLess) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(0, 12);
  for (int round = 0; round < 500; ++round) {
    Cluster cluster = box();
    if (round % 2 == 1) {
      cluster.device.matmul_curve["bf16"] = {{1e6, 1e-5}, {1e9, 1e-3}};
    }
    Cluster faster = cluster;
    faster.device.memory_bandwidth *= 1.1;
    faster.device.peak_flops["bf16"] *= 1.1;
    const CostModel slow(cluster, grid());
    const CostModel fast(faster, grid());
    const Flops flops = std::pow(10, exponent(random));
    const auto bytes = static_cast<Bytes>(std::pow(10, exponent(random)));
    const bool matmul = round % 3 == 0;
    const Seconds t = slow.kernel({"x", ir::DType::kBFloat16, flops, bytes, matmul});
    EXPECT_LE(t, slow.kernel({"x", ir::DType::kBFloat16, flops * 1.01, bytes, matmul}));
    EXPECT_LE(t, slow.kernel({"x", ir::DType::kBFloat16, flops, bytes + 1, matmul}));
    EXPECT_GE(t, fast.kernel({"x", ir::DType::kBFloat16, flops, bytes, matmul}));
  }
}

TEST(ReshardStep, BytesAreThoseOfTheFullTensorOfTheGroup) {
  const CostModel cost(box(), grid());
  const ir::TensorType type{ir::DType::kFloat32, {64, 128}};  // 32768 bytes
  const auto copy = [](double bytes) { return 5e-6 + 2 * bytes / 0.8e12; };
  ReshardStep step;

  // [data, tensor] -> [data, -]: each device ends with half of the tensor, unpacked.
  step.kind = CollectiveKind::kAllGather;
  step.axes = {1};
  step.dim = 1;
  step.from.shard(0, 0);
  step.from.shard(1, 1);
  step.to.shard(0, 0);
  EXPECT_EQ(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kAllGather, 16384, {1}) + copy(16384));

  step = {};
  step.kind = CollectiveKind::kReduceScatter;
  step.axes = {1};
  step.dim = 1;
  step.from.shard(0, 0);
  step.from.make_partial(1, Reduction::kSum);
  step.to.shard(0, 0);
  step.to.shard(1, 1);
  EXPECT_EQ(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kReduceScatter, 16384, {1}) + copy(16384));

  step.kind = CollectiveKind::kAllReduce;
  step.to = {};
  step.to.shard(0, 0);
  EXPECT_EQ(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kAllReduce, 16384, {1}) + copy(16384));

  step = {};
  step.kind = CollectiveKind::kAllToAll;
  step.axes = {0, 1};
  step.dim = 0;
  step.split_dim = 1;
  step.from.shard(0, 0);
  step.from.shard(0, 1);
  step.to.shard(1, 0);
  step.to.shard(1, 1);
  EXPECT_EQ(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kAllToAll, 4096, {0, 1}) + copy(2 * 4096));

  step = {};
  step.kind = CollectiveKind::kSlice;
  step.axes = {1};
  step.dim = 1;
  step.to.shard(1, 1);
  EXPECT_NEAR(cost.reshard_step(step, type), copy(8192), 1e-15);
}

TEST(ReshardStep, GatheringTheOutermostDimensionNeedsNoCopy) {
  const CostModel cost(box(), grid());
  const ir::TensorType type{ir::DType::kFloat32, {2, 64, 128}};
  const Bytes bytes = type.bytes();
  ReshardStep step;
  step.kind = CollectiveKind::kAllGather;
  step.axes = {1};
  step.dim = 1;
  step.from.shard(0, 0);
  step.from.shard(1, 1);
  step.to.shard(0, 0);  // one row of dimension 0 on each device
  EXPECT_EQ(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kAllGather, bytes / 2, {1}));
  step.axes = {1, 0};  // the parts come in the order of the ranks: another one
  step.to = {};
  EXPECT_GT(cost.reshard_step(step, type),
            cost.collective(CollectiveKind::kAllGather, bytes, {1, 0}));
}

}  // namespace
}  // namespace shardplan::cost
