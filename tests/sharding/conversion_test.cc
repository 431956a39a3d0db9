// Changes of layout between all pairs of plain layouts of a cube on a 2 × 4 mesh, in the sizes in
// which published planners were measured (docs/planners/map.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "shardplan/sharding/reshard.h"

namespace shardplan::sharding {
namespace {

const cluster::DeviceMesh& mesh() {
  static const cluster::DeviceMesh two_by_four{{{"a", 2}, {"b", 4}}};
  return two_by_four;
}

const ir::TensorType& cube() {
  static const ir::TensorType f32_cube{ir::DType::kFloat32, {64, 64, 64}};
  return f32_cube;
}

ShardingSpec spec(const std::string& text) {
  const Result<ShardingSpec> parsed = parse_spec(text, 3, mesh());
  EXPECT_TRUE(parsed) << parsed.error().text();
  return *parsed;
}

/// Each axis on any dimension or none, both on one dimension in mesh order: 16 layouts.
std::vector<ShardingSpec> plain_layouts() {
  std::vector<ShardingSpec> out;
  for (int a = -1; a < 3; ++a) {
    for (int b = -1; b < 3; ++b) {
      ShardingSpec& layout = out.emplace_back();
      if (a >= 0) {
        layout.shard(a, 0);
      }
      if (b >= 0) {
        layout.shard(b, 1);
      }
    }
  }
  return out;
}

/// A latency and the larger side over a bandwidth, twice as slow on the outer axis; slices copy.
double price(const ReshardStep& step, const ir::TensorType& type) {
  const auto bytes = static_cast<double>(
      std::max(local_bytes(step.from, type, mesh()), local_bytes(step.to, type, mesh())));
  if (step.kind == CollectiveKind::kSlice) {
    return 1e-5 + bytes / 1e11;
  }
  const bool outer = std::find(step.axes.begin(), step.axes.end(), 0) != step.axes.end();
  const double rounds = step.kind == CollectiveKind::kAllReduce ? 2 : 1;
  return rounds * (2e-5 + bytes / (outer ? 5e9 : 1e10));
}

/// Least price from one layout to every other: steps are added until nothing becomes cheaper.
std::map<ShardingSpec, double> cheapest_from(const ShardingSpec& from) {
  std::map<ShardingSpec, double> best{{from, 0.0}};
  for (bool better = true; better;) {
    better = false;
    const std::map<ShardingSpec, double> known = best;
    for (const auto& [at, so_far] : known) {
      for (const ReshardStep& step : one_step_reshards(at, cube(), mesh())) {
        const double total = so_far + price(step, cube());
        const auto [place, is_new] = best.emplace(step.to, total);
        if (is_new || total < place->second * (1 - 1e-12)) {
          place->second = total;
          better = true;
        }
      }
    }
  }
  return best;
}

TEST(Conversion, BetweenAllPairsNoSequenceOfStepsIsCheaper) {
  Resharder resharder(mesh(), price);
  for (const ShardingSpec& from : plain_layouts()) {
    const std::map<ShardingSpec, double> best = cheapest_from(from);
    for (const ShardingSpec& to : plain_layouts()) {
      const ReshardPath& path = resharder.path(from, to, cube());
      ASSERT_TRUE(path.possible);
      EXPECT_NEAR(path.price, best.at(to), 1e-12)
          << to_string(from, 3, mesh()) << " -> " << to_string(to, 3, mesh());
    }
  }
}

TEST(Conversion, EveryStepCountsOnce) {
  Resharder resharder(mesh(), price);
  std::size_t longest = 0;
  for (const ShardingSpec& from : plain_layouts()) {
    for (const ShardingSpec& to : plain_layouts()) {
      const ReshardPath& path = resharder.path(from, to, cube());
      double sum = 0;
      for (const ReshardStep& step : path.steps) {
        sum += price(step, cube());
      }
      EXPECT_NEAR(path.price, sum, 1e-15);
      EXPECT_EQ(resharder.cost(from, to, cube()).price, path.price);
      longest = std::max(longest, path.steps.size());
    }
  }
  EXPECT_GE(longest, 2U);  // where a step could be counted twice
}

TEST(Conversion, MovesOneCutAndAddsAnotherWithoutGathering) {
  Resharder resharder(mesh(), price);
  const ReshardPath& path = resharder.path(spec("[-, b, -]"), spec("[a·b, -, -]"), cube());
  ASSERT_EQ(path.steps.size(), 2U);
  EXPECT_EQ(path.steps[0].kind, CollectiveKind::kSlice);
  EXPECT_EQ(path.steps[1].kind, CollectiveKind::kAllToAll);
  EXPECT_EQ(path.steps[1].axes, std::vector<int>{1});
  // The slice in between is an eighth of the cube.
  EXPECT_EQ(path.temporary, cube().bytes() / 8);
}

TEST(Conversion, GatheredTensorsTakeAllTheirBytes) {
  Resharder resharder(mesh(), price);
  EXPECT_EQ(local_bytes(spec("[a·b, -, -]"), cube(), mesh()), cube().bytes() / 8);
  EXPECT_EQ(local_bytes(spec("[-, -, -]"), cube(), mesh()), Bytes{262144} * 4);
  // Straight to the result, which the path's user counts: nothing beside it.
  EXPECT_EQ(resharder.path(spec("[a·b, -, -]"), spec("[-, -, -]"), cube()).temporary, 0);
  for (const ShardingSpec& from : plain_layouts()) {
    for (const ShardingSpec& to : plain_layouts()) {
      const ReshardPath& path = resharder.path(from, to, cube());
      Bytes most = 0;
      for (std::size_t i = 0; i < path.steps.size(); ++i) {
        const bool first = i == 0;
        const bool last = i + 1 == path.steps.size();
        most = std::max(most,
                        (first ? 0 : local_bytes(path.steps[i].from, cube(), mesh())) +
                            (last ? 0 : local_bytes(path.steps[i].to, cube(), mesh())));
      }
      EXPECT_EQ(path.temporary, most);
    }
  }
}

TEST(LocalBytes, AreThoseOfTheElementTypeAndTheSizesOfTheAxes) {
  for (const auto& [dtype, size] : std::map<ir::DType, Bytes>{{ir::DType::kBool, 1},
                                                              {ir::DType::kBFloat16, 2},
                                                              {ir::DType::kFloat16, 2},
                                                              {ir::DType::kInt32, 4},
                                                              {ir::DType::kFloat32, 4},
                                                              {ir::DType::kInt64, 8},
                                                              {ir::DType::kFloat64, 8}}) {
    const ir::TensorType type{dtype, {16, 8, 3}};
    const auto bytes = [&](const std::string& text) {
      return local_bytes(spec(text), type, mesh());
    };
    const Bytes whole = 384 * size;
    EXPECT_EQ(type.bytes(), whole);
    EXPECT_EQ(bytes("[-, -, -]"), whole);
    EXPECT_EQ(bytes("[a, -, -]"), whole / 2);
    EXPECT_EQ(bytes("[a, b, -]"), whole / 8);
    EXPECT_EQ(bytes("[-, a·b, -]"), whole / 8);
    EXPECT_EQ(bytes("[b, -, -] + sum(a)"), whole / 4);
  }
}

TEST(Resharder, AsksForThePriceOfAStepOnce) {
  std::map<std::string, int> asked;
  const auto name = [](const ReshardStep& step) {
    return std::string(collective_name(step.kind)) + to_string(step.from, 3, mesh()) +
           to_string(step.to, 3, mesh());
  };
  Resharder resharder(mesh(), [&](const ReshardStep& step, const ir::TensorType& type) {
    ++asked[name(step)];
    return price(step, type);
  });
  for (int round = 0; round < 2; ++round) {
    for (const ShardingSpec& from : plain_layouts()) {
      for (const ShardingSpec& to : plain_layouts()) {
        static_cast<void>(resharder.cost(from, to, cube()));
        static_cast<void>(resharder.path(from, to, cube()));
      }
    }
  }
  EXPECT_GT(asked.size(), 100U);
  for (const auto& [step, times] : asked) {
    EXPECT_EQ(times, 1) << step;
  }
}

}  // namespace
}  // namespace shardplan::sharding
