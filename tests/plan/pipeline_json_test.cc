// Plans of pipelines as JSON: round trips, and one clear message for every field that is wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/plan/plan.h"
#include "shardplan/training/stages.h"

namespace shardplan::plan {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kPerStage = 2;

/// Empty where there is none.
Pipeline pipeline_of(const Plan& plan) {
  return plan.pipeline ? *plan.pipeline : Pipeline{};
}

/// Layers h.0 and h.1, each a stage on two devices.
class PipelineJson : public ::testing::Test {
 protected:
  PipelineJson() { remake("1f1b", false); }

  void remake(const std::string& schedule, bool weights_later) {
    plan_ = plan_of(schedule, weights_later);
    text_ = to_json(plan_, step_);
  }

  static ir::Graph make_step() {
    const Result<ir::Graph> forward = ir::parse(R"(graph "mlp" microbatches=1
%0 = parameter "h.0.weight" f32[16,8] trainable
%1 = parameter "h.1.weight" f32[8,16] trainable
%2 = input "x" f32[8,8]
%3 = einsum(%2, %0) {equation="bk,nk->bn"} : f32[8,16] layer="h.0"
%4 = relu(%3) : f32[8,16] layer="h.0"
%5 = einsum(%4, %1) {equation="bk,nk->bn"} : f32[8,8] layer="h.1"
%6 = mul(%5, %5) : f32[8,8] layer="h.1"
%7 = sum(%6) {dims=[0,1], keepdim=false} : f32[] layer="h.1"
output %7
)");
    EXPECT_TRUE(forward) << forward.error().text();
    training::Recipe recipe;
    recipe.microbatches = 2;
    const Result<ir::Graph> step = training::build_training_step(*forward, recipe);
    EXPECT_TRUE(step) << step.error().text();
    return *step;
  }

  [[nodiscard]] Plan plan_of(const std::string& schedule, bool weights_later) const {
    Plan plan;
    plan.planner = "by hand";
    plan.model = "mlp.ir";
    plan.graph_hash = ir::structural_hash(step_);
    plan.recipe.microbatches = 2;
    plan.cluster = *cluster::load_cluster("local:4");
    Pipeline pipeline;
    pipeline.schedule = schedule;
    pipeline.devices = 2;
    pipeline.weights_later = weights_later;
    bool second = false;
    for (const ir::Op& op : step_.ops()) {
      second = second || op.layer == "h.1";
      pipeline.stage_of.push_back(second && op.phase == ir::Phase::kForward ? 1 : 0);
    }
    const auto staged = training::split_into_stages(step_, pipeline.stage_of, weights_later);
    EXPECT_TRUE(staged) << staged.error().text();
    for (const training::Stage& of_step : staged->stages) {
      pipeline.stages.push_back(stage_plan(of_step.graph, plan));
    }
    plan.pipeline = std::move(pipeline);
    plan.prediction.step_seconds = 0.5;
    plan.prediction.peak_bytes = 4096;
    return plan;
  }

  /// Rows of x and of all activations are cut.
  static Plan stage_plan(const ir::Graph& graph, const Plan& whole) {
    Plan stage;
    stage.planner = "dp";
    stage.graph_hash = ir::structural_hash(graph);
    stage.recipe = whole.recipe;
    stage.cluster = *stage_cluster(whole.cluster, kPerStage);
    stage.mesh.axes = {{"data", kPerStage}};
    for (std::size_t i = 0; i < graph.ops().size(); ++i) {
      const ops::AxisMap map = ops::axis_map(graph, ir::OpId(i));
      const bool product = graph.ops()[i].name == "einsum";
      const Result<sharding::Strategy> by_rows =
          product ? sharding::parse_strategy("data=b", map, stage.mesh)
                  : Result<sharding::Strategy>(sharding::Strategy{});
      EXPECT_TRUE(by_rows) << by_rows.error().text();
      stage.strategies.push_back(*by_rows);
    }
    for (std::size_t v = 0; v < graph.values().size(); ++v) {
      if (graph.values()[v].kind != ir::ValueKind::kOpResult &&
          graph.values()[v].kind != ir::ValueKind::kConstant) {
        stage.layouts[ir::ValueId(v)] = {};
      }
    }
    stage.recompute = {
        {graph.ops()[0].layer.empty() ? "h.1" : graph.ops()[0].layer, Recompute::kWhole}};
    return stage;
  }

  /// Error of the example after `change` was made to its part "pipeline".
  std::string error_after(const std::function<void(json&)>& change) const {
    json document = json::parse(text_);
    change(document["pipeline"]);
    const Result<Plan> plan = from_json(document.dump(), step_, "plan.json");
    return plan ? "" : plan.error().text();
  }

  ir::Graph step_ = make_step();
  Plan plan_{};
  std::string text_{};
};

TEST_F(PipelineJson, RoundTrips) {
  for (const auto& [schedule, weights_later] :
       std::vector<std::pair<std::string, bool>>{{"1f1b", false}, {"zb_h1", true}}) {
    remake(schedule, weights_later);
    const Status good = check(plan_, step_);
    ASSERT_TRUE(good) << good.error().text();
    const Result<Plan> again = from_json(text_, step_, "plan.json");
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_EQ(to_json(*again, step_), text_);
    const Pipeline read = pipeline_of(*again);
    const Pipeline written = pipeline_of(plan_);
    EXPECT_EQ(read.schedule, written.schedule);
    EXPECT_EQ(read.devices, written.devices);
    EXPECT_EQ(read.stage_of, written.stage_of);
    EXPECT_EQ(read.weights_later, written.weights_later);
    EXPECT_EQ(read.steps, written.steps);
    EXPECT_EQ(read.pipelines, written.pipelines);
    ASSERT_EQ(read.stages.size(), written.stages.size());
    for (std::size_t s = 0; s < read.stages.size(); ++s) {
      EXPECT_EQ(read.stages[s].planner, written.stages[s].planner);
      EXPECT_EQ(read.stages[s].graph_hash, written.stages[s].graph_hash);
      EXPECT_EQ(read.stages[s].mesh, written.stages[s].mesh);
      EXPECT_EQ(read.stages[s].cluster, written.stages[s].cluster);
      EXPECT_EQ(read.stages[s].strategies, written.stages[s].strategies);
      EXPECT_EQ(read.stages[s].layouts, written.stages[s].layouts);
      EXPECT_EQ(read.stages[s].recompute, written.stages[s].recompute);
    }
  }
}

TEST_F(PipelineJson, ReadsAsPeopleWouldWriteIt) {
  const json pipeline = json::parse(text_)["pipeline"];
  EXPECT_EQ(pipeline["schedule"], "1f1b");
  EXPECT_EQ(pipeline["groups"], 2);
  EXPECT_FALSE(pipeline.contains("steps"));
  EXPECT_FALSE(pipeline.contains("weights_later"));
  EXPECT_FALSE(pipeline.contains("pipelines"));
  const json cut = json::array({{{"from", "einsum.0"}, {"layer", "h.0"}, {"stage", 0}},
                                {{"from", "einsum.2"}, {"layer", "h.1"}, {"stage", 1}}});
  EXPECT_EQ(pipeline["cut"], cut);
  EXPECT_EQ(pipeline["stages"][0]["mesh"], json::array({{{"axis", "data"}, {"size", 2}}}));
  EXPECT_EQ(pipeline["stages"][0]["strategies"]["h.0"]["einsum.0"], "data=b");
}

TEST_F(PipelineJson, WrongFieldsOfThePipeline) {
  EXPECT_EQ(error_after([](json& p) { p.erase("schedule"); }),
            "plan.json: pipeline: field \"schedule\" is missing");
  EXPECT_EQ(error_after([](json& p) { p["schedule"] = 1; }),
            "plan.json: pipeline / schedule: expected a text, found 1");
  EXPECT_EQ(error_after([](json& p) { p["groups"] = 0; }),
            "plan.json: pipeline / groups: expected a whole number from 1 to 4, found 0");
  EXPECT_EQ(error_after([](json& p) { p["groups"] = 5; }),
            "plan.json: pipeline / groups: expected a whole number from 1 to 4, found 5");
  EXPECT_EQ(error_after([](json& p) { p.erase("groups"); }),
            "plan.json: pipeline: field \"groups\" is missing");
  EXPECT_EQ(
      error_after([](json& p) { p["steps"] = 0; }),
      "plan.json: pipeline / steps: expected a whole number from 1 to 1099511627776, found 0");
  EXPECT_EQ(error_after([](json& p) { p["weights_later"] = 1; }),
            "plan.json: pipeline / weights_later: expected true or false, found 1");
  EXPECT_EQ(error_after([](json& p) { p["pipelines"] = 3; }),
            "plan.json: pipeline / pipelines: expected a whole number from 1 to 2, found 3");
  EXPECT_EQ(error_after([](json& p) { p["shedule"] = "1f1b"; }),
            "plan.json: pipeline: unknown field \"shedule\"; did you mean \"schedule\"?");
  EXPECT_EQ(error_after([](json& p) { p = 3; }),
            "plan.json: pipeline: expected an object, found 3");
}

TEST_F(PipelineJson, WrongCuts) {
  EXPECT_EQ(error_after([](json& p) { p.erase("cut"); }),
            "plan.json: pipeline: field \"cut\" is missing");
  EXPECT_EQ(error_after([](json& p) { p["cut"] = "h.1"; }),
            "plan.json: pipeline / cut: expected a list, found \"h.1\"");
  EXPECT_EQ(error_after([](json& p) { p["cut"][1]["from"] = "relu.2"; }),
            "plan.json: pipeline / cut / 1: op 2 is \"einsum.2\", not \"relu.2\"");
  EXPECT_THAT(
      error_after([](json& p) { p["cut"][1]["from"] = "einsum.99"; }),
      StartsWith("plan.json: pipeline / cut / 1: there is no op 99: the training step has"));
  EXPECT_EQ(error_after([](json& p) { p["cut"][1].erase("from"); }),
            "plan.json: pipeline / cut / 1: field \"from\" is missing");
  EXPECT_EQ(error_after([](json& p) { p["cut"][1]["stage"] = -1; }),
            "plan.json: pipeline / cut / 1 / stage: expected a whole number from 0 to 1048576, "
            "found -1");
  EXPECT_EQ(error_after([](json& p) { std::swap(p["cut"][0], p["cut"][1]); }),
            "plan.json: pipeline / cut / 1: the cut must name ops in their order");
  EXPECT_EQ(error_after([](json& p) { p["cut"][1]["stage"] = 2; }),
            "plan.json: pipeline: stage 1 has no op");
  EXPECT_EQ(error_after([](json& p) { p["cut"][1]["stag"] = 2; }),
            "plan.json: pipeline / cut / 1: unknown field \"stag\"; did you mean \"stage\"?");
  EXPECT_THAT(error_after([](json& p) {
                p["cut"][0]["stage"] = 1;
                p["cut"][1]["stage"] = 0;
              }),
              EndsWith("is in stage 0 and reads a value of stage 1"));
  EXPECT_EQ(error_after([](json& p) { p["cut"].erase(1); }),
            "plan.json: pipeline / stages: it has 2 stages, the cut makes 1");
}

TEST_F(PipelineJson, WrongStages) {
  EXPECT_EQ(error_after([](json& p) { p.erase("stages"); }),
            "plan.json: pipeline: field \"stages\" is missing");
  EXPECT_EQ(error_after([](json& p) { p["stages"].erase(1); }),
            "plan.json: pipeline / stages: it has 1 stages, the cut makes 2");
  EXPECT_EQ(error_after([](json& p) { p["stages"][0] = 1; }),
            "plan.json: pipeline / stages / 0: expected an object, found 1");
  EXPECT_EQ(error_after([](json& p) { p["stages"][1].erase("mesh"); }),
            "plan.json: pipeline / stages / 1: field \"mesh\" is missing");
  EXPECT_EQ(error_after([](json& p) { p["stages"][1]["mesh"][0]["size"] = 8; }),
            "plan.json: pipeline / stages / 1 / mesh / 0 / size: expected a whole number from 1 to "
            "4, found 8");
  EXPECT_EQ(error_after([](json& p) { p["stages"][1]["mesh"][0]["size"] = 4; }),
            "plan.json: pipeline: its stages have 6 devices, 1 stages on each, of 4");
  EXPECT_EQ(error_after([](json& p) { p["stages"][0]["recompute"] = json::array({"h.1"}); }),
            "plan.json: pipeline / stages / 0 / recompute: no block is named \"h.1\"; did you mean "
            "\"h.0\"?");
  EXPECT_THAT(
      error_after([](json& p) { p["stages"][0]["strategies"]["h.0"]["einsum.0"] = "data=z"; }),
      StartsWith("plan.json: pipeline / stages / 0 / strategies / h.0 / einsum.0: no axis "
                 "of this op is named \"z\""));
  EXPECT_THAT(error_after([](json& p) { p["stages"][1]["layouts"]["h.0.weight"] = "[data, -]"; }),
              StartsWith("plan.json: pipeline / stages / 1 / layouts: the training step has no "
                         "parameter, buffer, state, accumulator or input named \"h.0.weight\""));
  EXPECT_THAT(
      error_after([](json& p) { p["stages"][0]["cluster"] = 1; }),
      StartsWith("plan.json: pipeline / stages / 0: unknown field \"cluster\"; there are "));
}

// Every value in turn is replaced by values of other types and hostile sizes: never a crash, and
// where it is refused, by a place in the file.
TEST_F(PipelineJson, EveryFieldIsChecked) {
  const json original = json::parse(text_);
  const std::vector<json> replacements{
      nullptr, true, -1, 0, INT64_MIN, UINT64_MAX, 1e300, "", json::array(), json::object()};
  std::size_t rejected = 0;
  const json flat = original["pipeline"].flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (json::json_pointer at(pointer);; at.pop_back()) {
      for (const json& replacement : replacements) {
        json document = original;
        document["pipeline"][at] = replacement;
        const Result<Plan> plan = from_json(document.dump(), step_, "plan.json");
        if (!plan) {
          EXPECT_THAT(plan.error().location, StartsWith("plan.json"));
          ++rejected;
        }
      }
      if (at.empty()) {
        break;
      }
    }
  }
  EXPECT_GT(rejected, flat.size() * replacements.size() / 2);
}

}  // namespace
}  // namespace shardplan::plan
