#include "shardplan/training/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph_builder.h"
#include "interpreter.h"
#include "shardplan/ops/op.h"
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

constexpr std::int64_t kVocabulary = 10;

/// A language model whose embedding is its head, with two layers and a residual that skips both.
ir::Graph tied(std::int64_t rows) {
  constexpr std::int64_t kHidden = 4;
  GraphBuilder b;
  const ir::ValueId table = b.parameter("table", {kVocabulary, kHidden});
  const ir::ValueId ids = b.indices("ids", {rows});
  const ir::ValueId labels = b.indices("labels", {rows});
  const ir::ValueId embedded = b.op("embedding", {table, ids});
  ir::ValueId x = embedded;
  for (const char* const name : {"h.0", "h.1"}) {
    b.layer = name;
    const ir::ValueId w = b.parameter(std::string(name) + ".weight", {kHidden, kHidden});
    x = b.op("add", {x, b.op("tanh", {b.einsum("bk,kn->bn", x, w)})});
  }
  b.layer = "head";
  x = b.op("add", {x, embedded});
  return b.loss(b.cross_entropy(b.einsum("bk,vk->bv", x, table), labels));
}

/// Stages by chance: each begins where the one before ends.
std::vector<int> random_cut(const ir::Graph& step, int stages, std::mt19937& random) {
  std::vector<std::size_t> forward;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    if (step.ops()[i].phase == ir::Phase::kForward) {
      forward.push_back(i);
    }
  }
  std::set<std::size_t> begins;
  while (begins.size() + 1 < static_cast<std::size_t>(stages)) {
    begins.insert(forward[1 + random() % (forward.size() - 1)]);
  }
  std::vector<int> cut(step.ops().size(), 0);
  for (const std::size_t i : forward) {
    cut[i] = static_cast<int>(std::distance(begins.begin(), begins.upper_bound(i)));
  }
  return cut;
}

/// Numbers by chance for all inputs and parameters; whole numbers below `limit` for integers.
std::map<std::string, Tensor> random_contents(const ir::Graph& step,
                                              std::int64_t limit,
                                              std::mt19937& random) {
  std::map<std::string, Tensor> contents;
  std::normal_distribution<double> normal;
  for (const ir::Value& value : step.values()) {
    if (value.kind != ir::ValueKind::kInput && value.kind != ir::ValueKind::kParameter) {
      continue;
    }
    Tensor content = tensor(value.type.shape);
    for (double& x : content.data) {
      x = ir::is_floating(value.type.dtype)
              ? normal(random)
              : static_cast<double>(random() % static_cast<unsigned>(limit));
    }
    contents[value.name] = std::move(content);
  }
  return contents;
}

void fill(Interpreter& interpreter,
          const ir::Graph& graph,
          const std::map<std::string, Tensor>& contents) {
  for (const ir::Value& value : graph.values()) {
    if (value.kind == ir::ValueKind::kInput || value.kind == ir::ValueKind::kParameter) {
      interpreter.set(value.name, contents.at(value.name));
    }
  }
}

/// What one passes on and another waits for comes in one order at both ends.
void expect_one_order(const StagedStep& staged) {
  std::map<std::tuple<int, int, ir::Phase>, std::vector<std::int64_t>> sent;
  std::map<std::tuple<int, int, ir::Phase>, std::vector<std::int64_t>> received;
  for (std::size_t s = 0; s < staged.stages.size(); ++s) {
    const Stage& stage = staged.stages[s];
    EXPECT_TRUE(std::is_sorted(stage.order.begin(), stage.order.end()) ||
                stage.weights_begin.valid());
    const int here = static_cast<int>(s);
    for (const ir::Op& op : stage.graph.ops()) {
      if (op.name == "send") {
        const auto to = static_cast<int>(op.attributes.integer("to"));
        sent[{here, to, op.phase}].push_back(op.attributes.integer("message"));
      } else if (op.name == "receive") {
        const auto from = static_cast<int>(op.attributes.integer("from"));
        received[{from, here, op.phase}].push_back(op.attributes.integer("message"));
      }
    }
  }
  EXPECT_EQ(sent, received);
}

/// Every op in the stage that the cut gives it, or wherever it is needed.
void expect_all_ops(const ir::Graph& step, const StagedStep& staged) {
  std::vector<int> places(step.ops().size(), 0);
  for (const Stage& stage : staged.stages) {
    ASSERT_EQ(stage.op_of.size(), stage.graph.ops().size());
    for (std::size_t i = 0; i < stage.op_of.size(); ++i) {
      if (stage.op_of[i].valid()) {
        EXPECT_EQ(stage.graph.ops()[i].name, step.op(stage.op_of[i]).name);
        ++places[stage.op_of[i].index()];
      }
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_GE(places[i], 1) << ops::describe(step.ops()[i]);
  }
}

/// Loss and gradients of stages that pass messages equal those of the whole step.
void check_cut(const ir::Graph& step,
               const std::vector<int>& cut,
               bool weights_later,
               std::int64_t limit,
               std::mt19937& random) {
  const auto staged = split_into_stages(step, cut, weights_later);
  ASSERT_TRUE(staged) << staged.error().text();
  expect_one_order(*staged);
  expect_all_ops(step, *staged);
  const std::map<std::string, Tensor> contents = random_contents(step, limit, random);
  Interpreter whole(step);
  fill(whole, step, contents);
  whole.run();
  std::vector<Interpreter> parts;
  for (const Stage& stage : staged->stages) {
    parts.emplace_back(stage.graph);
    fill(parts.back(), stage.graph, contents);
    parts.back().clear_accumulators();
  }
  Interpreter::Messages messages;
  for (Interpreter& part : parts) {
    part.run(ir::Phase::kForward, &messages);
  }
  std::for_each(parts.rbegin(), parts.rend(), [&](Interpreter& part) {
    part.run(ir::Phase::kBackward, &messages);
  });
  std::size_t losses = 0;
  std::set<std::string> gradients;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const ir::Graph& graph = staged->stages[s].graph;
    if (!graph.outputs.empty()) {
      ++losses;
      EXPECT_EQ(parts[s].value(graph.outputs[0]).data, whole.value(step.outputs[0]).data);
    }
    for (const ir::Write& gradient : graph.gradients) {
      if (graph.value(gradient.target).kind != ir::ValueKind::kParameter) {
        continue;
      }
      const std::string& name = graph.value(gradient.target).name;
      EXPECT_TRUE(gradients.insert(name).second) << name << " belongs to one stage";
      for (const ir::Write& other : step.gradients) {
        if (step.value(other.target).name == name) {
          EXPECT_EQ(parts[s].value(gradient.value).data, whole.value(other.value).data) << name;
        }
      }
    }
  }
  EXPECT_EQ(losses, 1U);
  std::set<std::string> all;
  for (const ir::Write& gradient : step.gradients) {
    if (step.value(gradient.target).kind == ir::ValueKind::kParameter) {
      all.insert(step.value(gradient.target).name);
    }
  }
  EXPECT_EQ(gradients, all);
}

TEST(StagesProperty, RandomCutsComputeWhatTheWholeStepDoes) {
  std::mt19937 random(73);
  for (const ir::Graph& forward : {mlp(8), tied(6)}) {
    const ir::Graph step = build_training_step(forward, {}).value();
    for (int round = 0; round < 12; ++round) {
      const int stages = 2 + static_cast<int>(random() % 3);
      const std::vector<int> cut = random_cut(step, stages, random);
      check_cut(step, cut, round % 2 == 1, kVocabulary, random);
    }
  }
}

TEST(Stages, WrongCutsAreNamed) {
  const ir::Graph step = step_of(1);
  const auto error = [&](const std::vector<int>& cut) {
    const auto staged = split_into_stages(step, cut);
    return staged ? std::string() : staged.error().text();
  };
  EXPECT_THAT(error({0, 1}), HasSubstr("pipeline: 2 ops have a stage, of "));
  std::vector<int> cut = cut_in_two(step);
  cut[0] = 3;
  EXPECT_EQ(error(cut), "pipeline: stage 2 has no op");
  cut[0] = -1;
  EXPECT_THAT(error(cut), HasSubstr("stage -1 does not exist"));
  cut = cut_in_two(step);
  for (int& stage : cut) {
    stage = 1 - stage;
  }
  EXPECT_THAT(error(cut), HasSubstr("is in stage 0 and reads a value of stage 1"));
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
    const auto of_parameters = [](const ir::Graph& graph) {
      return std::count_if(
          graph.gradients.begin(), graph.gradients.end(), [&](const ir::Write& gradient) {
            return graph.value(gradient.target).kind == ir::ValueKind::kParameter;
          });
    };
    EXPECT_EQ(of_parameters(copy), first ? of_parameters(alone) : 0);
    EXPECT_EQ(static_cast<std::int64_t>(copy.gradients.size()) - of_parameters(copy),
              static_cast<std::int64_t>(alone.gradients.size()) - of_parameters(alone));
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
