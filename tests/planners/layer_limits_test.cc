// What every planner of layer graphs does with a time limit, an interrupt, and graphs that its
// method cannot take.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "layers_testing.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;

constexpr int kDevices = 256;

/// Branches side by side between a first and a last layer, with everything that any method asks
/// for.
LayerGraph branches(std::mt19937& random, int width, int length) {
  std::uniform_real_distribution<double> chance(0, 1);
  LayerGraph graph;
  graph.name = "branches";
  const auto add = [&] {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = std::to_string(graph.layers.size() - 1);
    layer.output_bytes = 1e5;
    const double time = 1 + 4 * chance(random);
    const double weights = std::floor(1e6 * (1 + 9 * chance(random)));
    for (const int degree : {1, 2, 4}) {
      problem::LayerChoice choice{"plain",
                                  degree,
                                  time / degree * (1 + 0.1 * degree),
                                  std::nullopt,
                                  weights / degree,
                                  1e6 / degree,
                                  3 * weights / degree,
                                  {},
                                  {}};
      layer.choices.push_back(choice);
      choice.name = "recompute";
      choice.time *= 1.3;
      choice.in_flight_bytes *= 0.2;
      layer.choices.push_back(choice);
    }
    return static_cast<int>(graph.layers.size()) - 1;
  };
  const int first = add();
  std::vector<int> ends;
  for (int b = 0; b < width; ++b) {
    int before = first;
    for (int i = 0; i < length; ++i) {
      const int layer = add();
      graph.edges.push_back({before, layer, 1e5, std::nullopt});
      before = layer;
    }
    ends.push_back(before);
  }
  const int last = add();
  for (const int end : ends) {
    graph.edges.push_back({end, last, 1e5, std::nullopt});
  }
  return graph;
}

struct Timed {
  Result<LayerPlanResult> result;
  double seconds = 0;
};

Timed solve_within(const LayerPlannerInfo& planner,
                   const LayerGraph& graph,
                   Seconds limit,
                   const Control& control = {}) {
  const LayerMachines asked = machines(kDevices, 1e10, 1e10, 2048);
  const auto start = std::chrono::steady_clock::now();
  Timed timed{solve_layers(planner, LayerRequest{graph, asked, {}, limit, control}), 0};
  timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return timed;
}

class LayerLimits : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(LayerLimits, PlannersStopInTimeAndSayWhy) {
  std::mt19937 random(90);
  const LayerGraph graph = branches(random, GetParam().first, GetParam().second);
  for (const LayerPlannerInfo& planner : layer_planners()) {
    SCOPED_TRACE(planner.name);
    const Timed timed = solve_within(planner, graph, 0.05);
    EXPECT_LT(timed.seconds, 3);  // of a machine with other work
    if (!timed.result) {          // too many cuts for the method, by its name
      EXPECT_NE(timed.result.error().message.find(planner.name), std::string::npos)
          << timed.result.error().text();
      continue;
    }
    const LayerPlanResult& result = *timed.result;
    if (result.limit == SearchLimit::kNone) {
      EXPECT_NE(result.status, SearchStatus::kNoPlanFound) << result.explanation;
    } else {
      EXPECT_EQ(result.limit, SearchLimit::kTime);
      EXPECT_NE(result.status, SearchStatus::kInfeasible);
    }
    if (result.status == SearchStatus::kNoPlanFound) {
      EXPECT_FALSE(result.explanation.empty());
    } else {
      EXPECT_LE(result.lower_bound, result.objective);
    }
  }
}

TEST_P(LayerLimits, AnInterruptIsSaid) {
  std::mt19937 random(91);
  const LayerGraph graph = branches(random, GetParam().first, GetParam().second);
  const std::atomic<bool> interrupt = true;
  Control control;
  control.interrupt = &interrupt;
  for (const LayerPlannerInfo& planner : layer_planners()) {
    SCOPED_TRACE(planner.name);
    const Timed timed = solve_within(planner, graph, 0, control);
    EXPECT_LT(timed.seconds, 3);
    if (timed.result && planner.name != "gpipe") {  // whose search has no parts
      EXPECT_EQ(timed.result->limit, SearchLimit::kInterrupted);
      const LayerPlanResult& result = *timed.result;
      EXPECT_TRUE(result.status != SearchStatus::kOptimal ||
                  result.lower_bound >= result.objective * (1 - 1e-5));
      EXPECT_NE(timed.result->status, SearchStatus::kInfeasible);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         LayerLimits,
                         ::testing::Values(std::pair(1, 998), std::pair(2, 50), std::pair(8, 40)));

/// A layer that is a part of the backward pass by itself is planned by the methods that know such
/// layers, and refused by name by all others.
TEST(LayerRefusals, BackwardLayers) {
  std::mt19937 random(92);
  LayerGraph graph = branches(random, 1, 6);
  for (problem::Layer& layer : graph.layers) {
    layer.placement = problem::LayerPlacement{.cpu_time = 9};
  }
  for (problem::LayerEdge& edge : graph.edges) {
    edge.transfer_time = 0.1;
  }
  for (std::size_t v = 4; v < 8; ++v) {
    graph.layers[v].placement =
        problem::LayerPlacement{.cpu_time = 9, .backward = true, .color = 7 - v};
    graph.layers[7 - v].placement = problem::LayerPlacement{.cpu_time = 9, .color = 7 - v};
  }
  for (const LayerPlannerInfo& planner : layer_planners()) {
    SCOPED_TRACE(planner.name);
    LayerMachines asked = machines(2, 1e10, 1e10, 4);
    asked.cpus = 1;
    const auto result = solve_layers(planner, LayerRequest{graph, asked, {}, 2, {}});
    const bool knows =
        planner.name.starts_with("dnn_partitioning") && planner.name != "dnn_partitioning_latency";
    ASSERT_EQ(result.has_value(), knows) << (result ? "" : result.error().text());
    if (!knows) {
      EXPECT_TRUE(result.error().message.starts_with(planner.name));
      EXPECT_NE(result.error().message.find("backward pass"), std::string::npos);
    }
  }
}

/// DistIR's grid ends where schedules get too long: its best is not proven then.
TEST(LayerRefusals, DistirSaysThatPointsWereLeftOut) {
  std::mt19937 random(93);
  const LayerGraph graph = branches(random, 1, 6);
  const auto distir = *find_layer_planner("distir");
  LayerMachines asked = machines(2, 1e15, 1e10, 64);
  const auto small = solve_layers(*distir, LayerRequest{graph, asked, {}, 0, {}});
  ASSERT_TRUE(small) << small.error().text();
  EXPECT_EQ(small->status, SearchStatus::kOptimal);
  asked.microbatches =
      std::int64_t{2} * 2'097'169;  // twice a prime: few points, some of them too long
  const auto large = solve_layers(*distir, LayerRequest{graph, asked, {}, 0, {}});
  ASSERT_TRUE(large) << large.error().text();
  EXPECT_EQ(large->status, SearchStatus::kFeasible);
  EXPECT_LT(large->lower_bound, 0);
  EXPECT_NE(large->explanation.find("left out"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::planners
