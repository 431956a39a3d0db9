#include "shardplan/training/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "graph_builder.h"
#include "shardplan/training/training.h"

namespace shardplan::training {
namespace {

using ::testing::HasSubstr;

ir::Graph step_of(std::int64_t microbatches, double clip_norm = 0) {
  Recipe recipe;
  recipe.microbatches = microbatches;
  recipe.clip_norm = clip_norm;
  return build_training_step(mlp(8), recipe).value();
}

/// Two stages: the second from the op that reads "down.weight" on.
std::vector<int> cut_in_two(const ir::Graph& step) {
  std::vector<int> stages(step.ops().size(), 0);
  int stage = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::vector<ir::ValueId>& inputs = step.ops()[i].inputs;
    const bool down = std::any_of(inputs.begin(), inputs.end(), [&](ir::ValueId input) {
      return step.value(input).name == "down.weight";
    });
    stage = down && step.ops()[i].phase == ir::Phase::kForward ? 1 : stage;
    stages[i] = stage;
  }
  return stages;
}

std::int64_t count(const ir::Graph& graph, const std::string& op) {
  return std::count_if(graph.ops().begin(), graph.ops().end(), [&](const ir::Op& other) {
    return other.name == op;
  });
}

std::vector<std::string> parameters(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Value& value : graph.values()) {
    if (value.kind == ir::ValueKind::kParameter) {
      names.push_back(value.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Stages, OfSeveralPipelinesAreCopiesThatOnlyTheFirstUpdates) {
  constexpr int kPipelines = 3;
  const ir::Graph step = step_of(4);
  const auto one = split_into_stages(step, cut_in_two(step));
  const auto copied = split_into_stages(step, cut_in_two(step), false, kPipelines);
  ASSERT_TRUE(one) << one.error().text();
  ASSERT_TRUE(copied) << copied.error().text();
  ASSERT_EQ(copied->stages.size(), 2U * kPipelines);
  for (std::size_t stage = 0; stage < copied->stages.size(); ++stage) {
    SCOPED_TRACE(stage);
    const ir::Graph& alone = one->stages[stage % 2].graph;
    const ir::Graph& copy = copied->stages[stage].graph;
    const bool first = stage < 2;
    EXPECT_EQ(parameters(copy), parameters(alone));
    EXPECT_EQ(copy.outputs.size(), alone.outputs.size());
    EXPECT_EQ(count(copy, "accumulate"), count(alone, "accumulate"));
    EXPECT_EQ(count(copy, "einsum"), count(alone, "einsum"));
    EXPECT_EQ(count(copy, "adam_update"), first ? count(alone, "adam_update") : 0);
    EXPECT_EQ(copy.gradients.empty(), !first);
    EXPECT_EQ(copy.microbatches, 4);
    for (std::size_t v = 0; v < copy.values().size(); ++v) {
      const ir::ValueId original = copied->stages[stage].value_of[v];
      if (copy.values()[v].kind == ir::ValueKind::kParameter) {
        EXPECT_EQ(step.value(original).name, copy.values()[v].name);
      }
    }
  }
}

// Passes talk within a pipeline; of each parameter the sum goes to the first and the weight back.
TEST(Stages, CopiesMeetInTheUpdateOnly) {
  const ir::Graph step = step_of(2, 1.0);
  const auto staged = split_into_stages(step, cut_in_two(step), false, 2);
  ASSERT_TRUE(staged) << staged.error().text();
  std::map<std::pair<int, int>, int> updates;
  for (const Message& message : staged->messages) {
    const bool within = message.from / 2 == message.to / 2;
    EXPECT_TRUE(within || message.phase == ir::Phase::kUpdate);
    EXPECT_TRUE(within || message.from % 2 == message.to % 2);
    updates[{message.from, message.to}] += message.phase == ir::Phase::kUpdate ? 1 : 0;
  }
  EXPECT_EQ((updates[{2, 0}]), 2);  // the sums of up.weight and up.bias
  EXPECT_EQ((updates[{0, 2}]), 2);
  EXPECT_EQ((updates[{3, 1}]), 1);
  EXPECT_EQ((updates[{1, 3}]), 1);
  EXPECT_EQ((updates[{0, 1}] + updates[{1, 0}]), 2);  // the norm, and its limit back
  EXPECT_EQ((updates[{2, 3}] + updates[{3, 2}]), 0);
}

TEST(Stages, OfSeveralPipelinesThatCannotBeAreRefused) {
  const ir::Graph step = step_of(2);
  const auto few = split_into_stages(step, cut_in_two(step), false, 4);
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().text(), HasSubstr("4 pipelines share 2 microbatches"));

  ir::Graph counting = step_of(2);
  ir::Value buffer = counting.value(counting.ops().front().outputs.front());
  const ir::ValueId made = counting.ops().front().outputs.front();
  buffer.kind = ir::ValueKind::kBuffer;
  buffer.name = "running";
  buffer.producer = {};
  counting.writes.push_back({counting.add_value(buffer), made});
  const auto written = split_into_stages(counting, cut_in_two(counting), false, 2);
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().text(), HasSubstr("every pass writes 'running'"));
}

}  // namespace
}  // namespace shardplan::training
