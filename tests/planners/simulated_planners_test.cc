// chimera, distir and merak: planners that judge by the time of a schedule.

#include <gtest/gtest.h>

#include <algorithm>

#include "cuts_testing.h"
#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;
using problem::LayerPlan;

LayerMachines flat(int devices, std::int64_t microbatches, double bandwidth = 1e9) {
  LayerMachines machines;
  machines.devices = devices;
  machines.microbatches = microbatches;
  machines.bandwidth = bandwidth;
  return machines;
}

LayerGraph chain(const std::vector<std::pair<double, double>>& times) {
  LayerGraph graph;
  for (std::size_t v = 0; v < times.size(); ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = "layer" + std::to_string(v);
    problem::LayerChoice& choice = layer.choices.emplace_back();
    choice.forward_time = times[v].first;
    choice.time = times[v].first + times[v].second;
    if (v > 0) {
      graph.edges.push_back({static_cast<int>(v) - 1, static_cast<int>(v), 0, {}});
    }
  }
  return graph;
}

LayerPlan plan_of(const LayerGraph& graph,
                  const std::vector<std::vector<int>>& stages,
                  int degree = 1,
                  int variant = 0) {
  const std::vector<int> choices = uniform_choice(graph, degree, variant);
  LayerPlan plan;
  for (const std::vector<int>& layers : stages) {
    problem::LayerStage& stage = plan.stages.emplace_back();
    stage.layers = layers;
    stage.degree = degree;
    for (const int v : layers) {
      stage.choices.push_back(choices[static_cast<std::size_t>(v)]);
    }
  }
  return plan;
}

std::vector<int> first_layers(const LayerPlan& plan) {
  std::vector<int> firsts;
  firsts.reserve(plan.stages.size());
  for (const problem::LayerStage& stage : plan.stages) {
    firsts.push_back(stage.layers.front());
  }
  return firsts;
}

TEST(Chimera, CountsThePassesOfTheCriticalPath) {
  // N F + (N + D - 2) B for N = D equal stages.
  for (int d = 4; d <= 12; d += 2) {
    const LayerGraph graph =
        chain(std::vector<std::pair<double, double>>(static_cast<std::size_t>(d), {1, 2}));
    LayerPlan plan = plan_of(graph, EqualStages(graph).cut(d));
    plan.microbatches = d;
    plan.schedule = "chimera:concatenation";
    const auto time = problem::chimera_objective(graph, flat(d, d), plan, {});
    ASSERT_TRUE(time) << time.error().text();
    EXPECT_NEAR(*time, d + 2 * (2 * d - 2), 1e-9);
  }
}

TEST(Chimera, ChoosesTheBestOfItsConfigurations) {
  std::mt19937 random(1);
  for (int round = 0; round < 8; ++round) {
    const LayerGraph graph = random_graph(random, 8, 0.1);
    LayerMachines machines = flat(8, 16, 20);
    machines.memory_bytes = round % 2 == 0 ? 0 : 250;
    const EqualStages equal(graph);
    double best = std::numeric_limits<double>::infinity();
    for (const int depth : {2, 4, 8}) {
      for (const std::string scaling : {"concatenation", "doubling", "halving"}) {
        for (const int size : {16, 8, 4, 2, 1}) {  // the largest that fits
          LayerPlan plan = plan_of(graph, equal.cut(depth));
          plan.pipelines = 8 / depth;
          if (16 / plan.pipelines % size != 0) {
            continue;
          }
          plan.microbatches = 16 / plan.pipelines / size;
          plan.schedule = "chimera:" + scaling;
          const auto time = problem::chimera_objective(graph, machines, plan, {});
          if (time) {
            best = std::min(best, *time);
            break;
          }
        }
      }
    }
    const LayerPlanResult result = plan_layers("chimera", graph, machines);
    EXPECT_EQ(result.objective < 1e300, best < 1e300);
    if (best < 1e300) {
      EXPECT_NEAR(result.objective, best, 1e-9 * best) << round;
    }
  }
  const auto info = find_layer_planner("chimera");
  const LayerGraph graph = random_graph(random, 4);
  EXPECT_FALSE(solve_layers(**info, {graph, flat(3, 4)}));
  EXPECT_FALSE(solve_layers(**info, {graph, flat(4, 0)}));
}

TEST(Distir, FindsTheBestOfTheGrid) {
  std::mt19937 random(2);
  for (int round = 0; round < 10; ++round) {
    const LayerGraph graph = random_choices(random, 6, 0.2);
    LayerMachines machines = flat(8, 16, 30);
    machines.memory_bytes = round % 2 == 0 ? 0 : 60.0 + 10 * round;
    const EqualStages equal(graph);
    double best = std::numeric_limits<double>::infinity();
    for (const int degree : {1, 2}) {
      for (int variant = 0; variant < (degree == 1 ? 2 : 1); ++variant) {
        for (const int stages : {1, 2, 4}) {
          for (const int microbatches : {1, 2, 4, 8, 16}) {
            LayerPlan plan = plan_of(graph, equal.cut(stages), degree, variant);
            plan.pipelines = 8 / degree / stages;
            plan.microbatches = microbatches;
            if (const auto time = problem::distir_objective(graph, machines, plan, {})) {
              best = std::min(best, *time);
            }
          }
        }
      }
    }
    const LayerPlanResult result = plan_layers("distir", graph, machines);
    EXPECT_EQ(result.objective < 1e300, best < 1e300);
    if (best < 1e300) {
      EXPECT_NEAR(result.objective, best, 1e-9 * best) << round;
    }
  }
}

TEST(Merak, GivesThePublishedPartitions) {
  const LayerGraph equal = chain(std::vector<std::pair<double, double>>(24, {1, 3}));
  EXPECT_EQ(first_layers(plan_layers("merak", equal, flat(4, 0)).best),
            (std::vector<int>{0, 6, 12, 18}));
}

TEST(Merak, IsNeverBehindTheBalancedPartition) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> time(0.5, 2);
  int equal = 0;
  constexpr int kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::pair<double, double>> times;
    times.reserve(9);
    for (int v = 0; v < 9; ++v) {
      times.emplace_back(time(random), 2 * time(random));
    }
    const LayerGraph graph = chain(times);
    const LayerMachines machines = flat(3 + round % 2, 0);
    double best = std::numeric_limits<double>::infinity();
    double balanced = best;
    double least = best;
    for (const auto& cut :
         all_cuts(graph, all_layers(graph), static_cast<std::size_t>(machines.devices))) {
      if (cut.size() != static_cast<std::size_t>(machines.devices)) {
        continue;
      }
      double largest = 0;
      for (const std::vector<int>& layers : cut) {
        double load = 0;
        for (const int v : layers) {
          load += graph.layers[static_cast<std::size_t>(v)].choices[0].time;
        }
        largest = std::max(largest, load);
      }
      const auto simulated = problem::merak_objective(graph, machines, plan_of(graph, cut), {});
      ASSERT_TRUE(simulated);
      best = std::min(best, *simulated);
      if (largest < least - 1e-12) {
        least = largest;
        balanced = *simulated;
      }
    }
    const double found = plan_layers("merak", graph, machines).objective;
    EXPECT_GE(found, best - 1e-9);
    EXPECT_LE(found, balanced + 1e-9);
    EXPECT_LE(found, 1.05 * best);
    equal += found <= best + 1e-9 ? 1 : 0;
  }
  EXPECT_GE(equal, kRounds / 2);
}

}  // namespace
}  // namespace shardplan::planners
