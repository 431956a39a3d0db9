// Pipelines put together from blocks: what they are said to take, against the simulation of the
// whole, and against closed forms.
#include "shardplan/planners/pipeline/compose.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planners_testing.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/planners/intra/map2023.h"

namespace shardplan::planners {
namespace {

constexpr std::string_view kDeep = "gpt:layers=10,hidden=1024,heads=16,seq=512,batch=64,vocab=1000";
constexpr std::int64_t kMicrobatches = 8;

class ComposeTest : public ::testing::Test {
 protected:
  ComposeTest() {
    training::Recipe recipe;
    recipe.microbatches = kMicrobatches;
    auto graph = frontends::zoo_model(std::string(kDeep));
    step_ = training::build_training_step(*graph, recipe).value();
    request_.recipe = recipe;
    request_.cluster = cluster::load_cluster("8xA100-80GB").value();
  }

  std::vector<Composition> compose(BlockCosts& costs, Bytes limit) {
    const Budget budget(request_);
    auto composed = Composer(request_, costs).compose(limit, budget);
    EXPECT_TRUE(composed) << composed.error().text();
    return std::move(*composed);
  }

  ir::Graph step_;
  PlanRequest request_{.step = step_};
};

TEST_F(ComposeTest, BlocksThatAreAlikeAreOneKind) {
  const auto costs = BlockCosts::make(request_);
  ASSERT_TRUE(costs) << costs.error().text();
  // Embeddings, ten layers, and the end; the first and the last layer have other neighbours.
  EXPECT_EQ(costs->blocks().size(), 12U);
  EXPECT_LE(costs->kinds(), 5U);
  for (std::size_t layer = 2; layer < 10; ++layer) {
    EXPECT_EQ(costs->kind(layer), costs->kind(2)) << layer;
  }
}

TEST_F(ComposeTest, EstimatesAreNearTheSimulationOfTheWhole) {
  auto costs = BlockCosts::make(request_);
  ASSERT_TRUE(costs) << costs.error().text();
  const std::vector<Composition> composed = compose(*costs, memory_limit(request_));
  ASSERT_GE(composed.size(), 8U);
  const PlannerInfo inside = map_planner();
  StagePlans stages(request_, inside);
  for (const Composition& choice : composed) {
    SCOPED_TRACE(std::string(choice.schedule->name) + " on " + std::to_string(choice.groups));
    const auto made = stages.plan(choice.cut);
    ASSERT_TRUE(made) << made.error().text();
    EXPECT_NEAR(choice.seconds / made->simulation.step_seconds, 1, 0.15);
    const auto bytes = static_cast<double>(made->simulation.peak_bytes);
    EXPECT_NEAR(static_cast<double>(choice.peak) / bytes, 1, 0.25);
  }
}

/// The peak of 1F1B by its closed form: stage s of S has min(S − s, M) microbatches in flight.
TEST_F(ComposeTest, PeaksOfOneForwardOneBackwardAreTheClosedForm) {
  auto costs = BlockCosts::make(request_);
  ASSERT_TRUE(costs) << costs.error().text();
  int checked = 0;
  for (const Composition& choice : compose(*costs, memory_limit(request_))) {
    if (choice.schedule->name != "1f1b") {
      continue;
    }
    ++checked;
    ASSERT_TRUE(choice.cut.recompute && choice.cut.recompute->empty());
    Bytes most = 0;
    for (int stage = 0; stage < choice.groups; ++stage) {
      Bytes weights = 0;
      Bytes saved = 0;
      Bytes passing = 0;
      for (std::size_t b = 0; b < costs->blocks().size(); ++b) {
        if (choice.cut.stage_of[costs->blocks()[b].begin] == stage) {
          const BlockCost& cost = choice.option->kinds[costs->kind(b)][0];
          weights += cost.weights;
          saved += cost.saved;
          passing = std::max(passing, cost.passing);
        }
      }
      const std::int64_t in_flight = std::min<std::int64_t>(choice.groups - stage, kMicrobatches);
      most = std::max(most, weights + passing + saved * in_flight);
    }
    EXPECT_EQ(choice.peak, most) << choice.groups;
  }
  EXPECT_EQ(checked, 3);  // 2, 4 and 8 groups
}

TEST_F(ComposeTest, RunsNoMoreAgainThanTheLimitAsksFor) {
  auto costs = BlockCosts::make(request_);
  ASSERT_TRUE(costs) << costs.error().text();
  const Bytes most = compose(*costs, memory_limit(request_)).front().peak;
  std::size_t tighter = 0;
  for (const double share : {0.9, 0.7, 0.5}) {
    const auto limit = static_cast<Bytes>(share * static_cast<double>(most));
    for (const Composition& choice : compose(*costs, limit)) {
      EXPECT_LE(choice.peak, limit);
      tighter += choice.cut.recompute->size();
    }
  }
  EXPECT_GT(tighter, 0U);
  EXPECT_TRUE(compose(*costs, 1).empty());
}

/// What a stage receives and sends is cut as the batch is, forward and back.
TEST_F(ComposeTest, MessagesAreCutByDataParallelStages) {
  const auto dp = find_planner("dp");
  ASSERT_TRUE(dp);
  StagePlans stages(request_, **dp);
  StageCut cut;
  cut.groups = 2;
  cut.stage_of.assign(step_.ops().size(), 0);
  const auto costs = BlockCosts::make(request_);
  ASSERT_TRUE(costs);
  cut.stage_of = stages_of_segments(step_, costs->blocks(), {0, 6});
  const auto made = stages.plan(cut);
  ASSERT_TRUE(made) << made.error().text();
  const auto program = lower::lower_pipeline(step_, made->plan, [](const plan::Plan& stage) {
    return cost::step_price(cost::CostModel(stage.cluster, stage.mesh));
  });
  ASSERT_TRUE(program) << program.error().text();
  int messages = 0;
  for (const lower::Link& link : program->links) {
    if (link.phase == ir::Phase::kUpdate || link.type.shape.size() != 3) {
      continue;
    }
    ++messages;
    const lower::Program& from = program->programs[static_cast<std::size_t>(link.from)];
    const lower::Program& to = program->programs[static_cast<std::size_t>(link.to)];
    EXPECT_EQ(from.value(link.sent).type.shape[0], link.type.shape[0] / 4);
    EXPECT_EQ(to.value(link.received).type.shape[0], link.type.shape[0] / 4);
  }
  EXPECT_GE(messages, 2);
}

}  // namespace
}  // namespace shardplan::planners
