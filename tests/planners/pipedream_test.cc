#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuts_testing.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;
using problem::LayerPlan;
using problem::LayerStage;

LayerMachines flat(int devices, double bandwidth = 1e9) {
  LayerMachines machines;
  machines.devices = devices;
  machines.bandwidth = bandwidth;
  return machines;
}

LayerMachines levels(std::vector<int> hierarchy, std::vector<double> bandwidths) {
  LayerMachines machines;
  machines.devices = 0;
  machines.hierarchy = std::move(hierarchy);
  machines.bandwidths = std::move(bandwidths);
  return machines;
}

TEST(Pipedream, ReachesThePublishedTable) {
  if (!has_workload("pipedream")) {
    GTEST_SKIP() << "no published inputs on this machine";
  }
  const LayerGraph vgg = published("pipedream/vgg16/graph.txt");
  const LayerGraph resnet = published("pipedream/resnet50/graph.txt");
  const LayerGraph alexnet = published("pipedream/alexnet/graph.txt");
  const LayerMachines servers = levels({4, 4}, {15e9, 1.25e9});
  LayerMachines limited = flat(16);
  limited.memory_bytes = 16e9;
  struct Row {
    const LayerGraph& graph;
    LayerMachines machines;
    double published;
    bool straight = false;
  };
  const std::vector<Row> rows = {
      {vgg, flat(4), 0.205520896},
      {vgg, flat(4), 0.411041792, true},
      {vgg, flat(16), 0.05652976738},
      {vgg, limited, 0.05652976738},
      {vgg, servers, 0.06664350733},
      {resnet, flat(4), 0.162880924},
      {resnet, servers, 0.0432084692},
      {alexnet, servers, 0.0150994944},
  };
  for (const Row& row : rows) {
    const LayerPlanResult result = plan_layers(
        "pipedream", row.graph, row.machines, {{"straight", row.straight ? "yes" : "no"}});
    EXPECT_EQ(result.status, SearchStatus::kOptimal);
    EXPECT_NEAR(result.objective, row.published, 1e-9 * row.published + 5e-12);
  }
  const LayerPlanResult result = plan_layers("pipedream", vgg, servers);
  ASSERT_EQ(result.best.stages.size(), 2U);
  EXPECT_EQ(result.best.stages[0].replicas, 3);
  ASSERT_EQ(result.best.stages[0].inner.size(), 1U);
  EXPECT_EQ(result.best.stages[0].inner[0].replicas, 4);
}

/// The least objective over all plans, by the independent evaluator.
double brute(const LayerGraph& graph,
             const LayerMachines& machines,
             const std::map<std::string, std::string>& options) {
  const auto fill = [&](auto&& self,
                        const std::vector<int>& layers,
                        std::size_t level) -> std::vector<std::vector<LayerStage>> {
    std::vector<std::vector<LayerStage>> all;
    const int count = machines.hierarchy.empty() ? machines.devices : machines.hierarchy[level];
    for (const auto& cut : all_cuts(graph, layers, static_cast<std::size_t>(count))) {
      for (const std::vector<int>& replicas : compositions(count, cut.size())) {
        std::vector<std::vector<LayerStage>> ways = {{}};
        for (std::size_t s = 0; s < cut.size(); ++s) {
          LayerStage stage;
          stage.layers = cut[s];
          stage.replicas = replicas[s];
          std::vector<std::vector<LayerStage>> inner = {{}};
          if (level > 0) {
            inner = self(self, cut[s], level - 1);
          }
          std::vector<std::vector<LayerStage>> longer;
          for (const std::vector<LayerStage>& way : ways) {
            for (const std::vector<LayerStage>& one : inner) {
              longer.push_back(way);
              longer.back().push_back(stage);
              longer.back().back().inner = one;
            }
          }
          ways = std::move(longer);
        }
        all.insert(all.end(), ways.begin(), ways.end());
      }
    }
    return all;
  };
  double best = std::numeric_limits<double>::infinity();
  const std::size_t top = machines.hierarchy.empty() ? 0 : machines.hierarchy.size() - 1;
  for (const std::vector<LayerStage>& stages : fill(fill, all_layers(graph), top)) {
    LayerPlan plan;
    plan.stages = stages;
    if (const auto value = problem::pipedream_objective(graph, machines, plan, options)) {
      best = std::min(best, *value);
    }
  }
  return best;
}

TEST(Pipedream, EqualsBruteForceOnOneLevel) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const LayerGraph graph = random_graph(random, 3 + round % 4);
    LayerMachines machines = flat(1 + round % 5, round % 2 == 0 ? 20 : 100);
    machines.memory_bytes = round % 3 == 0 ? 60 : 0;
    const std::map<std::string, std::string> options = {{"straight", round % 4 == 3 ? "yes" : "no"},
                                                        {"fewer", "no"}};
    const LayerPlanResult result = plan_layers("pipedream", graph, machines, options);
    const double best = brute(graph, machines, options);
    if (std::isinf(best)) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible) << round;
    } else {
      EXPECT_NEAR(result.objective, best, 1e-9 * best) << round;
    }
  }
}

TEST(Pipedream, EqualsBruteForceOnTwoLevels) {
  std::mt19937 random(2);
  for (int round = 0; round < 12; ++round) {
    const LayerGraph graph = random_graph(random, 4);
    LayerMachines machines = levels({2, 2 + round % 2}, {100, round % 3 == 0 ? 10.0 : 40.0});
    machines.devices = machines.hierarchy[0] * machines.hierarchy[1];
    const LayerPlanResult result = plan_layers("pipedream", graph, machines);
    // No plan of the recurrence is left out, and it cuts each stage for itself as brute force does.
    EXPECT_NEAR(result.objective, brute(graph, machines, {}), 1e-9) << round;
  }
}

/// PipeDream's recurrence over all numbers of machines of a chain's layers, as the paper has it.
double recurrence(const LayerGraph& graph,
                  const LayerMachines& machines,
                  bool straight,
                  bool fewer) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto n = graph.layers.size();
  const auto all = static_cast<std::size_t>(machines.devices);
  const auto cut = [&](std::size_t k) {
    return k == 0 || k == n ? 0 : 2 * graph.edges[k - 1].bytes / machines.bandwidth;
  };
  const auto stage = [&](std::size_t k, std::size_t j, std::size_t used, std::size_t replicas) {
    const auto m = static_cast<double>(replicas);
    double time = 0;
    double weights = 0;
    double bytes = 0;
    for (std::size_t v = k; v < j; ++v) {
      const problem::LayerChoice& choice = graph.layers[v].choices.front();
      time += choice.time;
      weights += choice.parameter_bytes;
      bytes += choice.parameter_bytes + choice.in_flight_bytes;
    }
    const double stash = std::max(1.0, std::ceil(static_cast<double>(all - used) / m)) * bytes;
    const bool fits = machines.memory_bytes <= 0 || stash <= machines.memory_bytes;
    if (!fits || (straight && replicas > 1)) {
      return kInfinity;
    }
    time = (time + 4 * (m - 1) * weights / (machines.bandwidth * m)) / m;
    return k == 0 ? time : std::max({time, cut(k) / m, cut(j) / m});
  };
  std::vector<std::vector<double>> best(n + 1, std::vector<double>(all + 1, kInfinity));
  best[0][0] = 0;
  for (std::size_t j = 1; j <= n; ++j) {
    for (std::size_t m = 1; m <= all; ++m) {
      for (std::size_t k = 0; k < j; ++k) {
        for (std::size_t last = 1; last <= m; ++last) {
          best[j][m] = std::min(best[j][m], std::max(best[k][m - last], stage(k, j, m, last)));
        }
      }
    }
  }
  return fewer ? *std::min_element(best[n].begin(), best[n].end()) : best[n][all];
}

TEST(Pipedream, EqualsTheRecurrenceOnManyMachines) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> chance(0, 1);
  int plans = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    LayerGraph graph;
    graph.name = "chain";
    const int layers = round % 4 == 3 ? 26 : 3 + round % 7;
    for (int v = 0; v < layers; ++v) {
      problem::Layer& layer = graph.layers.emplace_back();
      layer.id = std::to_string(v);
      layer.choices.push_back({.time = chance(random) < 0.1 ? 0 : 1 + 4 * chance(random),
                               .parameter_bytes = std::floor(40 * chance(random)),
                               .in_flight_bytes = std::floor(1 + 9 * chance(random))});
      if (v > 0) {
        graph.edges.push_back({v - 1, v, std::floor(1 + 5 * chance(random)), std::nullopt});
      }
    }
    LayerMachines machines = flat(21 + round % 13, round % 2 == 0 ? 5 : 100);
    machines.memory_bytes = round % 3 == 0 ? 100 : 0;
    const bool straight = round % 4 == 3;
    const bool fewer = round % 8 > 3;
    const LayerPlanResult result =
        plan_layers("pipedream",
                    graph,
                    machines,
                    {{"straight", straight ? "yes" : "no"}, {"fewer", fewer ? "yes" : "no"}});
    const double expected = recurrence(graph, machines, straight, fewer);
    if (std::isinf(expected)) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible);
      continue;
    }
    ++plans;
    EXPECT_EQ(result.status, SearchStatus::kOptimal);
    EXPECT_NEAR(result.objective, expected, 1e-9 * expected);
  }
  EXPECT_GT(plans, 40);
}

TEST(Pipedream, SaysWhatItCannot) {
  std::mt19937 random(3);
  const LayerGraph graph = random_graph(random, 4);
  const auto info = find_layer_planner("pipedream");
  ASSERT_TRUE(info);
  LayerRequest request{graph, flat(4, 0)};
  EXPECT_FALSE(solve_layers(**info, request));  // no bandwidth
  request.machines = flat(5);
  request.options = {{"straight", "yes"}};
  auto result = solve_layers(**info, request);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, SearchStatus::kInfeasible);
  request.options = {{"straight", "yes"}, {"fewer", "yes"}};
  result = solve_layers(**info, request);
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_EQ(result->status, SearchStatus::kOptimal);
}

}  // namespace
}  // namespace shardplan::planners
