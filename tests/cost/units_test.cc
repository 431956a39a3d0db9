// Everything that is added up is in seconds, of the bytes and FLOPs that there are.
#include <gtest/gtest.h>

#include <algorithm>

#include "shardplan/cost/cost_model.h"

namespace shardplan::cost {
namespace {

using sharding::CollectiveKind;
using sharding::ReshardStep;

/// 1 TFLOP/s, 1 GB/s of memory and links, no overheads.
cluster::Cluster plain() {
  cluster::Cluster cluster;
  cluster.device.peak_flops = {{"f32", 1e12}, {"bf16", 1e12}};
  cluster.device.memory_bandwidth = 1e9;
  cluster.device.matmul_efficiency = 1;
  cluster.device.memory_efficiency = 1;
  cluster.device.kernel_overhead = 0;
  cluster::LinkLevel level;
  level.fanout = 4;
  level.bandwidth = 1e9;
  cluster.levels = {level};
  return cluster;
}

const cluster::DeviceMesh& mesh() {
  static const cluster::DeviceMesh mesh_of_four{{{"m0", 4}}};
  return mesh_of_four;
}

TEST(Units, ArithmeticMemoryAndCollectivesAreAllSeconds) {
  const CostModel cost(plain(), mesh());
  EXPECT_DOUBLE_EQ(cost.kernel({"einsum", ir::DType::kFloat32, 1e12, 1, true}), 1);
  EXPECT_DOUBLE_EQ(cost.kernel({"add", ir::DType::kFloat32, 1, 1'000'000'000, false}), 1);
  // Of a gathered tensor of 4 GB, 3 GB come over the link.
  EXPECT_DOUBLE_EQ(cost.collective(CollectiveKind::kAllGather, 4'000'000'000, {0}), 3);
}

ReshardStep gather_of_rows() {
  ReshardStep step;
  step.kind = CollectiveKind::kAllGather;
  step.axes = {0};
  step.dim = 0;
  step.from.shard(0, 0);
  return step;
}

TEST(Units, AllGatherPaysForTheGatheredSize) {
  const CostModel cost(plain(), mesh());
  const ir::TensorType type{ir::DType::kFloat32, {1000, 1'000'000}};  // 4 GB, parts of 1 GB
  EXPECT_DOUBLE_EQ(cost.reshard_step(gather_of_rows(), type), 3);
}

TEST(Units, LatencyDoesNotGrowWithTheBytesOfAnElement) {
  cluster::Cluster cluster = plain();
  const CostModel free(cluster, mesh());
  cluster.levels[0].latency = 1e-3;
  const CostModel late(cluster, mesh());
  for (const CollectiveKind kind : {CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllReduce,
                                    CollectiveKind::kAllToAll}) {
    const auto latency = [&](Bytes bytes) {
      return late.collective(kind, bytes, {0}) - free.collective(kind, bytes, {0});
    };
    const Bytes elements = 1'000'000'000;
    EXPECT_NEAR(latency(2 * elements), latency(4 * elements), 1e-9);
    EXPECT_NEAR(latency(4 * elements), latency(8 * elements), 1e-9);
    EXPECT_LE(latency(8 * elements), 6.001e-3);  // a message or two for each of the others
  }
}

}  // namespace
}  // namespace shardplan::cost
