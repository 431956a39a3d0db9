#include <gtest/gtest.h>

#include <algorithm>

#include "cuts_testing.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;
using problem::LayerPlan;

/// The constants of the published code: NVLink 25 GB/s, Ethernet 1 GB/s (3 for collectives).
LayerMachines servers(int devices, int count, std::int64_t microbatches) {
  LayerMachines machines;
  machines.devices = devices * count;
  machines.hierarchy = {devices, count};
  machines.bandwidths = {25e9, 1e9};
  machines.microbatches = microbatches;
  return machines;
}

double value(const LayerGraph& graph, const LayerMachines& machines, const LayerPlan& plan) {
  const auto objective = problem::dapple_objective(graph, machines, plan, {});
  EXPECT_TRUE(objective) << objective.error().text();
  return objective.value();
}

double data_parallel(const LayerGraph& graph, const LayerMachines& machines) {
  LayerPlan plan;
  problem::LayerStage& stage = plan.stages.emplace_back();
  stage.layers = all_layers(graph);
  stage.replicas = machines.devices;
  for (int device = 0; device < machines.devices; ++device) {
    stage.devices.push_back(device);
  }
  return value(graph, machines, plan);
}

/// The best plan with any devices for any stage, up to `stages` of them.
double brute(const LayerGraph& graph, const LayerMachines& machines, std::size_t stages) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& cut : all_cuts(graph, all_layers(graph), stages)) {
    const auto count = static_cast<int>(cut.size());
    int ways = 1;
    for (int device = 0; device < machines.devices; ++device) {
      ways *= count;
    }
    for (int way = 0; way < ways; ++way) {
      LayerPlan plan;
      for (const std::vector<int>& layers : cut) {
        plan.stages.emplace_back().layers = layers;
      }
      int rest = way;
      for (int device = 0; device < machines.devices; ++device) {
        plan.stages[static_cast<std::size_t>(rest % count)].devices.push_back(device);
        rest /= count;
      }
      bool whole = true;
      for (problem::LayerStage& stage : plan.stages) {
        stage.replicas = static_cast<int>(stage.devices.size());
        whole = whole && stage.replicas > 0;
      }
      if (whole) {
        best = std::min(best, value(graph, machines, plan));
      }
    }
  }
  return best;
}

TEST(Dapple, OneStageIsDataParallelism) {
  std::mt19937 random(1);
  const LayerGraph graph = random_graph(random, 5);
  LayerMachines machines = servers(4, 2, 8);
  double time = 0;
  double weights = 0;
  for (const problem::Layer& layer : graph.layers) {
    time += layer.choices[0].time;
    weights += layer.choices[0].parameter_bytes;
  }
  EXPECT_NEAR(data_parallel(graph, machines), time + 2 * weights * 7 / 8 / 3e9, 1e-9);
  machines = servers(8, 1, 8);  // within one server: n/2 times its bandwidth
  EXPECT_NEAR(data_parallel(graph, machines), time + 2 * weights * 7 / 8 / 100e9, 1e-9);
}

TEST(Dapple, TwoStagesByHand) {
  LayerGraph graph;
  for (int v = 0; v < 2; ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = v == 0 ? "a" : "b";
    layer.output_bytes = 1e9;
    layer.choices.emplace_back().time = v == 0 ? 3 : 9;
    layer.choices[0].forward_time = v == 0 ? 1 : 3;
    layer.choices[0].parameter_bytes = 6e9;
  }
  graph.edges.push_back({0, 1, 1e9, {}});
  const LayerMachines machines = servers(1, 2, 4);
  LayerPlan plan;
  plan.stages.resize(2);
  plan.stages[0].layers = {0};
  plan.stages[0].devices = {0};
  plan.stages[1].layers = {1};
  plan.stages[1].devices = {1};
  // Pivot: the second stage. 1 + 1 + 3 to fill, 3 * 9, then 6 + 1 + 2 backward.
  EXPECT_NEAR(value(graph, machines, plan), 5 + 27 + 9, 1e-9);
}

TEST(Dapple, IsCloseToBruteForceAndNeverBetter) {
  std::mt19937 random(2);
  int equal = 0;
  constexpr int kRounds = 40;
  for (int round = 0; round < kRounds; ++round) {
    const LayerGraph graph = random_graph(random, 4 + round % 2);
    LayerMachines machines = servers(2, 2, 1 + 4 * (round % 3));
    machines.bandwidths = {40, round % 2 == 0 ? 4.0 : 40.0};
    const double best = brute(graph, machines, 4);
    const double found = plan_layers("dapple", graph, machines).objective;
    EXPECT_GE(found, best * (1 - 1e-9));
    EXPECT_LE(found, best * 1.1) << round;
    EXPECT_LE(found, data_parallel(graph, machines) * (1 + 1e-9));
    equal += found <= best * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GE(equal, kRounds * 3 / 4);
}

TEST(Dapple, NeverLosesToDataParallelismOrTwoStagesOnPublishedProfiles) {
  if (!has_workload("pipedream")) {
    GTEST_SKIP() << "no published inputs on this machine";
  }
  for (const std::string name : {"vgg16", "resnet50", "alexnet"}) {
    const LayerGraph graph = published("pipedream/" + name + "/graph.txt");
    for (const LayerMachines& machines :
         {servers(4, 2, 16), servers(8, 2, 64), servers(1, 8, 16)}) {
      const LayerPlanResult result = plan_layers("dapple", graph, machines);
      EXPECT_LE(result.objective, data_parallel(graph, machines) * (1 + 1e-9)) << name;
      if (name == "vgg16") {  // a chain: all cuts in two, all numbers of first devices
        const std::vector<int> order = all_layers(graph);
        for (std::size_t cut = 2; cut < order.size(); ++cut) {
          for (int first = 1; first < machines.devices; ++first) {
            LayerPlan plan;
            plan.stages.resize(2);
            plan.stages[0].layers.assign(order.begin(),
                                         order.begin() + static_cast<std::ptrdiff_t>(cut));
            plan.stages[1].layers.assign(order.begin() + static_cast<std::ptrdiff_t>(cut),
                                         order.end());
            for (int device = 0; device < machines.devices; ++device) {
              plan.stages[device < first ? 0 : 1].devices.push_back(device);
            }
            plan.stages[0].replicas = first;
            plan.stages[1].replicas = machines.devices - first;
            EXPECT_GE(value(graph, machines, plan), result.objective * (1 - 1e-9));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardplan::planners
