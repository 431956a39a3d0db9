// The published planners of pipelines on models: their plans are plans, and shardplan is never
// behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "planners_testing.h"
#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/step_layers.h"
#include "shardplan/planners/planner.h"
#include "shardplan/training/stages.h"

namespace shardplan::planners {
namespace {

ir::Graph microbatched(const std::string& model, const training::Recipe& recipe) {
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, recipe);
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

training::Recipe four_microbatches() {
  training::Recipe recipe;
  recipe.microbatches = 4;
  return recipe;
}

PlanRequest request_for(const ir::Graph& step, const std::string& cluster) {
  PlanRequest request{.step = step};
  request.recipe = four_microbatches();
  auto loaded = cluster::load_cluster(cluster);
  EXPECT_TRUE(loaded);
  request.cluster = *loaded;
  return request;
}

constexpr std::string_view kGpt = "gpt:layers=4,hidden=64,heads=4,seq=32,batch=8,vocab=128";
constexpr std::string_view kMlp = "mlp:layers=4,hidden=512,batch=64";

class Published : public ::testing::TestWithParam<std::pair<std::string_view, std::string_view>> {};

TEST_P(Published, PlansAreCheckedReproducedAndNeverAhead) {
  const auto& [model, cluster] = GetParam();
  const ir::Graph step = microbatched(std::string(model), four_microbatches());
  const PlanRequest request = request_for(step, std::string(cluster));
  const auto own = find_planner("shardplan").value()->plan(request);
  ASSERT_TRUE(own) << own.error().text();
  PlanRequest brief = request;
  brief.time_limit = 0.3;  // for the integer program, which others need less than
  int plans = 0;
  for (const LayerPlannerInfo& method : layer_planners()) {
    SCOPED_TRACE(method.name);
    const auto planner = find_planner(method.name);
    ASSERT_TRUE(planner);
    const auto result = (*planner)->plan(brief);
    ASSERT_TRUE(result) << result.error().text();
    if (result->status == SearchStatus::kNoPlanFound) {
      EXPECT_TRUE(result->explanation.starts_with(method.name)) << result->explanation;
      continue;
    }
    ++plans;
    EXPECT_EQ(result->best.planner, method.name);
    const Status checked = plan::check(result->best, step);
    ASSERT_TRUE(checked) << checked.error().text();
    const auto again = evaluate(result->best, step);
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_DOUBLE_EQ(again->simulation.step_seconds, result->best.prediction.step_seconds);
    EXPECT_EQ(again->simulation.peak_bytes, result->best.prediction.peak_bytes);
    // Stale weights save time that no plan has which computes what one device does.
    const std::optional<plan::Pipeline>& pipeline = result->best.pipeline;
    if (!pipeline || pipeline->steps == 1) {
      EXPECT_LE(own->best.prediction.step_seconds, result->best.prediction.step_seconds);
    }
    const auto read = plan::from_json(plan::to_json(result->best, step), step, "plan");
    ASSERT_TRUE(read) << read.error().text();
    const auto reread = evaluate(*read, step);
    ASSERT_TRUE(reread) << reread.error().text();
    EXPECT_DOUBLE_EQ(reread->simulation.step_seconds, result->best.prediction.step_seconds);
  }
  EXPECT_GE(plans, 3);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         Published,
                         ::testing::Values(std::pair(kGpt, std::string_view("8xA100-80GB")),
                                           std::pair(kMlp, std::string_view("8xA100-80GB")),
                                           std::pair(kGpt, std::string_view("local:4")),
                                           std::pair(kMlp, std::string_view("local:4"))));

/// PipeDream and PipeDream-2BW run without a flush where the step allows it, and say where it does
/// not; shardplan never does.
TEST(Published, AsynchronousMethodsHaveTheirOwnSchedules) {
  const auto plan = [](std::string_view planner,
                       std::string_view model,
                       std::int64_t microbatches,
                       double clip = 0) {
    training::Recipe recipe;
    recipe.microbatches = microbatches;
    recipe.clip_norm = clip;
    const ir::Graph step = microbatched(std::string(model), recipe);
    PlanRequest request = request_for(step, "local:4");
    request.recipe = recipe;
    // Links so slow that every method cuts the model.
    request.cluster.levels.front().bandwidth = 1e7;
    request.cluster.device.memory_bandwidth = 1e9;
    auto result = find_planner(planner).value()->plan(request);
    EXPECT_TRUE(result) << result.error().text();
    if (result->status != SearchStatus::kNoPlanFound) {
      const Status checked = plan::check(result->best, step);
      EXPECT_TRUE(checked) << checked.error().text();
    }
    return std::move(*result);
  };
  for (const auto& [planner, microbatches] :
       {std::pair("pipedream", 1), std::pair("pipedream_2bw", 4)}) {
    SCOPED_TRACE(planner);
    const PlanResult own = plan(planner, kMlp, microbatches);
    ASSERT_TRUE(own.best.pipeline) << own.explanation;
    EXPECT_EQ(own.best.pipeline->schedule, planner);
    EXPECT_GT(own.best.pipeline->steps, 1);
    EXPECT_EQ(own.explanation, "");
    const PlanResult clipped = plan(planner, kMlp, microbatches, 1.0);
    ASSERT_TRUE(clipped.best.pipeline) << clipped.explanation;
    EXPECT_EQ(clipped.best.pipeline->schedule, "1f1b");
    EXPECT_EQ(clipped.best.pipeline->steps, 1);
    EXPECT_NE(clipped.explanation.find("with a flush, since"), std::string::npos);
    EXPECT_NE(clipped.explanation.find("clipped"), std::string::npos) << clipped.explanation;
    EXPECT_GT(clipped.best.prediction.step_seconds, own.best.prediction.step_seconds);
    const PlanResult ours = plan("shardplan", kMlp, microbatches);
    EXPECT_TRUE(!ours.best.pipeline || ours.best.pipeline->steps == 1);
  }
  const PlanResult several = plan("pipedream", kMlp, 4);
  ASSERT_TRUE(several.best.pipeline) << several.explanation;
  EXPECT_EQ(several.best.pipeline->schedule, "1f1b");
  EXPECT_NE(several.explanation.find("every microbatch"), std::string::npos) << several.explanation;
}

TEST(Published, OneDeviceAndAMeshAreRefusedByName) {
  const ir::Graph step = microbatched(std::string(kMlp), four_microbatches());
  for (const LayerPlannerInfo& method : layer_planners()) {
    const PlannerInfo& planner = **find_planner(method.name);
    const auto alone = planner.plan(request_for(step, "local:1"));
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->status, SearchStatus::kNoPlanFound);
    EXPECT_TRUE(alone->explanation.starts_with(method.name));
    PlanRequest meshed = request_for(step, "local:4");
    meshed.mesh = cluster::DeviceMesh{{{"data", 4}}};
    const auto refused = planner.plan(meshed);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, SearchStatus::kNoPlanFound);
  }
}

TEST(StepLayers, EdgesAreWhatStagesSend) {
  const ir::Graph step = microbatched(std::string(kGpt), four_microbatches());
  const auto made = layers_of(request_for(step, "local:4"));
  ASSERT_TRUE(made) << made.error().text();
  const problem::LayerGraph& graph = made->graph;
  ASSERT_EQ(graph.layers.size(), 6U);  // the embedding, four blocks, and the head
  // A chain that hands on a microbatch of 2 · 32 · 64 floats; the last block's goes to the head.
  std::map<std::pair<int, int>, double> bytes;
  for (const problem::LayerEdge& edge : graph.edges) {
    bytes[{edge.source, edge.target}] = edge.bytes;
  }
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_GE((bytes[{layer, layer + 1}]), 2 * 32 * 64 * 4.0) << layer;
  }
  // Cut in two anywhere, the stages send what the edges over the cut carry, each value once.
  for (std::size_t at = 1; at < made->segments.size(); ++at) {
    const auto staged =
        training::split_into_stages(step, stages_of_segments(step, made->segments, {0, at}));
    ASSERT_TRUE(staged) << staged.error().text();
    double sent = 0;
    for (const training::Message& message : staged->messages) {
      sent += message.phase == ir::Phase::kForward && message.value.valid()
                  ? static_cast<double>(step.type(message.value).bytes())
                  : 0;
    }
    double cut = 0;
    for (const problem::LayerEdge& edge : graph.edges) {
      const bool over = edge.source < static_cast<int>(at) && edge.target >= static_cast<int>(at);
      cut += over ? edge.bytes : 0;
    }
    EXPECT_LE(sent, cut);
    EXPECT_GT(sent, 0);
  }
}

TEST(StepLayers, WeightsAndTimesAddUp) {
  const ir::Graph step = microbatched(std::string(kGpt), four_microbatches());
  const PlanRequest request = request_for(step, "8xA100-80GB");
  const auto made = layers_of(request);
  ASSERT_TRUE(made) << made.error().text();
  const cost::CostModel one(request.cluster, {});
  std::vector<std::size_t> starts;
  for (std::size_t layer = 0; layer < made->segments.size(); ++layer) {
    starts.push_back(layer);
  }
  const auto staged =
      training::split_into_stages(step, stages_of_segments(step, made->segments, starts));
  ASSERT_TRUE(staged) << staged.error().text();
  double seconds = 0;
  for (const training::Stage& stage : staged->stages) {
    for (std::size_t i = 0; i < stage.graph.ops().size(); ++i) {
      const ir::Op& op = stage.graph.ops()[i];
      const bool timed =
          op.phase != ir::Phase::kUpdate && op.name != "send" && op.name != "receive";
      seconds += timed ? kernel_seconds(stage.graph, ir::OpId(i), one) : 0;
    }
  }
  double time = 0;
  double weights = 0;
  for (const problem::Layer& layer : made->graph.layers) {
    time += layer.choices.front().time;
    weights += layer.choices.front().parameter_bytes;
  }
  EXPECT_NEAR(time, seconds, 1e-9 * seconds);
  EXPECT_GE(weights, static_cast<double>(step.parameter_count()) * 4);
}

}  // namespace
}  // namespace shardplan::planners
