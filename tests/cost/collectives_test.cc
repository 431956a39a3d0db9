#include "shardplan/cost/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "shardplan/cost/cost_model.h"

namespace shardplan::cost {
namespace {

using cluster::Cluster;
using cluster::DeviceMesh;
using cluster::LinkLevel;
using sharding::CollectiveKind;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kSlice,
                                     CollectiveKind::kAllGather,
                                     CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce,
                                     CollectiveKind::kAllToAll,
                                     CollectiveKind::kCollectivePermute};

LinkLevel link(std::int64_t fanout, double bandwidth, Seconds latency) {
  LinkLevel level;
  level.fanout = fanout;
  level.bandwidth = bandwidth;
  level.latency = latency;
  return level;
}

Cluster tree(std::vector<LinkLevel> levels) {
  Cluster cluster;
  cluster.device.memory_bandwidth = 1e12;
  cluster.device.peak_flops = {{"f32", 1e13}};
  cluster.levels = std::move(levels);
  return cluster;
}

DeviceMesh mesh_of(const std::vector<std::int64_t>& sizes) {
  DeviceMesh mesh;
  for (const std::int64_t size : sizes) {
    mesh.axes.push_back({"m" + std::to_string(mesh.axes.size()), size});
  }
  return mesh;
}

/// The slow twin of group_parts: members of each group on each level, counted by rank.
std::vector<std::set<std::int64_t>> counted_parts(const Cluster& cluster,
                                                  const DeviceMesh& mesh,
                                                  const std::vector<int>& axes) {
  std::vector<std::set<std::int64_t>> sizes(cluster.levels.size());
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::int64_t unit = 1;
    for (std::size_t i = cluster.levels.size(); i-- > 0;) {
      const std::int64_t parent = unit * cluster.levels[i].fanout;
      std::set<std::int64_t> children;
      for (const std::int64_t member : mesh.group(rank, axes)) {
        if (member / parent == rank / parent) {
          children.insert(member / unit);
        }
      }
      sizes[i].insert(static_cast<std::int64_t>(children.size()));
      unit = parent;
    }
  }
  return sizes;
}

TEST(GroupParts, EqualCountedMembersOnAlignedMeshes) {
  const Cluster cluster = tree({link(3, 1e9, 1e-5), link(2, 1e10, 1e-6), link(4, 1e11, 1e-6)});
  for (const DeviceMesh& mesh : cluster::enumerate_meshes(cluster, 4)) {
    for (std::uint32_t mask = 0; mask < (1U << mesh.axes.size()); ++mask) {
      std::vector<int> axes;
      for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
        if ((mask >> a & 1U) != 0) {
          axes.push_back(a);
        }
      }
      const auto counted = counted_parts(cluster, mesh, axes);
      std::vector<std::int64_t> sizes(cluster.levels.size(), 1);
      for (const GroupPart& part : group_parts(cluster, mesh, mask)) {
        sizes[part.level] = part.size;
      }
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(counted[i], std::set<std::int64_t>{sizes[i]}) << to_string(mesh) << " " << mask;
      }
    }
  }
}

TEST(GroupParts, UnalignedAxesCountWholeOnTheOutermostLevelInUse) {
  const Cluster cluster = tree({link(3, 1e9, 1e-5), link(4, 1e11, 1e-6)});
  const auto parts = group_parts(cluster, mesh_of({4, 3}), 2);  // ranks {3, 4, 5} cross nodes
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].level, 0U);
  EXPECT_EQ(parts[0].size, 3);
  // Three of the four devices of one node: no group crosses.
  const auto inner = group_parts(cluster, mesh_of({3}), 1);
  ASSERT_EQ(inner.size(), 1U);
  EXPECT_EQ(inner[0].level, 1U);
}

/// Every group that has members on several children of a level has at least as many there in
/// group_parts, or more on a level further out.
TEST(GroupParts, NeverUnderestimateTheOutermostLevel) {
  const Cluster cluster = tree({link(2, 1e9, 1e-5), link(2, 1e10, 1e-6), link(6, 1e11, 1e-6)});
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
           {24}, {4, 6}, {6, 4}, {3, 8}, {8, 3}, {2, 3, 4}, {4, 3, 2}, {5}, {2, 5}, {3, 7}}) {
    const DeviceMesh mesh = mesh_of(sizes);
    for (int axis = 0; axis < static_cast<int>(sizes.size()); ++axis) {
      const auto counted = counted_parts(cluster, mesh, {axis});
      std::size_t outermost = 0;
      while (*counted[outermost].rbegin() == 1) {
        ++outermost;
      }
      const auto parts = group_parts(cluster, mesh, 1U << axis);
      EXPECT_LE(parts.back().level, outermost) << to_string(mesh) << " axis " << axis;
      std::int64_t product = 1;
      for (const GroupPart& part : parts) {
        product *= part.size;
      }
      EXPECT_EQ(product, sizes[static_cast<std::size_t>(axis)]);
    }
  }
}

TEST(Collective, ClosedFormsOfOneLevel) {
  constexpr double kBandwidth = 1e10;
  constexpr Seconds kAlpha = 1e-5;
  const CostModel cost(tree({link(8, kBandwidth, kAlpha)}), mesh_of({8}));
  constexpr Bytes kLarge = 800'000'000;
  const double wire = static_cast<double>(kLarge) / kBandwidth;
  const auto seconds = [&](CollectiveKind kind, Bytes bytes) {
    return cost.collective(kind, bytes, {0});
  };
  EXPECT_NEAR(seconds(CollectiveKind::kAllGather, kLarge), 3 * kAlpha + 7.0 / 8 * wire, 1e-12);
  EXPECT_NEAR(seconds(CollectiveKind::kReduceScatter, kLarge), 3 * kAlpha + 7.0 / 8 * wire, 1e-12);
  EXPECT_NEAR(seconds(CollectiveKind::kAllReduce, kLarge), 6 * kAlpha + 7.0 / 4 * wire, 1e-12);
  EXPECT_NEAR(seconds(CollectiveKind::kAllToAll, kLarge), 7 * kAlpha + 7.0 / 8 * wire, 1e-12);
  EXPECT_NEAR(seconds(CollectiveKind::kCollectivePermute, kLarge), kAlpha + wire, 1e-12);
  // Small: the latency-bound algorithms.
  EXPECT_NEAR(seconds(CollectiveKind::kAllReduce, 8), 3 * (kAlpha + 8 / kBandwidth), 1e-15);
  EXPECT_NEAR(seconds(CollectiveKind::kAllToAll, 8), 3 * (kAlpha + 4 / kBandwidth), 1e-15);
  EXPECT_EQ(seconds(CollectiveKind::kAllReduce, 0), 3 * kAlpha);
}

TEST(Collective, OtherThanPowersOfTwo) {
  const CostModel cost(tree({link(6, 1e10, 1e-5)}), mesh_of({6}));
  // Pairwise exchange (5 messages), then Bruck's all-gather (3): no extra bytes.
  EXPECT_NEAR(
      cost.collective(CollectiveKind::kAllReduce, 6'000'000'000, {0}), 8e-5 + 10.0 / 6 * 0.6, 1e-9);
  // Recursive doubling on 4 of the 6, with a message before and one after.
  EXPECT_NEAR(cost.collective(CollectiveKind::kAllReduce, 8, {0}), 4e-5 + 4 * 8e-10, 1e-12);
  EXPECT_NEAR(cost.collective(CollectiveKind::kAllGather, 6000, {0}), 3e-5 + 5e-7, 1e-12);
}

TEST(Collective, GroupsOnInnerLinksAreFasterThanOnOuterLinks) {
  const Cluster cluster = tree({link(2, 1e9, 1e-5), link(2, 1e11, 1e-6)});
  const CostModel cost(cluster, mesh_of({2, 2}));
  EXPECT_NEAR(
      cost.collective(CollectiveKind::kAllGather, 1 << 20, {1}), 1e-6 + (1 << 19) / 1e11, 1e-12);
  EXPECT_NEAR(
      cost.collective(CollectiveKind::kAllGather, 1 << 20, {0}), 1e-5 + (1 << 19) / 1e9, 1e-12);
}

TEST(Collective, HierarchicalSendsOnlyTheScatteredPartOverOuterLinks) {
  const Cluster cluster = tree({link(4, 1e9, 1e-5), link(8, 1e11, 1e-6)});
  const CostModel cost(cluster, mesh_of({32}));
  constexpr double kBytes = 1e9;
  const double inner = 2 * (3e-6 + 7.0 / 8 * kBytes / 1e11);
  const double outer = 4e-5 + 2 * 3.0 / 4 * (kBytes / 8) / 1e9;
  EXPECT_NEAR(cost.collective(CollectiveKind::kAllReduce, static_cast<Bytes>(kBytes), {0}),
              inner + outer,
              1e-9);
  // The order of the axes of the group does not matter.
  const CostModel grid(cluster, mesh_of({4, 8}));
  EXPECT_EQ(grid.collective(CollectiveKind::kAllReduce, 1 << 20, {0, 1}),
            grid.collective(CollectiveKind::kAllReduce, 1 << 20, {1, 0}));
}

TEST(Collective, PairsPreferPairs) {
  const Cluster pairs = *cluster::load_cluster("pairs8");
  const CostModel cost(pairs, mesh_of({4, 2}));
  for (const CollectiveKind kind : kKinds) {
    if (kind != CollectiveKind::kSlice) {
      EXPECT_LT(cost.collective(kind, 1 << 24, {1}), cost.collective(kind, 1 << 24, {0}) / 5);
    }
  }
}

TEST(Collective, GroupsOfOneDeviceCostNothing) {
  const CostModel cost(tree({link(4, 1e9, 1e-5)}), mesh_of({1, 4}));
  EXPECT_EQ(cost.collective(CollectiveKind::kAllReduce, 1 << 20, {0}), 0);
  EXPECT_EQ(cost.collective(CollectiveKind::kAllGather, 1 << 20, {}), 0);
}

/// A message crosses the outermost level on which its ends differ, and costs what was measured
/// there, if anything was.
TEST(Message, TakesTheMeasuredCurveOfItsLevel) {
  Cluster cluster = tree({link(2, 1e9, 1e-4), link(4, 1e10, 1e-5)});
  EXPECT_EQ(message_seconds(cluster, 1000, 3, 3), 0);
  EXPECT_DOUBLE_EQ(message_seconds(cluster, 1'000'000, 0, 3), 1e-5 + 1e-4);
  EXPECT_DOUBLE_EQ(message_seconds(cluster, 1'000'000, 3, 4), 1e-4 + 1e-3);
  cluster.levels[1].collective_curves["collective_permute"] = {{1e3, 1e-4}, {1e5, 1e-2}};
  EXPECT_NEAR(message_seconds(cluster, 1'000, 0, 3), 1e-4, 1e-15);
  EXPECT_NEAR(message_seconds(cluster, 10'000, 0, 3), 1e-3, 1e-12);
  EXPECT_NEAR(message_seconds(cluster, 1'000'000, 0, 3), 1e-1, 1e-10);  // at the last rate
  EXPECT_DOUBLE_EQ(message_seconds(cluster, 1'000'000, 3, 4), 1e-4 + 1e-3);
  cluster.levels[0].collective_curves["all_gather"] = {{1e3, 1}};
  EXPECT_DOUBLE_EQ(message_seconds(cluster, 1'000'000, 3, 4), 1e-4 + 1e-3);
}

TEST(Collective, MeasuredCurvesReplaceTheFormulas) {
  Cluster cluster = tree({link(4, 1e9, 1e-5)});
  cluster.levels[0].collective_curves["all_gather"] = {{1000, 1e-3}, {1000000, 1e-1}};
  const CostModel cost(cluster, mesh_of({4}));
  EXPECT_NEAR(cost.collective(CollectiveKind::kAllGather, 1000000, {0}), 1e-1, 1e-12);
  EXPECT_NEAR(cost.collective(CollectiveKind::kAllReduce, 8, {0}), 2 * (1e-5 + 8e-9), 1e-12);
  // Two of the four: half of the tensor moves instead of three quarters.
  const CostModel half(cluster, mesh_of({2, 2}));
  EXPECT_NEAR(half.collective(CollectiveKind::kAllGather, 1500000, {1}), 1e-1, 1e-12);
}

/// A random cluster of one to three levels, sometimes with measured curves.
Cluster random_cluster(std::mt19937& random) {
  std::uniform_int_distribution<int> fanout(1, 6);
  std::uniform_real_distribution<double> exponent(8, 11);
  std::vector<LinkLevel> levels;
  const int count = 1 + fanout(random) % 3;
  for (int i = 0; i < count; ++i) {
    levels.push_back(
        link(fanout(random), std::pow(10, exponent(random)), std::pow(10, -exponent(random) / 2)));
    if (fanout(random) == 1) {
      levels.back().collective_curves["all_reduce"] = {{1e3, 1e-5}, {1e5, 0.9e-5}, {1e7, 1e-2}};
    }
  }
  return tree(std::move(levels));
}

/// `cost` on growing sizes: never less for more bytes, and never less than either better cluster.
void expect_monotone(const CostModel& cost,
                     const std::vector<CostModel>& better,
                     const std::vector<int>& axes,
                     const std::vector<Bytes>& growing) {
  for (const CollectiveKind kind : kKinds) {
    Seconds before = 0;
    for (const Bytes bytes : growing) {
      const Seconds now = cost.collective(kind, bytes, axes);
      EXPECT_GE(now, before) << collective_name(kind) << " " << bytes;
      for (const CostModel& other : better) {
        EXPECT_LE(other.collective(kind, bytes, axes), now) << collective_name(kind);
      }
      before = now;
    }
  }
}

TEST(CollectiveProperty, MoreBytesAndSlowerLinksNeverCostLess) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(0, 10);
  for (int round = 0; round < 300; ++round) {
    const Cluster cluster = random_cluster(random);
    const std::vector<DeviceMesh> meshes = cluster::enumerate_meshes(cluster, 3);
    const DeviceMesh& mesh = meshes[static_cast<std::size_t>(random()) % meshes.size()];
    std::vector<int> axes;
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      if (random() % 3 != 0) {
        axes.push_back(a);
      }
    }
    Cluster wider = cluster;
    Cluster quicker = cluster;
    const std::size_t level = static_cast<std::size_t>(random()) % cluster.levels.size();
    wider.levels[level].bandwidth *= 1.5;
    quicker.levels[level].latency /= 2;
    std::vector<Bytes> growing(20);
    std::generate(growing.begin(), growing.end(), [&] {
      return static_cast<Bytes>(std::pow(10, exponent(random)));
    });
    std::sort(growing.begin(), growing.end());
    expect_monotone(CostModel(cluster, mesh),
                    {CostModel(wider, mesh), CostModel(quicker, mesh)},
                    axes,
                    growing);
  }
}

TEST(CollectiveProperty, AllReduceIsAtMostScatterThenGather) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    Cluster cluster = random_cluster(random);
    for (LinkLevel& level : cluster.levels) {
      level.collective_curves.clear();
    }
    for (const DeviceMesh& mesh : cluster::enumerate_meshes(cluster, 2)) {
      if (mesh.axes.empty()) {
        continue;
      }
      const CostModel cost(cluster, mesh);
      for (const Bytes bytes : {Bytes{100}, Bytes{100'000}, Bytes{100'000'000}}) {
        EXPECT_LE(cost.collective(CollectiveKind::kAllReduce, bytes, {0}),
                  (cost.collective(CollectiveKind::kReduceScatter, bytes, {0}) +
                   cost.collective(CollectiveKind::kAllGather, bytes, {0})) *
                      (1 + 1e-9));
      }
    }
  }
}

}  // namespace
}  // namespace shardplan::cost
