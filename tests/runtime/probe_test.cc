#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "shardplan/cluster/cluster.h"
#include "shardplan/runtime/runtime.h"

namespace shardplan::runtime {
namespace {

TEST(Probe, QuickMeasuresEverythingWithinSecondsAndGivesAClusterFile) {
  const auto start = std::chrono::steady_clock::now();
  double done = -1;
  Control control;
  control.progress = [&](std::string_view, double part) {
    EXPECT_GE(part, done);
    done = part;
  };
  const Result<cluster::Cluster> found = probe({.ranks = 2, .quick = true}, control);
  ASSERT_TRUE(found.has_value()) << found.error().text();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_GT(done, 0.8);
  EXPECT_EQ(found->device_count(), 2);
  for (const char* const dtype : {"f32", "f64", "bf16"}) {
    EXPECT_GT(found->device.peak_flops.at(dtype), 1e8) << dtype;
    EXPECT_GE(found->device.matmul_curve.at(dtype).size(), 5U) << dtype;
  }
  EXPECT_GT(found->device.memory_bandwidth, 1e8);
  for (const char* const op : {"add", "gelu", "layer_norm_backward", "adam_update", "attention"}) {
    EXPECT_GE(found->device.kernel_curves.at(op).size(), 3U) << op;
  }
  ASSERT_EQ(found->levels.size(), 1U);
  for (const char* const kind :
       {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute"}) {
    EXPECT_GE(found->levels[0].collective_curves.at(kind).size(), 4U) << kind;
  }
  const Result<cluster::Cluster> read = cluster::parse_cluster_yaml(cluster::to_yaml(*found), "t");
  ASSERT_TRUE(read.has_value()) << read.error().text();
  EXPECT_EQ(read->device_count(), 2);
  EXPECT_EQ(read->device.kernel_curves.size(), found->device.kernel_curves.size());
}

TEST(Probe, OneRankHasNoLinks) {
  const Result<cluster::Cluster> refused = probe({.ranks = 0, .quick = true}, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().text().find("at least one rank"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::runtime
