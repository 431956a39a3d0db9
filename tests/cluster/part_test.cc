#include <gtest/gtest.h>

#include "shardplan/cluster/cluster.h"

namespace shardplan::cluster {
namespace {

TEST(PartOf, FillsInnerLevelsFirst) {
  const Cluster boxes = *load_cluster("dgx-a100:4");
  const auto fanouts = [&](std::int64_t devices) {
    const Cluster part = *part_of(boxes, devices);
    EXPECT_EQ(part.device_count(), devices);
    EXPECT_EQ(part.device, boxes.device);
    return std::pair(part.levels[0].fanout, part.levels[1].fanout);
  };
  EXPECT_EQ(fanouts(1), std::pair(std::int64_t{1}, std::int64_t{1}));
  EXPECT_EQ(fanouts(6), std::pair(std::int64_t{1}, std::int64_t{6}));
  EXPECT_EQ(fanouts(8), std::pair(std::int64_t{1}, std::int64_t{8}));
  EXPECT_EQ(fanouts(24), std::pair(std::int64_t{3}, std::int64_t{8}));
  EXPECT_EQ(*part_of(boxes, 32), boxes);
  EXPECT_EQ(part_of(*load_cluster("pairs8"), 4)->levels[0].fanout, 2);
}

TEST(PartOf, IsNamedAsThePresetWhereThereIsOne) {
  EXPECT_EQ(*part_of(*load_cluster("dgx-a100:4"), 16), *load_cluster("dgx-a100:2"));
  EXPECT_EQ(part_of(*load_cluster("dgx-a100:4"), 4)->name, "4 of dgx-a100:4");
  EXPECT_EQ(part_of(*load_cluster("8xA100-80GB"), 4)->name, "4 of 8xA100-80GB");
}

TEST(PartOf, FewerLocalProcessesHaveMoreOfTheMachine) {
  EXPECT_EQ(*part_of(*load_cluster("local:8"), 2), *load_cluster("local:2"));
}

TEST(PartOf, ReadsBack) {
  const Cluster part = *part_of(*load_cluster("8xA100-80GB"), 4);
  const auto again = parse_cluster_yaml(to_yaml(part), "part");
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(*again, part);
}

TEST(PartOf, SaysWhatDoesNotFit) {
  const Cluster boxes = *load_cluster("dgx-a100:4");
  EXPECT_NE(part_of(boxes, 12).error().text().find("groups of 8 on NVLink"), std::string::npos);
  EXPECT_NE(part_of(boxes, 64).error().text().find("it has 32 devices"), std::string::npos);
  EXPECT_FALSE(part_of(boxes, 0));
}

}  // namespace
}  // namespace shardplan::cluster
