#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "cuts_testing.h"
#include "shardplan/planners/pipeline/alpa_stages.h"
#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

StageTable random_table(
    std::mt19937& random, int layers, std::vector<int> sizes, int devices, int depths) {
  StageTable table;
  table.layers = layers;
  table.devices = devices;
  table.sizes = std::move(sizes);
  table.depths = depths;
  std::uniform_real_distribution<double> share(0.8, 1.2);
  table.times.assign(
      table.index(layers - 1, layers, static_cast<int>(table.sizes.size()) - 1, 0) + at(depths),
      kInfinity);
  std::vector<double> work;
  work.reserve(at(layers));
  for (int v = 0; v < layers; ++v) {
    work.push_back(share(random));
  }
  for (int from = 0; from < layers; ++from) {
    for (int to = from + 1; to <= layers; ++to) {
      double sum = 0;
      for (int v = from; v < to; ++v) {
        sum += work[at(v)];
      }
      for (std::size_t o = 0; o < table.sizes.size(); ++o) {
        const double time = sum / table.sizes[o] * share(random) + 0.05 * table.sizes[o];
        for (int depth = 0; depth < depths; ++depth) {
          const bool fits = (to - from) * (depth + 2) <= 12 * table.sizes[o];
          table.times[table.index(from, to, static_cast<int>(o), depth)] =
              depths == 1 || fits ? time * (1 + 0.01 * depth) : kInfinity;
        }
      }
    }
  }
  return table;
}

/// All cuts, one by one.
double brute(const StageTable& table, double microbatches) {
  double best = kInfinity;
  std::vector<StageCut::Stage> stages;
  const auto value = [&] {
    double sum = 0;
    double largest = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto behind = static_cast<int>(stages.size() - 1 - s);
      const double time = table.times[table.index(
          stages[s].from, stages[s].to, stages[s].option, table.depths == 1 ? 0 : behind)];
      sum += time;
      largest = std::max(largest, time);
    }
    return sum + (microbatches - 1) * largest;
  };
  const std::function<void(int, int)> extend = [&](int from, int devices) {
    if (from == table.layers) {
      best = devices == 0 ? std::min(best, value()) : best;
      return;
    }
    for (int to = from + 1; to <= table.layers; ++to) {
      for (std::size_t o = 0; o < table.sizes.size(); ++o) {
        if (table.sizes[o] <= devices) {
          stages.push_back({from, to, static_cast<int>(o)});
          extend(to, devices - table.sizes[o]);
          stages.pop_back();
        }
      }
    }
  };
  extend(0, table.devices);
  return best;
}

TEST(AlpaStages, EqualBruteForce) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const int layers = 3 + round % 4;
    const StageTable table =
        random_table(random, layers, {1, 2, 4}, 4 + 2 * (round % 3), round % 2 == 0 ? 1 : layers);
    for (const double microbatches : {1.0, 2.0, 8.0, 64.0}) {
      const double best = brute(table, microbatches);
      const auto cut = cut_stages(table, microbatches);
      ASSERT_EQ(cut.has_value(), best < kInfinity);
      if (cut) {
        EXPECT_NEAR(cut->latency(microbatches), best, 1e-9 * best) << round;
      }
    }
  }
}

TEST(AlpaStages, SixteenLayersOnSixtyFourDevicesTakeMilliseconds) {
  std::mt19937 random(2);
  for (const int depths : {1, 16}) {
    const StageTable table =
        random_table(random, 16, {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64}, 64, depths);
    const std::clock_t start = std::clock();
    const auto cut = cut_stages(table, 64);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_TRUE(cut);
    std::printf("%d depths: %.4f CPU s, %zu stages\n", depths, seconds, cut->stages.size());
    EXPECT_LT(seconds, depths == 1 ? 0.1 : 1);
  }
}

TEST(AlpaClusters, HaveTheLeastTraffic) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> share(0.5, 1.5);
  for (int round = 0; round < 20; ++round) {
    constexpr int kOperators = 8;
    std::vector<double> work;
    work.reserve(at(kOperators));
    std::vector<std::vector<double>> bytes(at(kOperators),
                                           std::vector<double>(at(kOperators + 1), 0));
    for (int i = 0; i < kOperators; ++i) {
      work.push_back(share(random));
      for (int k = i + 1; k <= kOperators; ++k) {
        bytes[at(i)][at(k)] = i == 0 ? 0 : bytes[at(i)][at(k - 1)] + share(random);
      }
    }
    const std::vector<int> begins = cluster_operators(work, bytes, 3, 0.5);
    ASSERT_EQ(begins.size(), 3U);
    double total = 0;
    for (const double one : work) {
      total += one;
    }
    const auto traffic = [&](int second, int third) {
      const std::vector<int> cut = {0, second, third, kOperators};
      double most = 0;
      for (int c = 0; c < 3; ++c) {
        double own = 0;
        for (int i = cut[at(c)]; i < cut[at(c + 1)]; ++i) {
          own += work[at(i)];
        }
        most = std::max(most, bytes[at(cut[at(c)])][at(cut[at(c + 1)])]);
        if (own > total / 2) {
          return kInfinity;
        }
      }
      return most;
    };
    double best = kInfinity;
    for (int second = 1; second < kOperators - 1; ++second) {
      for (int third = second + 1; third < kOperators; ++third) {
        best = std::min(best, traffic(second, third));
      }
    }
    EXPECT_EQ(traffic(begins[1], begins[2]), best);
  }
}

/// The best plan of these stages, of these numbers of devices, by the evaluator: all choices.
double best_choices(const problem::LayerGraph& graph,
                    const problem::LayerMachines& machines,
                    const std::vector<std::vector<int>>& stages,
                    const std::vector<int>& sizes) {
  double best = kInfinity;
  int ways = 1;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    ways *= 3;
  }
  for (int way = 0; way < ways; ++way) {
    problem::LayerPlan plan;
    int rest = way;
    bool whole = true;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      problem::LayerStage& stage = plan.stages.emplace_back();
      stage.layers = stages[s];
      stage.degree = rest % 3 == 2 ? 2 : 1;
      stage.choices.assign(stages[s].size(), rest % 3);
      stage.replicas = sizes[s] / stage.degree;
      whole = whole && sizes[s] % stage.degree == 0;
      rest /= 3;
    }
    const auto value = problem::alpa_objective(graph, machines, plan, {});
    best = whole && value ? std::min(best, *value) : best;
  }
  return best;
}

TEST(Alpa, EqualsOneFlatSearch) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    const problem::LayerGraph graph = random_choices(random, 5);
    problem::LayerMachines machines;
    machines.devices = 4;
    machines.hierarchy = {2, 2};
    machines.bandwidths = {100, 20};
    machines.microbatches = 8;
    machines.memory_bytes = round % 2 == 0 ? 0 : 40.0 + 3 * round;
    double best = kInfinity;
    const std::vector<int> order = all_layers(graph);
    for (unsigned cut = 0; cut < 16; ++cut) {  // after which of the first four layers
      std::vector<std::vector<int>> stages(1);
      for (std::size_t i = 0; i < order.size(); ++i) {
        stages.back().push_back(order[i]);
        if (i < 4 && ((cut >> i) & 1U) != 0) {
          stages.emplace_back();
        }
      }
      for (const std::vector<int>& sizes : compositions(4, stages.size())) {
        best = std::min(best, best_choices(graph, machines, stages, sizes));
      }
    }
    const LayerPlanResult result = plan_layers("alpa", graph, machines);
    EXPECT_EQ(result.objective < kInfinity, best < kInfinity);
    if (best < kInfinity) {
      EXPECT_NEAR(result.objective, best, 1e-9 * best) << round;
    }
  }
}

TEST(Alpa, ClustersWhatIsLong) {
  std::mt19937 random(5);
  const problem::LayerGraph graph = random_choices(random, 40);
  problem::LayerMachines machines;
  machines.devices = 8;
  machines.bandwidth = 1000;
  machines.microbatches = 32;
  const double coarse = plan_layers("alpa", graph, machines, {{"layers", "4"}}).objective;
  const double fine = plan_layers("alpa", graph, machines, {{"layers", "40"}}).objective;
  EXPECT_LE(fine, coarse * (1 + 1e-9));
  const auto info = find_layer_planner("alpa");
  EXPECT_FALSE(solve_layers(**info, {graph, machines, {{"layers", "0"}}}));
}

}  // namespace
}  // namespace shardplan::planners
