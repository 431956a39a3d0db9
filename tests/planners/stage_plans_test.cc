#include "shardplan/planners/pipeline/stage_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shardplan/frontends/frontends.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/planners/planner.h"

namespace shardplan::planners {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGpt = "gpt:layers=4,hidden=32,heads=4,seq=8,batch=16,vocab=64";

/// A GPT on local:4 with four microbatches.
class StagePlansTest : public ::testing::Test {
 protected:
  StagePlansTest() {
    request_.recipe = recipe();
    request_.cluster = cluster::load_cluster("local:4").value();
  }

  [[nodiscard]] StageCut cut_of(const std::string& schedule, int groups, int pipelines) const {
    const auto parts = segments(step_, cost::CostModel(request_.cluster, {}), 4);
    StageCut cut;
    cut.schedule = schedule;
    cut.groups = groups;
    cut.stage_of = stages_of_segments(step_, parts, balanced_starts(parts, groups));
    cut.pipelines = pipelines;
    return cut;
  }

  [[nodiscard]] Result<Candidate> plan(const StageCut& cut, const std::string& inside) const {
    StagePlans plans(request_, **find_planner(inside));
    return plans.plan(cut);
  }

 private:
  static training::Recipe recipe() {
    training::Recipe recipe;
    recipe.microbatches = 4;
    return recipe;
  }

 protected:
  ir::Graph step_ =
      training::build_training_step(frontends::zoo_model(kGpt).value(), recipe()).value();
  PlanRequest request_{.step = step_};
};

// Two groups of two devices that share each microbatch: nothing but scalars is summed or gathered
// for a microbatch, neither around messages nor for the weights that both stages have.
TEST_F(StagePlansTest, WhatCrossesStagesIsCutAsWhatIsAroundIt) {
  for (const auto& [schedule, pipelines] :
       {std::pair("1f1b", 1), std::pair("gpipe", 1), std::pair("chimera", 2)}) {
    SCOPED_TRACE(schedule);
    const auto planned = plan(cut_of(schedule, 2, pipelines), "dp");
    ASSERT_TRUE(planned) << planned.error().text();
    const auto program = lower::lower_pipeline(step_, planned->plan, [](const plan::Plan& stage) {
      return cost::step_price(cost::CostModel(stage.cluster, stage.mesh));
    });
    ASSERT_TRUE(program) << program.error().text();
    ASSERT_EQ(program->programs.size(), 2U * static_cast<std::size_t>(pipelines));
    for (const lower::Program& stage : program->programs) {
      EXPECT_EQ(stage.mesh.size(), 2);
      for (const lower::Step& step : stage.microbatch) {
        if (step.kind == lower::StepKind::kCollective &&
            step.collective.kind != sharding::CollectiveKind::kSlice) {
          EXPECT_EQ(stage.value(step.outputs.front()).type.rank(), 0);
        }
      }
    }
  }
}

// The stages that have copies of weights keep no optimizer state, and are planned all the same.
TEST_F(StagePlansTest, CopiesArePlannedUnderEveryZeroStage) {
  for (const char* const inside : {"dp", "zero1", "zero2", "zero3", "megatron"}) {
    const auto planned = plan(cut_of("chimera", 2, 2), inside);
    EXPECT_TRUE(planned) << inside << ": " << planned.error().text();
  }
}

// Tensor parallelism on two processes is slow here: `map` has a faster plan for each stage.
TEST_F(StagePlansTest, StagesAreImprovedWithinTheRoomThatThePipelineLeaves) {
  const StageCut cut = cut_of("1f1b", 2, 1);
  const auto megatron = plan(cut, "megatron");
  ASSERT_TRUE(megatron) << megatron.error().text();
  const Bytes need = megatron->simulation.peak_bytes;
  const PlannerInfo& map = **find_planner("map");
  for (const Bytes limit : {need, 2 * need}) {
    request_.memory_limit = limit;
    const auto better = StagePlans(request_, map).improve(cut, *megatron, Budget(request_));
    ASSERT_TRUE(better) << better.error().text();
    EXPECT_LE(better->simulation.peak_bytes, limit);
    EXPECT_LT(better->simulation.step_seconds, megatron->simulation.step_seconds);
    EXPECT_EQ(better->plan.pipeline->stage_of, cut.stage_of);
  }
  // No room at all: what the microbatches in flight take is more than the limit.
  request_.memory_limit = 1;
  const auto full = StagePlans(request_, map).improve(cut, *megatron, Budget(request_));
  ASSERT_TRUE(full) << full.error().text();
  EXPECT_EQ(full->simulation.peak_bytes, need);
  request_.memory_limit = 0;
  // Nothing is faster than what `map` finds.
  const auto best = plan(cut, "map");
  ASSERT_TRUE(best) << best.error().text();
  const auto same = StagePlans(request_, map).improve(cut, *best, Budget(request_));
  ASSERT_TRUE(same) << same.error().text();
  EXPECT_EQ(same->simulation.step_seconds, best->simulation.step_seconds);
}

TEST_F(StagePlansTest, StagesThatTakeTooLongAreNoPlan) {
  const StageCut cut = cut_of("1f1b", 2, 1);
  const PlannerInfo& map = **find_planner("map");
  const auto free = plan(cut, "map");
  ASSERT_TRUE(free) << free.error().text();
  const Seconds step = free->simulation.step_seconds;
  StagePlans plans(request_, map);
  EXPECT_FALSE(plans.plan(cut, Budget(request_), step / 10));
  // A search for more is not answered by the one for less.
  const auto again = plans.plan(cut, Budget(request_), 2 * step);
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(again->simulation.step_seconds, step);
}

TEST_F(StagePlansTest, PipelinesThatAScheduleLacksAreRefused) {
  const auto error = [&](const StageCut& cut) {
    const auto planned = plan(cut, "dp");
    return planned ? std::string() : planned.error().text();
  };
  EXPECT_THAT(error(cut_of("1f1b", 2, 2)), HasSubstr("schedule 1f1b has one pipeline, not 2"));
  EXPECT_THAT(error(cut_of("chimera", 2, 1)), HasSubstr("1 pipelines on 2 devices"));
  EXPECT_THAT(error(cut_of("chimera", 4, 3)), HasSubstr("3 pipelines on 4 devices"));
  EXPECT_THAT(error(cut_of("chimera", 4, 5)), HasSubstr("5 pipelines share 4 microbatches"));
  EXPECT_EQ(error(cut_of("chimera", 4, 4)), "");
  StageCut doubled = cut_of("chimera", 2, 2);
  doubled.forward_group = 2;
  EXPECT_EQ(error(doubled), "");
  // Four microbatches in groups of two are two groups: none is left for half of the pipelines.
  StageCut starved = cut_of("chimera", 4, 4);
  starved.forward_group = 2;
  EXPECT_THAT(error(starved), HasSubstr("of 4 none of the 4 microbatches"));
  doubled = cut_of("1f1b", 2, 1);
  doubled.forward_group = 2;
  EXPECT_THAT(error(doubled), HasSubstr("schedule 1f1b does not have forward passes in groups"));
}

}  // namespace
}  // namespace shardplan::planners
