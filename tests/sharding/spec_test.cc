#include "shardplan/sharding/spec.h"

#include <gtest/gtest.h>

#include <unordered_set>

#include "tests/sharding/layout_testing.h"

namespace shardplan::sharding {
namespace {

const cluster::DeviceMesh& data_tensor() {
  static const cluster::DeviceMesh mesh{{{"data", 2}, {"tensor", 4}, {"seq", 3}}};
  return mesh;
}

TEST(ShardingSpec, IsReplicatedAtFirst) {
  const ShardingSpec spec;
  EXPECT_TRUE(spec.fully_replicated());
  EXPECT_FALSE(spec.has_partial());
  EXPECT_EQ(to_string(spec, 2, data_tensor()), "[-, -]");
  EXPECT_EQ(to_string(spec, 0, data_tensor()), "[]");
}

TEST(ShardingSpec, KeepsTheOrderOfCutsOfADimension) {
  ShardingSpec spec;
  spec.shard(1, 1);
  spec.shard(1, 0);
  spec.make_partial(2, Reduction::kMax);
  EXPECT_EQ(spec.axes_of(1), (std::vector<int>{1, 0}));
  EXPECT_EQ(spec.count_of(1), 2);
  EXPECT_EQ(spec.axis_at(1, 0), 1);
  EXPECT_EQ(spec.axis_at(1, 1), 0);
  EXPECT_EQ(spec.axis_at(1, 2), -1);
  EXPECT_EQ(spec.dim_of(2), -1);
  EXPECT_EQ(spec.partial_axes(), std::vector<int>{2});
  EXPECT_EQ(to_string(spec, 2, data_tensor()), "[-, tensor·data] + max(seq)");
  EXPECT_EQ(shard_count(spec, 1, data_tensor()), 8);
  EXPECT_EQ(shard_count(spec, data_tensor()), 8);
  EXPECT_EQ(local_shape(spec, {5, 16}, data_tensor()), (ir::Shape{5, 2}));
  EXPECT_EQ(local_bytes(spec, {ir::DType::kFloat32, {5, 16}}, data_tensor()), 5 * 2 * 4);

  spec.replicate(1);
  EXPECT_EQ(spec.axes_of(1), std::vector<int>{0});
  ShardingSpec same;
  same.make_partial(2, Reduction::kMax);
  same.shard(1, 0);
  EXPECT_EQ(spec, same);
  EXPECT_EQ(spec.hash(), same.hash());
}

TEST(ShardingSpec, FitsWhatPartsAreWorthCutting) {
  ShardingSpec spec;
  spec.shard(0, 0);
  spec.shard(0, 2);
  EXPECT_TRUE(fits(spec, {12, 5}, data_tensor()));
  EXPECT_TRUE(fits(spec, {4, 6}, data_tensor()));   // 6 parts: 1 1 0 and 1 1 0
  EXPECT_FALSE(fits(spec, {3, 6}, data_tensor()));  // twice as large as even ones
  EXPECT_FALSE(fits(spec, {}, data_tensor()));      // no such dimension
  EXPECT_TRUE(fits(ShardingSpec{}, {7}, data_tensor()));
}

TEST(ShardingSpec, CutsUnevenlyAsTorchChunkDoesAxisByAxis) {
  const cluster::DeviceMesh four = make_mesh({4});
  ShardingSpec rows;
  rows.shard(0, 0);
  std::vector<Range> parts;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    parts.push_back(part(rows, {6, 3}, four, rank)[0]);
  }
  EXPECT_EQ(parts, (std::vector<Range>{{0, 2}, {2, 2}, {4, 2}, {6, 0}}));
  EXPECT_EQ(local_shape(rows, {6, 3}, four), (ir::Shape{2, 3}));
  EXPECT_EQ(part_shape(rows, {6, 3}, four, 3), (ir::Shape{0, 3}));
  // The vocabulary of GPT-2 on eight devices.
  const cluster::DeviceMesh eight = make_mesh({8});
  EXPECT_EQ(part_shape(rows, {50257}, eight, 0), ir::Shape{6283});
  EXPECT_EQ(part_shape(rows, {50257}, eight, 7), ir::Shape{6276});
  EXPECT_EQ(local_bytes(rows, {ir::DType::kFloat32, {50257, 768}}, eight), 6283 * 768 * 4);
  // Against the twin, and parts along a minor axis make up the part along the major one.
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{2, 2}, {2, 3}, {3, 2, 2}}) {
    const cluster::DeviceMesh mesh = make_mesh(sizes);
    const std::int64_t first_minor = mesh.size() / sizes[0];
    for (std::int64_t size = 0; size < 20; ++size) {
      ShardingSpec spec;
      std::vector<int> axes;
      for (int axis = 0; axis < static_cast<int>(sizes.size()); ++axis) {
        spec.shard(0, axis);
        axes.push_back(axis);
      }
      std::vector<std::int64_t> joined(static_cast<std::size_t>(sizes[0]), 0);
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        const Range range = part(spec, {size}, mesh, rank)[0];
        const std::vector<std::int64_t> elements = elements_of(size, axes, rank, mesh);
        ASSERT_EQ(range.size, static_cast<std::int64_t>(elements.size()));
        ASSERT_TRUE(elements.empty() || elements.front() == range.start);
        ASSERT_LE(range.size, local_shape(spec, {size}, mesh)[0]);
        joined[static_cast<std::size_t>(rank / first_minor)] += range.size;
      }
      for (std::int64_t major = 0; major < sizes[0]; ++major) {
        EXPECT_EQ(joined[static_cast<std::size_t>(major)],
                  part(size, {0}, mesh, major * first_minor).size);
      }
    }
  }
}

TEST(ShardingSpec, TextRoundTripsAndHashesDiffer) {
  std::unordered_set<std::uint64_t> hashes;
  std::size_t count = 0;
  for (const int rank : {0, 1, 2, 3}) {
    for (const ShardingSpec& spec : all_layouts(rank, 3, true)) {
      const std::string text = to_string(spec, static_cast<std::size_t>(rank), data_tensor());
      const Result<ShardingSpec> parsed =
          parse_spec(text, static_cast<std::size_t>(rank), data_tensor());
      ASSERT_TRUE(parsed) << text << ": " << parsed.error().text();
      EXPECT_EQ(*parsed, spec) << text;
      if (rank == 3) {
        hashes.insert(spec.hash());
        ++count;
      }
    }
  }
  EXPECT_EQ(hashes.size(), count);
}

TEST(ShardingSpec, ParsesLooseSpacingAndStars) {
  const Result<ShardingSpec> spec =
      parse_spec("  [ data * tensor ,- ]+max(seq) ", 2, data_tensor());
  ASSERT_TRUE(spec) << spec.error().text();
  EXPECT_EQ(to_string(*spec, 2, data_tensor()), "[data·tensor, -] + max(seq)");
}

TEST(ShardingSpec, ErrorsNameThePlace) {
  const auto error = [](std::string_view text, std::size_t rank = 2) {
    const Result<ShardingSpec> spec = parse_spec(text, rank, data_tensor());
    return spec ? std::string("no error") : spec.error().text();
  };
  EXPECT_EQ(error("[-, tensr]"),
            "layout \"[-, tensr]\": no mesh axis is named \"tensr\" (dimension 1); did you mean "
            "\"tensor\"?");
  EXPECT_EQ(error("[data, data]"), "layout \"[data, data]\": mesh axis \"data\" is used twice");
  EXPECT_EQ(error("[data]"), "layout \"[data]\": it has 1 dimensions, the tensor has 2");
  EXPECT_EQ(error("[]"), "layout \"[]\": it has 0 dimensions, the tensor has 2");
  EXPECT_EQ(error("[-, -, -]"), "layout \"[-, -, -]\": it has more dimensions, the tensor has 2");
  EXPECT_EQ(error("data"), "layout \"data\": it must start with \"[\"");
  EXPECT_EQ(error("[-, -] + avg(data)"),
            "layout \"[-, -] + avg(data)\": \"sum(...)\" or \"max(...)\" expected after \"+\"");
  EXPECT_EQ(error("[-, -] x"), "layout \"[-, -] x\": unexpected \"x\" at the end");
  EXPECT_EQ(error("[-, ]"), "layout \"[-, ]\": a mesh axis or \"-\" expected in dimension 1");
  EXPECT_EQ(error("[-, -"), "layout \"[-, -\": \"]\" or \",\" expected after dimension 1");
}

TEST(ShardingSpec, ParserSurvivesDamagedText) {
  const std::string good = "[data·tensor, -] + sum(seq)";
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::string text = good;
    const std::size_t at = scramble(seed, 1) % text.size();
    switch (seed % 3) {
      case 0:
        text.erase(at, 1 + scramble(seed, 2) % 4);
        break;
      case 1:
        text[at] = static_cast<char>(scramble(seed, 3) % 256);
        break;
      default:
        text.insert(at, text.substr(scramble(seed, 4) % text.size(), 5));
    }
    if (const Result<ShardingSpec> spec = parse_spec(text, 2, data_tensor())) {
      EXPECT_TRUE(parse_spec(to_string(*spec, 2, data_tensor()), 2, data_tensor()));
    }
  }
}

}  // namespace
}  // namespace shardplan::sharding
