#include <gtest/gtest.h>

#include <algorithm>

#include "cuts_testing.h"
#include "shardplan/planners/pipeline/vpipe2021.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using problem::LayerGraph;
using problem::LayerMachines;
using problem::LayerPlan;
using problem::Retention;

TEST(Vpipe, ChoosesRetentionAsBruteForce) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> share(0, 1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<RetentionChoice>> layers;
    layers.reserve(7);
    for (int l = 0; l < 1 + round % 7; ++l) {
      layers.push_back({{Retention::kKeep, 4 + share(random), 0},
                        {Retention::kRecompute, 1 + share(random), share(random)},
                        {Retention::kSwap, share(random), 2 * share(random)}});
    }
    const double limit = 3.0 * share(random) * static_cast<double>(layers.size());
    int ways = 1;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      ways *= 3;
    }
    double best = kInfinity;
    for (int way = 0; way < ways; ++way) {
      double bytes = 0;
      double time = 0;
      int rest = way;
      for (const std::vector<RetentionChoice>& layer : layers) {
        bytes += layer[static_cast<std::size_t>(rest % 3)].bytes;
        time += layer[static_cast<std::size_t>(rest % 3)].time;
        rest /= 3;
      }
      best = bytes <= limit ? std::min(best, time) : best;
    }
    const std::vector<std::size_t> chosen = choose_retention(layers, limit);
    ASSERT_EQ(chosen.empty(), best == kInfinity) << round;
    double time = 0;
    for (std::size_t l = 0; l < chosen.size(); ++l) {
      time += layers[l][chosen[l]].time;
    }
    if (!chosen.empty()) {
      EXPECT_NEAR(time, best, 1e-12) << round;
    }
  }
}

/// The best cut of the chain with the best retention in each stage, by the evaluator.
double brute(const LayerGraph& graph,
             const LayerMachines& machines,
             const std::map<std::string, std::string>& options) {
  const std::vector<int> order = all_layers(graph);
  double best = kInfinity;
  for (const auto& cut : all_cuts(graph, order, static_cast<std::size_t>(machines.devices))) {
    if (cut.size() != static_cast<std::size_t>(machines.devices)) {
      continue;
    }
    int ways = 1;
    for (std::size_t v = 0; v < order.size(); ++v) {
      ways *= 3;
    }
    for (int way = 0; way < ways; ++way) {
      LayerPlan plan;
      int rest = way;
      for (const std::vector<int>& layers : cut) {
        problem::LayerStage& stage = plan.stages.emplace_back();
        stage.layers = layers;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          stage.retention.push_back(static_cast<Retention>(rest % 3));
          rest /= 3;
        }
      }
      if (const auto value = problem::vpipe_objective(graph, machines, plan, options)) {
        best = std::min(best, *value);
      }
    }
  }
  return best;
}

TEST(Vpipe, IsCloseToBruteForce) {
  std::mt19937 random(2);
  int equal = 0;
  int found = 0;
  for (int round = 0; round < 20; ++round) {
    const LayerGraph graph = random_graph(random, 6, 0);
    LayerMachines machines;
    machines.devices = 2 + round % 2;
    machines.memory_bytes = 25 + round;
    const std::map<std::string, std::string> options = {{"host_bandwidth", "8"}};
    const double best = brute(graph, machines, options);
    const LayerPlanResult result = plan_layers("vpipe", graph, machines, options);
    if (best == kInfinity) {
      EXPECT_EQ(result.status, SearchStatus::kNoPlanFound);
      continue;
    }
    ++found;
    EXPECT_GE(result.objective, best * (1 - 1e-9));
    equal += result.objective <= best * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GE(found, 5);
  EXPECT_GE(equal, found * 3 / 4);
}

TEST(Vpipe, RecomputesLessTowardsTheEnd) {
  // The published ratios fall from the first stage, which holds most microbatches, to the last.
  LayerGraph graph;
  for (int v = 0; v < 24; ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = "layer" + std::to_string(v);
    layer.output_bytes = 1;
    problem::LayerChoice& choice = layer.choices.emplace_back();
    choice.time = 3;
    choice.forward_time = 1;
    choice.in_flight_bytes = 10;
    choice.constant_bytes = 8;
    if (v > 0) {
      graph.edges.push_back({v - 1, v, 1, {}});
    }
  }
  LayerMachines machines;
  machines.devices = 4;
  machines.memory_bytes = 180;
  const LayerPlanResult result = plan_layers("vpipe", graph, machines, {{"host_bandwidth", "1"}});
  ASSERT_EQ(result.status, SearchStatus::kFeasible);
  double before = 1;
  for (const problem::LayerStage& stage : result.best.stages) {
    const auto recomputed =
        std::count(stage.retention.begin(), stage.retention.end(), Retention::kRecompute);
    const double ratio = static_cast<double>(recomputed) / static_cast<double>(stage.layers.size());
    EXPECT_LE(ratio, before);
    before = ratio;
  }
  EXPECT_EQ(before, 0);
}

}  // namespace
}  // namespace shardplan::planners
