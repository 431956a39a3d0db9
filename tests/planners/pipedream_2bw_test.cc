#include <gtest/gtest.h>

#include "cuts_testing.h"
#include "shardplan/planners/pipeline/equal_stages.h"

namespace shardplan::planners {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Row {
  int devices;
  double memory_gib;
  double published;  // 0 = nothing fits
};

void expect_rows(const problem::LayerGraph& graph,
                 std::int64_t microbatches,
                 const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    problem::LayerMachines machines;
    machines.devices = row.devices;
    machines.microbatches = microbatches;
    machines.memory_bytes = row.memory_gib * kGiB;
    machines.bandwidth = 25 * kGiB;
    const LayerPlanResult result = plan_layers("pipedream_2bw", graph, machines);
    if (row.published == 0) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible) << row.devices;
    } else {
      EXPECT_NEAR(result.objective, row.published, 1e-9 * row.published)
          << row.devices << " devices of " << row.memory_gib << " GiB";
    }
  }
}

TEST(Pipedream2bw, ReachesTheEquiColumn) {
  if (!has_workload("piper")) {
    GTEST_SKIP() << "no published inputs on this machine";
  }
  expect_rows(published("piper/bert32a100.json"),
              1920,
              {{8, 1, 0},
               {8, 2, 0},
               {8, 8, 0.230978},
               {8, 80, 0.1220072694},
               {32, 8, 0.05135108894},
               {64, 1, 0},
               {64, 2, 0.12333875},
               {64, 8, 0.02572454783},
               {64, 80, 0.01565017802},
               {128, 8, 0.01291127728},
               {512, 1, 0},
               {512, 2, 0.01207555379},
               {512, 8, 0.003301324364},
               {512, 80, 0.002414786788}});
  expect_rows(published("piper/resnet.json"),
              7680,
              {{8, 2, 0},
               {8, 4, 0},
               {8, 8, 164.1592812},
               {8, 16, 108.8853283},
               {32, 2, 0},
               {32, 4, 0},
               {32, 8, 41.03982032},
               {32, 16, 27.22133225},
               {64, 2, 0},
               {64, 4, 0},
               {64, 8, 20.51991017}});
}

TEST(EqualStages, SplitsRepeatedBlocks) {
  std::mt19937 random(1);
  problem::LayerGraph graph = random_graph(random, 9, 0);
  for (std::size_t v = 1; v < 8; ++v) {
    graph.layers[v].name = "block " + std::to_string(v);
  }
  const EqualStages equal(graph);
  EXPECT_EQ(equal.blocks(), 7);
  using Cut = std::vector<std::vector<int>>;
  EXPECT_EQ(equal.cut(3), (Cut{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}}));
  EXPECT_EQ(equal.cut(2, true), (Cut{{0}, {1, 2, 3}, {4, 5, 6, 7}, {8}}));
  const EqualStages all(random_graph(random, 5, 0));
  EXPECT_EQ(all.blocks(), 5);
  EXPECT_EQ(all.cut(2), (Cut{{0, 1}, {2, 3, 4}}));
}

}  // namespace
}  // namespace shardplan::planners
