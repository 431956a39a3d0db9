// One batch in different numbers of microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/planner.h"

namespace shardplan::planners {
namespace {

constexpr const char* kGpt = "gpt:layers=2,hidden=128,heads=4,seq=32,batch=16,vocab=128";

class FastestTest : public ::testing::TestWithParam<std::string> {
 protected:
  /// The GPT on four processes in 1, 2 and 4 microbatches.
  [[nodiscard]] std::vector<PlanRequest> requests() const {
    std::vector<PlanRequest> out;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      PlanRequest request{.step = steps_[i]};
      request.recipe = recipe(std::int64_t{1} << i);
      request.cluster = cluster::load_cluster("local:4").value();
      out.push_back(std::move(request));
    }
    return out;
  }

 private:
  static training::Recipe recipe(std::int64_t microbatches) {
    training::Recipe recipe;
    recipe.microbatches = microbatches;
    return recipe;
  }
  static ir::Graph step(std::int64_t microbatches) {
    return training::build_training_step(frontends::zoo_model(kGpt).value(), recipe(microbatches))
        .value();
  }
  std::vector<ir::Graph> steps_{step(1), step(2), step(4)};
};

// The slow twin: every number by itself, asked for any plan.
TEST_P(FastestTest, IsTheFastestOfAllAskedOneByOne) {
  const PlannerInfo& planner = **find_planner(GetParam());
  for (const Bytes limit : {Bytes{0}, Bytes{8} << 20}) {
    std::vector<PlanRequest> all = requests();
    Seconds least = std::numeric_limits<Seconds>::infinity();
    for (PlanRequest& request : all) {
      request.memory_limit = limit;
      const auto alone = planner.plan(request);
      ASSERT_TRUE(alone) << alone.error().text();
      if (alone->status == SearchStatus::kOptimal || alone->status == SearchStatus::kFeasible) {
        least = std::min(least, alone->best.prediction.step_seconds);
      }
    }
    ASSERT_LT(least, std::numeric_limits<Seconds>::infinity());
    for (const bool backwards : {false, true}) {
      SCOPED_TRACE(backwards);
      const auto order = backwards ? std::vector<PlanRequest>(all.rbegin(), all.rend()) : all;
      const auto fastest = plan_fastest(planner, order);
      ASSERT_TRUE(fastest) << fastest.error().text();
      EXPECT_DOUBLE_EQ(fastest->result.best.prediction.step_seconds, least);
      // Nothing but a bound that all numbers have is proven.
      const plan::Prediction& prediction = fastest->result.best.prediction;
      EXPECT_EQ(fastest->result.status, SearchStatus::kFeasible);
      EXPECT_EQ(prediction.lower_bound_seconds, 0);
      EXPECT_LE(prediction.step_lower_bound_seconds, least);
      EXPECT_EQ(fastest->result.best.recipe.microbatches,
                order[fastest->request].recipe.microbatches);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Planners, FastestTest, ::testing::Values("shardplan", "map", "zero3"));

TEST_F(FastestTest, WithoutRoomItIsThePlanOfLeastMemory) {
  std::vector<PlanRequest> all = requests();
  Bytes least = std::numeric_limits<Bytes>::max();
  for (PlanRequest& request : all) {
    request.memory_limit = 1;
    least = std::min(least, (*find_planner("zero3"))->plan(request)->simulation.peak_bytes);
  }
  const auto fastest = plan_fastest(**find_planner("zero3"), all);
  ASSERT_TRUE(fastest) << fastest.error().text();
  EXPECT_EQ(fastest->result.status, SearchStatus::kInfeasible);
  EXPECT_EQ(fastest->result.simulation.peak_bytes, least);
}

TEST_F(FastestTest, ASearchThatWasStoppedProvesNothing) {
  std::vector<PlanRequest> all = requests();
  for (const Bytes limit : {Bytes{0}, Bytes{1}}) {
    for (PlanRequest& request : all) {
      request.memory_limit = limit;
      request.time_limit = 1e-6;
    }
    const auto fastest = plan_fastest(**find_planner("map"), all);
    ASSERT_TRUE(fastest) << fastest.error().text();
    const PlanResult& result = fastest->result;
    EXPECT_EQ(result.limit, SearchLimit::kTime);
    EXPECT_NE(result.status, SearchStatus::kOptimal);
    EXPECT_EQ(result.best.prediction.step_lower_bound_seconds, 0);
    EXPECT_THAT(result.explanation, ::testing::Not(::testing::HasSubstr("proven")));
    if (limit > 0) {
      EXPECT_THAT(result.explanation, ::testing::HasSubstr("stopped before its end"));
    }
  }
}

}  // namespace
}  // namespace shardplan::planners
