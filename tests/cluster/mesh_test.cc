#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shardplan/cluster/cluster.h"

namespace shardplan::cluster {
namespace {

using testing::ElementsAre;

DeviceMesh mesh_of(const std::vector<std::int64_t>& sizes) {
  DeviceMesh mesh;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    mesh.axes.push_back({"m" + std::to_string(i), sizes[i]});
  }
  return mesh;
}

Cluster tree(const std::vector<std::int64_t>& fanouts) {
  Cluster cluster;
  for (const std::int64_t fanout : fanouts) {
    LinkLevel level;
    level.fanout = fanout;
    level.bandwidth = 1e9;
    cluster.levels.push_back(level);
  }
  return cluster;
}

std::set<std::vector<std::int64_t>> sizes_of(const std::vector<DeviceMesh>& meshes) {
  std::set<std::vector<std::int64_t>> out;
  for (const DeviceMesh& mesh : meshes) {
    std::vector<std::int64_t> sizes;
    sizes.reserve(mesh.axes.size());
    for (const MeshAxis& axis : mesh.axes) {
      sizes.push_back(axis.size);
    }
    EXPECT_TRUE(out.insert(sizes).second);
  }
  return out;
}

TEST(Mesh, RanksAreRowMajor) {
  const DeviceMesh mesh = mesh_of({2, 3, 4});
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.stride(0), 12);
  EXPECT_EQ(mesh.stride(1), 4);
  EXPECT_EQ(mesh.stride(2), 1);
  for (std::int64_t rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(
        mesh.coordinate(rank, 0) * 12 + mesh.coordinate(rank, 1) * 4 + mesh.coordinate(rank, 2),
        rank);
  }
}

TEST(Mesh, GroupsFollowTheOrderOfTheAxes) {
  const DeviceMesh mesh = mesh_of({2, 3, 2});
  EXPECT_THAT(mesh.group(7, {0}), ElementsAre(1, 7));
  EXPECT_THAT(mesh.group(7, {1}), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group(0, {0, 2}), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(mesh.group(0, {2, 0}), ElementsAre(0, 6, 1, 7));
  EXPECT_THAT(mesh.group(5, {}), ElementsAre(5));
}

// Twin: a group is what coordinates say, for every rank and every list of axes.
TEST(Mesh, GroupsEqualTheDefinition) {
  const DeviceMesh mesh = mesh_of({2, 3, 2});
  for (const std::vector<int>& axes :
       std::vector<std::vector<int>>{{0}, {1, 0}, {2, 1}, {0, 1, 2}}) {
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      std::vector<std::int64_t> expected;
      for (std::int64_t other = 0; other < mesh.size(); ++other) {
        bool same = true;
        for (int axis = 0; axis < 3; ++axis) {
          const bool free = std::find(axes.begin(), axes.end(), axis) != axes.end();
          const auto a = static_cast<std::size_t>(axis);
          same &= free || mesh.coordinate(other, a) == mesh.coordinate(rank, a);
        }
        if (same) {
          expected.push_back(other);
        }
      }
      EXPECT_THAT(mesh.group(rank, axes), testing::UnorderedElementsAreArray(expected));
    }
  }
}

TEST(Mesh, TextNamesAxesAndSizes) {
  DeviceMesh mesh;
  mesh.axes = {{"data", 2}, {"tensor", 4}};
  EXPECT_EQ(to_string(mesh), "data 2 × tensor 4");
  EXPECT_EQ(to_string(DeviceMesh{}), "one device");
}

TEST(EnumerateMeshes, OneDeviceHasOneMeshWithoutAxes) {
  EXPECT_THAT(enumerate_meshes(tree({1}), 3), ElementsAre(DeviceMesh{}));
  EXPECT_THAT(enumerate_meshes(tree({}), 0), ElementsAre(DeviceMesh{}));
}

TEST(EnumerateMeshes, OneLevelGivesOrderedFactorisations) {
  using Sizes = std::set<std::vector<std::int64_t>>;
  EXPECT_EQ(sizes_of(enumerate_meshes(tree({8}), 3)), (Sizes{{8}, {2, 4}, {4, 2}, {2, 2, 2}}));
  EXPECT_EQ(sizes_of(enumerate_meshes(tree({6}), 2)), (Sizes{{6}, {2, 3}, {3, 2}}));
  EXPECT_TRUE(enumerate_meshes(tree({6}), 0).empty());
}

TEST(EnumerateMeshes, AxesDoNotStraddleLevelsPartly) {
  using Sizes = std::set<std::vector<std::int64_t>>;
  EXPECT_EQ(sizes_of(enumerate_meshes(tree({4, 8}), 2)), (Sizes{{32}, {4, 8}}));
  EXPECT_EQ(sizes_of(enumerate_meshes(tree({2, 2, 2}), 2)), (Sizes{{8}, {2, 4}, {4, 2}}));
  EXPECT_EQ(sizes_of(enumerate_meshes(tree({2, 4}), 3)), (Sizes{{8}, {2, 4}, {2, 2, 2}}));
}

TEST(EnumerateMeshes, SortedByAxesThenSizesWithOutermostFirst) {
  const std::vector<DeviceMesh> meshes = enumerate_meshes(tree({2, 4}), 2);
  ASSERT_EQ(meshes.size(), 2U);
  EXPECT_EQ(to_string(meshes[0]), "m0 8");
  EXPECT_EQ(to_string(meshes[1]), "m0 2 × m1 4");
}

TEST(EnumerateMeshes, EveryMeshCoversTheCluster) {
  for (const DeviceMesh& mesh : enumerate_meshes(tree({3, 1, 4, 8}), 5)) {
    EXPECT_EQ(mesh.size(), 96) << to_string(mesh);
    EXPECT_LE(mesh.axes.size(), 5U);
  }
}

}  // namespace
}  // namespace shardplan::cluster
