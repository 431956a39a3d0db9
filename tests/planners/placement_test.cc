// DNN-partitioning and the block partitions against published values and against all partitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "layers_testing.h"
#include "shardplan/planners/pipeline/cover_knapsack.h"
#include "shardplan/planners/pipeline/downsets.h"
#include "shardplan/problem/published_objectives.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Published {
  const char* file;
  double dp;
  double linear;
};

TEST(DnnPartitioningPublished, Throughput) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  for (const Published& row :
       {Published{"LayerGraphs/bert24_inference", 17.78990625, 17.78990625},
        Published{"LayerGraphs/bert24_training", 41.7458125, 41.7458125},
        Published{"LayerGraphs/resnet50_inference", 33.77466602, 33.77466602},
        Published{"LayerGraphs/resnet50_training", 78.6318125, 78.6498125},
        Published{"LayerGraphs/gnmt_inference", 32.9106582, 33.03255469},
        Published{"OperatorGraphs/bert_l-3_inference", 27.91856768, 27.91856768},
        Published{"OperatorGraphs/bert_l-3_training", 65.30314912, 65.30314912}}) {
    SCOPED_TRACE(row.file);
    const LayerGraph graph =
        published(std::string("dnn-partitioning/throughput/") + row.file + ".json");
    EXPECT_EQ(graph.time_unit, "ms");
    const LayerPlanResult exact = plan_layers("dnn_partitioning_dp", graph, {.devices = 0});
    EXPECT_EQ(exact.status, SearchStatus::kOptimal);
    EXPECT_NEAR(exact.objective, row.dp, row.dp * 1e-9);
    const LayerPlanResult linear = plan_layers("dnn_partitioning_linear", graph, {.devices = 0});
    EXPECT_LE(linear.objective, row.linear * (1 + 1e-9));
    EXPECT_GE(linear.objective, row.dp * (1 - 1e-9));
  }
}

/// Layers for placement by chance, with colours, CPU times, and a backward layer here and there.
LayerGraph random_placement(std::mt19937& random, int layers) {
  std::uniform_real_distribution<double> chance(0, 1);
  LayerGraph graph = random_layers(random, layers, false);
  std::vector<double> transfer;
  for (problem::Layer& layer : graph.layers) {
    problem::LayerChoice plain;
    plain.time = layer.choices.front().time;
    plain.constant_bytes = std::floor(1 + 5 * chance(random));
    layer.choices = {plain};
    problem::LayerPlacement placement;
    placement.cpu_time = plain.time * (2 + 3 * chance(random));
    placement.on_accelerator = chance(random) < 0.9;
    layer.placement = placement;
    transfer.push_back(chance(random));
  }
  for (problem::LayerEdge& edge : graph.edges) {
    edge.transfer_time = transfer[static_cast<std::size_t>(edge.source)];
  }
  if (layers > 4 && chance(random) < 0.5) {
    // The last layer runs the first one's backward pass.
    for (problem::Layer* const layer : {&graph.layers.front(), &graph.layers.back()}) {
      problem::LayerPlacement placement = layer->placement.value_or(problem::LayerPlacement{});
      placement.color = 7;
      placement.backward = layer == &graph.layers.back();
      layer->placement = placement;
    }
  }
  return graph;
}

/// The least largest load over all placements of layers on devices that the evaluator accepts; with
/// `ordered`, only those in which the devices can be put in a row so that forward edges go forward.
double best_placement(const LayerGraph& graph, const LayerMachines& machines, bool contiguous) {
  const int devices = machines.devices + machines.cpus;
  const std::size_t layers = graph.layers.size();
  std::vector<int> device(layers, 0);
  double best = kInfinity;
  while (true) {
    problem::LayerPlan plan;
    for (int m = 0; m < devices; ++m) {
      problem::LayerStage stage;
      stage.on_cpu = m >= machines.devices;
      for (std::size_t v = 0; v < layers; ++v) {
        if (device[v] == m) {
          stage.layers.push_back(static_cast<int>(v));
        }
      }
      if (!stage.layers.empty()) {
        plan.stages.push_back(stage);
      }
    }
    const auto value = problem::dnn_partitioning_objective(
        graph, machines, plan, {{"contiguous", contiguous ? "yes" : "no"}});
    best = value ? std::min(best, *value) : best;
    std::size_t v = 0;
    while (v < layers && ++device[v] == devices) {
      device[v++] = 0;
    }
    if (v == layers) {
      return best;
    }
  }
}

/// Sets of layers with all layers before them.
std::vector<unsigned> downsets_of(const LayerGraph& graph) {
  std::vector<unsigned> sets;
  for (unsigned set = 0; set < 1U << graph.layers.size(); ++set) {
    if (std::all_of(graph.edges.begin(), graph.edges.end(), [&](const auto& edge) {
          return ((set >> static_cast<unsigned>(edge.target)) & 1U) == 0 ||
                 ((set >> static_cast<unsigned>(edge.source)) & 1U) != 0;
        })) {
      sets.push_back(set);
    }
  }
  return sets;
}

/// Time of moving a layer's output into or out of a part; 0 where it stays on its side.
double transfer_of(const LayerGraph& graph, unsigned v, unsigned part) {
  const bool inside = ((part >> v) & 1U) != 0;
  double transfer = 0;
  for (const auto& edge : graph.edges) {
    const bool target = ((part >> static_cast<unsigned>(edge.target)) & 1U) != 0;
    if (edge.source == static_cast<int>(v) && target != inside) {
      transfer = edge.transfer_time.value_or(0);
    }
  }
  return transfer;
}

double load_of(const LayerGraph& graph, const LayerMachines& machines, unsigned part, bool cpu) {
  double sum = 0;
  double bytes = 0;
  for (unsigned v = 0; v < static_cast<unsigned>(graph.layers.size()); ++v) {
    const problem::Layer& layer = graph.layers[v];
    const problem::LayerPlacement placement = layer.placement.value_or(problem::LayerPlacement{});
    const bool inside = ((part >> v) & 1U) != 0;
    if (cpu) {
      sum += inside ? placement.cpu_time : 0;
      continue;
    }
    sum += (inside ? layer.choices.front().time : 0) + transfer_of(graph, v, part);
    bytes += inside ? layer.choices.front().constant_bytes : 0;
    if (inside && !placement.on_accelerator) {
      return kInfinity;
    }
  }
  if (!cpu && machines.memory_bytes > 0 && bytes > machines.memory_bytes) {
    return kInfinity;
  }
  return sum;
}

/// The same over chains of downsets of the forward layers, by dp[c][f][I]; no backward layers.
double best_in_a_row(const LayerGraph& graph, const LayerMachines& machines) {
  const std::vector<unsigned> sets = downsets_of(graph);
  const auto cpus = static_cast<unsigned>(machines.cpus);
  const auto devices = static_cast<unsigned>(machines.devices);
  std::map<std::vector<unsigned>, double> best;
  const auto step = [&](unsigned set, unsigned below, unsigned c, unsigned f) {
    double least = kInfinity;
    if (c > 0) {
      least = std::max(best[{below, c - 1, f}], load_of(graph, machines, set & ~below, true));
    }
    if (f > 0) {
      least = std::min(
          least, std::max(best[{below, c, f - 1}], load_of(graph, machines, set & ~below, false)));
    }
    return least;
  };
  for (const unsigned set : sets) {
    for (unsigned c = 0; c <= cpus; ++c) {
      for (unsigned f = 0; f <= devices; ++f) {
        double least = set == 0 ? 0 : kInfinity;
        for (const unsigned below : sets) {
          if (set != 0 && (below & set) == below && below != set) {
            least = std::min(least, step(set, below, c, f));
          }
        }
        best[{set, c, f}] = least;
      }
    }
  }
  return best[{sets.back(), cpus, devices}];
}

TEST(DnnPartitioning, EqualsThePapersTable) {
  std::mt19937 random(77);
  for (int round = 0; round < 80; ++round) {
    LayerGraph graph = random_placement(random, 3 + round % 5);
    for (problem::Layer& layer : graph.layers) {
      problem::LayerPlacement placement = layer.placement.value_or(problem::LayerPlacement{});
      placement.backward = false;
      placement.color.reset();
      layer.placement = placement;
    }
    LayerMachines asked;
    asked.devices = 1 + static_cast<int>(random() % 3);
    asked.cpus = static_cast<int>(random() % 3);
    asked.memory_bytes = round % 2 == 0 ? 0 : 5 + static_cast<double>(random() % 12);
    const double expected = best_in_a_row(graph, asked);
    const LayerPlanResult result = plan_layers("dnn_partitioning_dp", graph, asked);
    const LayerPlanResult linear = plan_layers("dnn_partitioning_linear", graph, asked);
    SCOPED_TRACE(round);
    if (std::isinf(expected)) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible);
      continue;
    }
    EXPECT_NEAR(result.objective, expected, 1e-9 * expected);
    EXPECT_GE(linear.objective, expected * (1 - 1e-9));
  }
}

TEST(DnnPartitioning, IntegerProgramEqualsAllPlacements) {
  std::mt19937 random(78);
  for (int round = 0; round < 12; ++round) {
    const LayerGraph graph = random_placement(random, 6);
    LayerMachines asked;
    asked.devices = 2;
    asked.cpus = 1;
    asked.memory_bytes = round % 2 == 0 ? 0 : 12;
    for (const bool contiguous : {true, false}) {
      const double expected = best_placement(graph, asked, contiguous);
      const LayerPlanResult result =
          plan_layers("dnn_partitioning_ip",
                      graph,
                      asked,
                      {{"contiguous", contiguous ? "yes" : "no"}, {"gap", "0"}});
      SCOPED_TRACE(round);
      if (std::isinf(expected)) {
        EXPECT_EQ(result.status, SearchStatus::kInfeasible);
      } else {
        EXPECT_NEAR(result.objective, expected, 1e-6 * expected);
        EXPECT_LE(result.lower_bound, expected * (1 + 1e-6));
      }
    }
  }
}

/// The least latency over all placements of layers in subgraphs and on CPUs that the evaluator
/// accepts.
double best_latency(const LayerGraph& graph, const LayerMachines& machines, int subgraphs) {
  const int slots = machines.devices * subgraphs;
  const std::size_t layers = graph.layers.size();
  std::vector<int> slot(layers, 0);  // the last one: CPUs
  double best = kInfinity;
  while (true) {
    problem::LayerPlan plan;
    for (int s = 0; s <= slots; ++s) {
      problem::LayerStage stage;
      stage.on_cpu = s == slots;
      stage.devices = {s / subgraphs};
      for (std::size_t v = 0; v < layers; ++v) {
        if (slot[v] == s) {
          stage.layers.push_back(static_cast<int>(v));
        }
      }
      if (!stage.layers.empty()) {
        plan.stages.push_back(stage);
      }
    }
    const auto value = problem::dnn_partitioning_latency_objective(graph, machines, plan, {});
    best = value ? std::min(best, *value) : best;
    std::size_t v = 0;
    while (v < layers && ++slot[v] > slots) {
      slot[v++] = 0;
    }
    if (v == layers) {
      return best;
    }
  }
}

TEST(DnnPartitioning, LatencyEqualsAllPlacements) {
  std::mt19937 random(80);
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    LayerGraph graph = random_placement(random, 6);
    for (problem::Layer& layer : graph.layers) {
      problem::LayerPlacement placement = layer.placement.value_or(problem::LayerPlacement{});
      placement.backward = false;
      placement.color.reset();
      layer.placement = placement;
    }
    const int subgraphs = 1 + round % 2;
    LayerMachines asked;
    asked.devices = subgraphs == 1 ? 2 + round % 3 / 2 : 1 + round % 3 / 2;
    asked.cpus = round % 4 == 3 ? 0 : 1;
    asked.memory_bytes = round % 6 == 5 ? 0 : 6 + round % 7;
    const double expected = best_latency(graph, asked, subgraphs);
    const LayerPlanResult result =
        plan_layers("dnn_partitioning_latency",
                    graph,
                    asked,
                    {{"gap", "0"}, {"subgraphs", std::to_string(subgraphs)}});
    if (std::isinf(expected)) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible) << result.explanation;
      continue;
    }
    EXPECT_EQ(result.status, SearchStatus::kOptimal);
    EXPECT_NEAR(result.objective, expected, 1e-5 * expected);
    EXPECT_LE(result.lower_bound, expected * (1 + 1e-6));
  }
}

/// A chain of three: a accelerator second each, three on a CPU, half a second to move an output.
TEST(DnnPartitioning, LatencyByHand) {
  LayerGraph graph;
  for (int v = 0; v < 3; ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = std::to_string(v);
    layer.choices.push_back({.time = 1, .constant_bytes = 1});
    layer.placement = problem::LayerPlacement{.cpu_time = 3};
  }
  graph.edges = {{0, 1, 0, 0.5}, {1, 2, 0, 0.5}};
  LayerMachines asked = machines(1, 2, 0, 0);
  asked.cpus = 1;
  // Two on the accelerator (1 + 1 + 0.5 to move between them and the CPU), one on a CPU.
  EXPECT_DOUBLE_EQ(plan_layers("dnn_partitioning_latency", graph, asked).objective, 5.5);
  asked.devices = 2;
  EXPECT_DOUBLE_EQ(plan_layers("dnn_partitioning_latency", graph, asked).objective, 4.0);
  asked.memory_bytes = 3;
  EXPECT_DOUBLE_EQ(plan_layers("dnn_partitioning_latency", graph, asked).objective, 3.0);
}

TEST(DnnPartitioningPublished, Latency) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  struct Row {
    const char* file;
    double greedy;  ///< as published, to its digits
    double most;    ///< of the search
  };
  for (const Row& row :
       {Row{"bert24_inference", 100.219, 100.2185}, Row{"resnet50_inference", 4197.06, 1156.882}}) {
    SCOPED_TRACE(row.file);
    const LayerGraph graph =
        published(std::string("dnn-partitioning/latency/LayerGraphs/") + row.file + ".json");
    const LayerPlanResult greedy =
        plan_layers("dnn_partitioning_latency", graph, {.devices = 0}, {{"search", "greedy"}});
    EXPECT_NEAR(greedy.objective, row.greedy, 5e-6 * row.greedy);
    const auto info = find_layer_planner("dnn_partitioning_latency");
    const auto best = solve_layers(**info, LayerRequest{graph, {.devices = 0}, {}, 1, {}});
    ASSERT_TRUE(best) << best.error().text();
    EXPECT_LE(best->objective, row.most * (1 + 1e-9));
    EXPECT_GE(best->objective, best->lower_bound);
  }
}

TEST(DnnPartitioning, BackwardLayersFollowTheirColours) {
  std::mt19937 random(79);
  for (int round = 0; round < 40; ++round) {
    const LayerGraph graph = random_placement(random, 7);
    LayerMachines asked;
    asked.devices = 2;
    asked.cpus = 1;
    const LayerPlanResult result = plan_layers("dnn_partitioning_dp", graph, asked);
    ASSERT_EQ(result.status, SearchStatus::kOptimal);
    EXPECT_GE(result.objective, best_placement(graph, asked, true) * (1 - 1e-9)) << round;
  }
}

TEST(BlockPartition, PublishedValues) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const LayerGraph resnet = published("piper/resnet.json");
  const LayerGraph bert = published("piper/bert32a100.json");
  const std::vector<int> counts{2, 4, 8, 16};
  const std::vector<double> blocks{238.221, 127.501, 69.818, 42.169};
  const std::vector<double> optimum{232.932, 116.674, 61.027, 31.666};
  const std::vector<double> bert_optimum{0.487074, 0.244521, 0.123013, 0.062082};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const LayerMachines asked = machines(counts[i], 0, 0, 0);
    EXPECT_NEAR(plan_layers("torchgpipe", resnet, asked).objective, blocks[i], 5e-4);
    EXPECT_NEAR(plan_layers("gpipe", resnet, asked).objective, optimum[i], 5e-4);
    EXPECT_NEAR(plan_layers("torchgpipe", bert, asked).objective, bert_optimum[i], 5e-7);
    EXPECT_NEAR(plan_layers("gpipe", bert, asked).objective, bert_optimum[i], 5e-7);
  }
}

/// Least largest block by trying every cut.
double least_block(const std::vector<double>& times, std::size_t from, int blocks) {
  double sum = 0;
  if (blocks == 1) {
    for (std::size_t i = from; i < times.size(); ++i) {
      sum += times[i];
    }
    if (from >= times.size()) {
      return kInfinity;
    }
    return sum;
  }
  double best = kInfinity;
  for (std::size_t i = from; i < times.size(); ++i) {
    sum += times[i];
    best = std::min(best, std::max(sum, least_block(times, i + 1, blocks - 1)));
  }
  return best;
}

TEST(BlockPartition, ExactEqualsAllCutsAndTheHeuristicIsNoBetter) {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> chance(0, 1);
  for (int round = 0; round < 200; ++round) {
    LayerGraph chain;
    const int layers = 4 + static_cast<int>(random() % 9);
    std::vector<double> times;
    for (int v = 0; v < layers; ++v) {
      times.push_back(round % 5 == 0 ? 0.0 : chance(random) < 0.2 ? 0.0 : chance(random));
      problem::Layer& layer = chain.layers.emplace_back();
      layer.id = std::to_string(v);
      layer.choices.emplace_back().time = times.back();
      if (v > 0) {
        chain.edges.push_back({v - 1, v, 0, std::nullopt});
      }
    }
    const int blocks = 1 + static_cast<int>(random() % 4);
    const double expected = least_block(times, 0, blocks);
    EXPECT_NEAR(plan_layers("gpipe", chain, machines(blocks, 0, 0, 0)).objective, expected, 1e-12);
    EXPECT_GE(plan_layers("torchgpipe", chain, machines(blocks, 0, 0, 0)).objective,
              expected - 1e-12);
  }
}

TEST(BlockPartition, NeedsALayerForEveryDevice) {
  std::mt19937 random(3);
  const LayerGraph graph = random_layers(random, 4, false);
  EXPECT_NE(refusal("gpipe", graph, machines(5, 0, 0, 0)).text().find("4 layers"),
            std::string::npos);
}

TEST(CoverKnapsack, EqualsAllSubsets) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> chance(0, 1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Saving> items(1 + random() % 10);
    double total = 0;
    for (Saving& item : items) {
      item = {std::floor(20 * chance(random)), 1 + std::floor(20 * chance(random))};
      total += item.weight;
    }
    std::stable_sort(items.begin(), items.end(), [](const Saving& a, const Saving& b) {
      return a.cost / a.weight < b.cost / b.weight;
    });
    const double need = 0.5 + std::floor(1.1 * total * chance(random));
    double expected = kInfinity;
    for (unsigned set = 0; set < 1U << items.size(); ++set) {
      double weight = 0;
      double cost = 0;
      for (std::size_t i = 0; i < items.size(); ++i) {
        weight += ((set >> i) & 1U) != 0 ? items[i].weight : 0;
        cost += ((set >> i) & 1U) != 0 ? items[i].cost : 0;
      }
      expected = weight >= need ? std::min(expected, cost) : expected;
    }
    CoverKnapsack knapsack;
    EXPECT_EQ(knapsack.solve(items, need, kInfinity, false), std::isfinite(expected));
    if (std::isinf(expected)) {
      continue;
    }
    EXPECT_EQ(knapsack.cost(), expected);
    EXPECT_TRUE(knapsack.solve(items, need, expected, true));
    EXPECT_LE(knapsack.cost(), expected);
    EXPECT_FALSE(knapsack.solve(items, need, expected - 0.5, true));
  }
}

TEST(Downsets, AreAllClosedSetsOnceEach) {
  std::mt19937 random(12);
  for (int round = 0; round < 50; ++round) {
    const LayerGraph graph = random_layers(random, 2 + round % 9, false);
    std::vector<std::vector<int>> needs(graph.layers.size());
    for (const problem::LayerEdge& edge : graph.edges) {
      needs[static_cast<std::size_t>(edge.target)].push_back(edge.source);
    }
    int closed = 0;
    for (unsigned set = 0; set < 1U << needs.size(); ++set) {
      closed += std::all_of(graph.edges.begin(), graph.edges.end(), [&](const auto& edge) {
        return ((set >> static_cast<unsigned>(edge.target)) & 1U) == 0 ||
               ((set >> static_cast<unsigned>(edge.source)) & 1U) != 0;
      });
    }
    const auto lattice = all_downsets(needs, 1 << 20);
    ASSERT_TRUE(lattice.has_value());
    EXPECT_EQ(lattice->sets(), closed);
    EXPECT_FALSE(all_downsets(needs, closed - 2).has_value());
    for (const bool reversed : {false, true}) {
      for (const auto rule : {DepthFirst::Rule::kBranches, DepthFirst::Rule::kNeeds}) {
        const std::vector<int> order = depth_first_order(needs, {rule, reversed});
        ASSERT_EQ(order.size(), needs.size());
        std::vector<bool> before(needs.size(), false);
        for (const int v : order) {
          for (const int w : needs[static_cast<std::size_t>(v)]) {
            EXPECT_TRUE(before[static_cast<std::size_t>(w)]);
          }
          before[static_cast<std::size_t>(v)] = true;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardplan::planners
