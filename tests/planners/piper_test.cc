// Piper against the published values, against its own paper's table dp[I][k][s], and against all
// partitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "layers_testing.h"
#include "shardplan/problem/published_objectives.h"

namespace shardplan::planners {
namespace {

using problem::LayerGraph;
using problem::LayerMachines;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOutOfMemory = -1;

struct Row {
  int devices;
  double memory_gib;
  double published;  ///< kOutOfMemory: no plan
};

/// The published value to its ten digits with the greedy inner choice, or better; the exact inner
/// choice at least as good.
void expect_row(const LayerGraph& graph, const LayerMachines& machines, double published) {
  const LayerPlanResult greedy = plan_layers("piper", graph, machines, {{"inner", "greedy"}});
  const LayerPlanResult exact = plan_layers("piper", graph, machines);
  SCOPED_TRACE(::testing::Message() << machines.devices << " devices, " << machines.memory_bytes
                                    << " bytes, " << machines.microbatches << " microbatches");
  if (published == kOutOfMemory) {
    EXPECT_EQ(greedy.status, SearchStatus::kInfeasible);
    EXPECT_EQ(exact.status, SearchStatus::kInfeasible);
    EXPECT_FALSE(exact.explanation.empty());
    return;
  }
  EXPECT_NEAR(greedy.objective, published, published * 1e-9);
  EXPECT_EQ(exact.status, SearchStatus::kOptimal);
  EXPECT_LE(exact.objective, greedy.objective * (1 + 1e-12));
  EXPECT_EQ(exact.lower_bound, exact.objective);
}

TEST(PiperPublished, Bert32) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const LayerGraph bert = published("piper/bert32a100.json");
  for (const Row& row : std::vector<Row>{
           {8, 1, kOutOfMemory},      {8, 2, kOutOfMemory},      {8, 8, 0.16585575},
           {8, 80, 0.1220072694},     {32, 2, 0.0665495},        {32, 8, 0.04151545044},
           {32, 80, 0.03084404821},   {64, 1, kOutOfMemory},     {64, 2, 0.03203008123},
           {64, 8, 0.02020055029},    {64, 80, 0.01565017802},   {128, 2, 0.01514640786},
           {128, 8, 0.01012088032},   {128, 80, 0.008053242924}, {512, 1, 0.008780040358},
           {512, 2, 0.00366752626},   {512, 8, 0.002561127846},  {512, 80, 0.002272520109},
           {1024, 8, 0.001303179516}, {2048, 8, 0.0007035911844}}) {
    expect_row(bert, machines(row.devices, row.memory_gib * kGiB, 25 * kGiB, 1920), row.published);
  }
}

TEST(PiperPublished, Bert32WithTheFilesMachines) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const LayerGraph bert = published("piper/bert32a100.json");
  for (const Row& row : std::vector<Row>{{8, 512, 0.1232156708},
                                         {64, 512, 0.01700962959},
                                         {256, 512, 0.005070663141},
                                         {512, 512, 0.002817773016},
                                         {1024, 512, 0.001911330119},
                                         {2048, 512, 0.001217127932},
                                         {2048, 480, 0.001298205237}}) {
    expect_row(bert,
               machines(row.devices, 0, 0, static_cast<std::int64_t>(row.memory_gib)),
               row.published);
  }
}

TEST(PiperPublished, Bert64ByClones) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const auto bert = problem::with_clones(published("piper/bert32a100.json"), "34", 32);
  ASSERT_TRUE(bert) << bert.error().text();
  ASSERT_TRUE(problem::check(*bert, "bert64"));
  for (const Row& row : std::vector<Row>{{8, 0, 0.2435490989},
                                         {64, 0, 0.03096532525},
                                         {128, 0, 0.01571175372},
                                         {256, 0, 0.008084967962},
                                         {512, 0, 0.004271575081},
                                         {1024, 0, 0.002255954301},
                                         {2048, 0, 0.001199263223}}) {
    expect_row(*bert, machines(row.devices, 0, 0, 2048), row.published);
  }
}

TEST(PiperPublished, Resnet) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const LayerGraph resnet = published("piper/resnet.json");
  EXPECT_EQ(resnet.time_unit, "ms");
  for (const Row& row : std::vector<Row>{{8, 2, kOutOfMemory},
                                         {8, 4, 73.493286},
                                         {8, 8, 63.4335366},
                                         {8, 16, 58.55770998},
                                         {32, 2, 24.62589852},
                                         {32, 4, 17.62395849},
                                         {32, 8, 15.75802607},
                                         {32, 16, 14.63942897},
                                         {64, 2, 11.33379029},
                                         {64, 4, 8.666772848},
                                         {64, 8, 7.879013051}}) {
    expect_row(resnet, machines(row.devices, row.memory_gib * kGiB, 25 * kGiB, 0), row.published);
  }
  // Better than published, by the exact inner choice; the first is proven by others too.
  EXPECT_NEAR(
      plan_layers("piper", resnet, machines(32, 2 * kGiB, 25 * kGiB, 0)).objective, 24.0314, 1e-4);
}

TEST(PiperPublished, OneStageInClosedForm) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  const LayerPlanResult result = plan_layers(
      "piper", published("piper/bert32a100.json"), machines(8, 80 * kGiB, 25 * kGiB, 1920));
  ASSERT_EQ(result.best.stages.size(), 1U);
  EXPECT_EQ(result.best.stages[0].replicas, 8);
  EXPECT_NEAR(result.objective, 0.972864 / 8 + 4 * (7.0 / 8) * 5.475694 / (1920 * 25), 1e-9);
}

/// The table of the paper's section on the algorithm, filled as it says, every stage by itself: the
/// inner choice by trying all.
class Table {
 public:
  Table(const LayerGraph& graph, const LayerMachines& machines)
      : graph_(graph),
        machines_(machines),
        layers_(static_cast<int>(graph.layers.size())),
        most_s_(static_cast<int>(std::min<std::int64_t>(machines.devices, machines.microbatches))) {
    for (unsigned set = 0; set < 1U << static_cast<unsigned>(layers_); ++set) {
      if (closed(set)) {
        sets_.push_back(set);
      }
    }
  }

  double optimum() {
    for (const unsigned set : sets_) {
      for (int k = 0; k <= machines_.devices; ++k) {
        for (int s = 0; s <= most_s_; ++s) {
          best_[{set, k, s}] = set == 0 ? 0 : least(set, k, s);
        }
      }
    }
    return best_[{sets_.back(), machines_.devices, most_s_}];
  }

 private:
  struct Key {
    unsigned set;
    int k;
    int s;
    auto operator<=>(const Key&) const = default;
  };

  [[nodiscard]] static bool in(unsigned set, int v) {
    return ((set >> static_cast<unsigned>(v)) & 1U) != 0;
  }

  [[nodiscard]] bool closed(unsigned set) const {
    return std::all_of(graph_.edges.begin(), graph_.edges.end(), [&](const auto& edge) {
      return !in(set, edge.source) || in(set, edge.target);
    });
  }

  double least(unsigned set, int k, int s) {
    double value = kInfinity;
    if (s > 0) {
      value = best_[{set, k, s - 1}];  // s is a bound
    }
    for (const unsigned below : sets_) {
      if ((below & set) != below || below == set) {
        continue;
      }
      for (const int t : {1, 2}) {
        for (int d = 1; d * t <= k && d <= s; ++d) {
          if (machines_.microbatches % d == 0) {
            value = std::min(value,
                             std::max(best_[{below, k - t * d, s - d}],
                                      stage_time(set & ~below, t, d, (s + d - 1) / d)));
          }
        }
      }
    }
    return value;
  }

  double stage_time(unsigned stage, int t, int d, int y) {
    const auto [known, is_new] = times_.try_emplace({stage, t * 100 + d, y}, kInfinity);
    if (is_new) {
      try_choices(stage, t, d, y, 0, 0, 0, known->second);
    }
    return known->second;
  }

  void try_choices(
      unsigned stage, int t, int d, int y, int v, double time, double memory, double& best) const {
    if (v == layers_) {
      const bool fits =
          machines_.memory_bytes == 0 || memory <= machines_.memory_bytes * (1 + 1e-12);
      best = fits ? std::min(best, time) : best;
      return;
    }
    if (!in(stage, v)) {
      try_choices(stage, t, d, y, v + 1, time, memory, best);
      return;
    }
    for (const problem::LayerChoice& choice : graph_.layers[static_cast<std::size_t>(v)].choices) {
      if (choice.degree == t) {
        double bytes = 0;
        for (const problem::LayerEdge& edge : graph_.edges) {
          bytes += (edge.source == v || edge.target == v) &&
                           in(stage, edge.source) != in(stage, edge.target)
                       ? edge.bytes
                       : 0;
        }
        const double own = choice.time / d + 2 * bytes / machines_.bandwidth / d +
                           4.0 * (d - 1) / d * choice.parameter_bytes / machines_.bandwidth /
                               static_cast<double>(machines_.microbatches);
        try_choices(stage,
                    t,
                    d,
                    y,
                    v + 1,
                    time + own,
                    memory + choice.in_flight_bytes * y + choice.constant_bytes,
                    best);
      }
    }
  }

  const LayerGraph& graph_;
  const LayerMachines& machines_;
  int layers_;
  int most_s_;
  std::vector<unsigned> sets_;
  std::map<Key, double> best_;
  std::map<Key, double> times_;
};

TEST(Piper, EqualsThePapersTable) {
  std::mt19937 random(20211);
  int feasible = 0;
  for (int round = 0; round < 150; ++round) {
    const LayerGraph graph = random_layers(random, 3 + round % 5, round % 2 == 0);
    const double memory = round % 3 == 0 ? 0 : 15.0 + static_cast<double>(random() % 60);
    const LayerMachines asked = machines(1 + static_cast<int>(random() % 6),
                                         memory,
                                         round % 4 == 0 ? 1.0 : 50.0,
                                         1 + static_cast<int>(random() % 8));
    const double expected = Table(graph, asked).optimum();
    const LayerPlanResult result = plan_layers("piper", graph, asked);
    const LayerPlanResult greedy = plan_layers("piper", graph, asked, {{"inner", "greedy"}});
    SCOPED_TRACE(round);
    if (std::isinf(expected)) {
      EXPECT_EQ(result.status, SearchStatus::kInfeasible);
      EXPECT_EQ(greedy.status, SearchStatus::kInfeasible);
      continue;
    }
    ++feasible;
    EXPECT_EQ(result.status, SearchStatus::kOptimal);
    EXPECT_NEAR(result.objective, expected, 1e-9 * expected);
    EXPECT_GE(greedy.objective, expected * (1 - 1e-9));
  }
  EXPECT_GT(feasible, 60);
}

TEST(Piper, MoreIsNeverWorse) {
  std::mt19937 random(4);
  for (int round = 0; round < 25; ++round) {
    const LayerGraph graph = random_layers(random, 12, round % 2 == 0);
    double before = kInfinity;
    for (const int devices : {1, 2, 3, 5, 8}) {
      const double value = plan_layers("piper", graph, machines(devices, 120, 20, 8)).objective;
      EXPECT_LE(value, before * (1 + 1e-9)) << round;
      before = value;
    }
    before = kInfinity;
    for (const double memory : {40.0, 60.0, 100.0, 1000.0}) {
      const double value = plan_layers("piper", graph, machines(4, memory, 20, 8)).objective;
      EXPECT_LE(value, before * (1 + 1e-9)) << round;
      before = value;
    }
    before = kInfinity;
    for (const double bandwidth : {1.0, 5.0, 100.0, 1e9}) {
      const double value = plan_layers("piper", graph, machines(4, 120, bandwidth, 8)).objective;
      EXPECT_LE(value, before * (1 + 1e-9)) << round;
      before = value;
    }
  }
}

TEST(Piper, SaysWhatItCannotHandle) {
  std::mt19937 random(5);
  LayerGraph graph = random_layers(random, 4, false);
  EXPECT_NE(refusal("piper", graph, machines(2, 0, 0, 4)).text().find("bandwidth"),
            std::string::npos);
  EXPECT_NE(refusal("piper", graph, machines(2, 0, 1, 0)).text().find("microbatches"),
            std::string::npos);
  EXPECT_NE(
      refusal("piper", graph, machines(2, 0, 1, 4), {{"inner", "best"}}).text().find("greedy"),
      std::string::npos);
  EXPECT_NE(refusal("piper", graph, machines(2, 0, 1, 4), {{"outer", "1"}}).text().find("inner"),
            std::string::npos);
  graph.layers[0].choices.assign(3, graph.layers[0].choices.front());
  EXPECT_NE(refusal("piper", graph, machines(2, 0, 1, 4)).text().find("2 choices"),
            std::string::npos);
}

}  // namespace
}  // namespace shardplan::planners
