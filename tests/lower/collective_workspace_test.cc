#include <gtest/gtest.h>

#include "shardplan/lower/program.h"

namespace shardplan::lower {
namespace {

using sharding::CollectiveKind;
using sharding::ReshardStep;

cluster::DeviceMesh mesh() {
  cluster::DeviceMesh mesh;
  mesh.axes = {{"a", 2}, {"b", 4}};
  return mesh;
}

ir::TensorType f32(ir::Shape shape) {
  return {ir::DType::kFloat32, std::move(shape)};
}

ReshardStep step(CollectiveKind kind, std::vector<int> axes, int dim, int split = -1) {
  ReshardStep s;
  s.kind = kind;
  s.axes = std::move(axes);
  s.dim = dim;
  s.split_dim = split;
  return s;
}

TEST(CollectiveWorkspace, PartsInOneRunNeedNone) {
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllGather, {1}, 0), f32({8, 16}), f32({32, 16}), mesh()),
            0);
  // Mesh axes out of order: every part still goes straight to its place.
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllGather, {1, 0}, 0), f32({8, 16}), f32({64, 16}), mesh()),
            0);
}

TEST(CollectiveWorkspace, UnevenPartsHaveTheRoomOfTheLargest) {
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllGather, {1}, 1), f32({8, 2}), f32({8, 6}), mesh()),
            4 * 8 * 4 * 2);
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kReduceScatter, {1}, 0), f32({6, 16}), f32({2, 16}), mesh()),
            2 * 4 * 4 * 2 * 16);
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllToAll, {1}, 0, 1), f32({2, 6}), f32({6, 2}), mesh()),
            2 * 4 * 4 * 2 * 2);
}

TEST(CollectiveWorkspace, SmallTensorsMoveInOneSlab) {
  // All parts of the gathered tensor.
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllGather, {1}, 1), f32({8, 16}), f32({8, 64}), mesh()),
            4 * 8 * 64);
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kReduceScatter, {0}, 0), f32({8, 16}), f32({4, 16}), mesh()),
            2 * 4 * 8 * 16);
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllReduce, {1}, -1), f32({8, 16}), f32({8, 16}), mesh()),
            4 * 8 * 16);
  EXPECT_EQ(collective_workspace(
                step(CollectiveKind::kAllToAll, {0}, 0, 1), f32({8, 16}), f32({16, 8}), mesh()),
            2 * 4 * 8 * 16);
}

TEST(CollectiveWorkspace, LargeTensorsMoveInSlabsOfAFewMiB) {
  const ir::TensorType part = f32({1024, 1024, 64});
  const Bytes gather = collective_workspace(
      step(CollectiveKind::kAllGather, {0, 1}, 1), part, f32({1024, 8192, 64}), mesh());
  EXPECT_GT(gather, kSlabBytes / 2);
  EXPECT_LE(gather, kSlabBytes);
  const Bytes exchange = collective_workspace(
      step(CollectiveKind::kAllToAll, {1}, 0, 2), part, f32({4096, 1024, 16}), mesh());
  EXPECT_GT(exchange, kSlabBytes);
  EXPECT_LE(exchange, 2 * kSlabBytes);
}

}  // namespace
}  // namespace shardplan::lower
