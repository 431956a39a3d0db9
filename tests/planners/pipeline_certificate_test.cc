// The plain count of pipelines against the simulator, and what it says of broken ones.

#include "shardplan/sim/pipeline_certificate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/pipeline/stage_plans.h"
#include "shardplan/planners/planner.h"
#include "shardplan/sim/pipeline.h"

namespace shardplan::sim {
namespace {

constexpr const char* kGpt = "gpt:layers=4,hidden=16,heads=4,seq=8,batch=16,vocab=32";
constexpr const char* kTied = "gpt:layers=2,hidden=16,heads=4,seq=8,batch=16,vocab=32";
constexpr const char* kMlp = "mlp:layers=8,hidden=16,batch=16";

struct Case {
  std::string model{};
  std::string schedule{};
  int groups = 2;
  int chunks = 1;
  std::int64_t microbatches = 4;
  std::string cluster = "8xA100-80GB";
  std::string inside = "dp";
  double clip_norm = 0;
  std::int64_t steps = 1;
  bool recompute = false;
  int pipelines = 1;
  int forward_group = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " " << c.schedule << " on " << c.groups << " groups of " << c.cluster
             << " by " << c.inside << ", " << c.microbatches << " microbatches";
}

struct Made {
  plan::Plan plan{};
  lower::PipelineProgram program{};
};

Result<Made> make(const Case& c) {
  training::Recipe recipe;
  recipe.microbatches = c.microbatches;
  recipe.clip_norm = c.clip_norm;
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward, frontends::zoo_model(c.model));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph step, training::build_training_step(forward, recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(const cluster::Cluster cluster, cluster::load_cluster(c.cluster));
  planners::PlanRequest request{.step = step};
  request.recipe = recipe;
  request.cluster = cluster;
  const int stages = c.groups * c.chunks;
  const auto parts =
      planners::segments(step, cost::CostModel(cluster, {}), static_cast<std::size_t>(stages));
  planners::StageCut cut{
      c.schedule,
      c.schedule.starts_with("zb_"),
      c.groups,
      planners::stages_of_segments(step, parts, planners::balanced_starts(parts, stages)),
      c.steps,
      c.pipelines,
      c.forward_group};
  if (c.recompute) {
    cut.recompute.emplace();
    for (const planners::Segment& segment : parts) {
      cut.recompute->push_back(segment.block);
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* const inside,
                             planners::find_planner(c.inside));
  planners::StagePlans stage_plans(request, *inside);
  SHARDPLAN_ASSIGN_OR_RETURN(planners::Candidate planned, stage_plans.plan(cut));
  Made made;
  made.plan = std::move(planned.plan);
  SHARDPLAN_ASSIGN_OR_RETURN(made.program,
                             lower::lower_pipeline(step, made.plan, [](const plan::Plan& stage) {
                               return cost::step_price(cost::CostModel(stage.cluster, stage.mesh));
                             }));
  return made;
}

std::vector<plan::Plan> stages_of(const Made& made) {
  return made.plan.pipeline ? made.plan.pipeline->stages : std::vector<plan::Plan>();
}

Result<PipelineCertificate> certify(const Made& made) {
  return certify_pipeline(
      made.program, made.plan.cluster, stages_of(made), made.plan.cluster.local);
}

class PipelineCertificates : public testing::TestWithParam<Case> {};

TEST_P(PipelineCertificates, EqualTheSimulator) {
  const Result<Made> made = make(GetParam());
  ASSERT_TRUE(made) << made.error().text();
  const Result<PipelineCertificate> found = certify(*made);
  ASSERT_TRUE(found) << found.error().text();
  const auto simulated = simulate_pipeline(
      made->program, made->plan.cluster, stages_of(*made), {.overlap = !made->plan.cluster.local});
  ASSERT_TRUE(simulated) << simulated.error().text();
  EXPECT_EQ(found->peak_bytes, simulated->peak_bytes);
  EXPECT_EQ(found->peak.bytes, simulated->step.peak_bytes);
  const Seconds step = simulated->step.step_seconds;
  EXPECT_LE(found->least_step_seconds, step * (1 + 1e-12));
  EXPECT_GE(found->most_step_seconds, step * (1 - 1e-12));
  EXPECT_LE(found->most_step_seconds, found->additive_seconds * (1 + 1e-12));
  if (made->plan.cluster.local) {
    EXPECT_NEAR(found->least_step_seconds, step, 1e-12 * step);
    EXPECT_NEAR(found->most_step_seconds, step, 1e-12 * step);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules,
    PipelineCertificates,
    testing::Values(Case{kMlp, "gpipe", 2, 1},
                    Case{kGpt, "1f1b", 4, 1, 8},
                    Case{kGpt, "dapple", 2, 1, 4, "local:4"},
                    Case{kTied, "1f1b", 2, 1, 4, "local:4", "zero3"},
                    Case{kGpt, "1f1b", 4, 1, 4, "local:4", "dp", 0.5},
                    Case{kGpt, "1f1b", 2, 1, 4, "8xA100-80GB", "megatron", 0, 1, true},
                    Case{kMlp, "interleaved_1f1b", 2, 2, 4, "local:4"},
                    Case{kMlp, "breadth_first", 2, 2, 4},
                    Case{kGpt, "zb_h1", 2, 1, 4, "local:4"},
                    Case{kGpt, "zb_h2", 4, 1, 8, "8xA100-80GB"},
                    Case{kMlp, "zb_v", 2, 2, 4, "local:2"},
                    Case{kMlp, "pipedream", 4, 1, 1, "local:4", "dp", 0, 6},
                    Case{kMlp, "pipedream_2bw", 2, 1, 4, "local:4", "dp", 0, 3},
                    Case{kMlp, "chimera", 4, 1, 8, "local:4", "dp", 0, 1, false, 2},
                    Case{kGpt, "chimera", 4, 1, 8, "local:4", "dp", 0, 1, false, 2, 2},
                    Case{kTied, "chimera", 2, 1, 4, "local:4", "dp", 0.5, 1, false, 2},
                    Case{kGpt, "chimera", 4, 1, 4, "8xA100-80GB", "megatron", 0, 1, true, 4}));

/// The error's text; empty where all is well.
std::string wrong(const Made& made) {
  const Result<PipelineCertificate> found = certify(made);
  return found ? "" : found.error().text();
}

TEST(PipelineCertificate, BrokenSchedulesAreNamed) {
  const Result<Made> made = make({kMlp, "1f1b", 2, 1});
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(wrong(*made), "");

  Made missing = *made;
  missing.program.schedule.tasks[1].erase(missing.program.schedule.tasks[1].begin());
  EXPECT_EQ(wrong(missing),
            "schedule: stage 1 does not pass over microbatch 0 once forward and once backward");

  Made elsewhere = *made;
  std::swap(elsewhere.program.schedule.tasks[0], elsewhere.program.schedule.tasks[1]);
  EXPECT_NE(wrong(elsewhere).find("is on device"), std::string::npos);

  Made circle = *made;
  std::vector<lower::Task>& tasks = circle.program.schedule.tasks[0];
  const auto backward = std::find_if(tasks.begin(), tasks.end(), [](const lower::Task& task) {
    return task.work == lower::Work::kBackward;
  });
  std::rotate(tasks.begin(), backward, backward + 1);
  EXPECT_EQ(wrong(circle), "schedule: its tasks wait for each other in a circle");
}

TEST(PipelineCertificate, BrokenProgramsAreNamed) {
  const Result<Made> made = make({kMlp, "1f1b", 2, 1});
  ASSERT_TRUE(made) << made.error().text();
  Made kept = *made;
  std::vector<lower::Step>& steps = kept.program.programs[1].microbatch;
  const auto free = std::find_if(steps.rbegin(), steps.rend(), [](const lower::Step& step) {
    return step.kind == lower::StepKind::kFree;
  });
  ASSERT_NE(free, steps.rend());
  steps.erase(std::next(free).base());
  EXPECT_NE(wrong(kept).find("stage 1: value %"), std::string::npos) << wrong(kept);
  EXPECT_NE(wrong(kept).find("is never freed"), std::string::npos) << wrong(kept);
}

}  // namespace
}  // namespace shardplan::sim
