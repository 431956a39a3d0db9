#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "shardplan/frontends/frontends.h"
#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"

namespace shardplan::lower {
namespace {

using sharding::CollectiveKind;
using sharding::ShardingSpec;

ir::Graph step_of(const std::string& model, std::int64_t microbatches = 1) {
  training::Recipe recipe;
  recipe.microbatches = microbatches;
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, recipe);
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

constexpr const char* kGpt = "gpt:layers=2,hidden=16,heads=2,seq=8,batch=4,vocab=32";

plan::Plan whole_plan(const ir::Graph& step, std::int64_t devices) {
  plan::Plan plan;
  plan.mesh.axes = {{"data", devices}};
  plan.strategies.resize(step.ops().size());
  return plan;
}

Program lowered(const ir::Graph& step, const plan::Plan& plan, bool keep_gradients = false) {
  auto program = lower(
      step,
      plan,
      [](const sharding::ReshardStep&, const ir::TensorType& type) {
        return static_cast<double>(type.bytes());
      },
      LowerOptions{keep_gradients});
  EXPECT_TRUE(program) << program.error().text();
  return std::move(*program);
}

std::map<CollectiveKind, int> collectives(const std::vector<Step>& steps) {
  std::map<CollectiveKind, int> count;
  for (const Step& step : steps) {
    if (step.kind == StepKind::kCollective) {
      ++count[step.collective.kind];
    }
  }
  return count;
}

/// Every value is defined before it is read, every storage that is no resident, loss or kept
/// gradient ends exactly once, and nothing reads it afterwards.
void expect_sound(const Program& program) {
  std::map<std::int32_t, int> ends;
  std::vector<bool> defined(program.values.size(), false);
  std::vector<bool> kept(program.values.size(), false);
  for (const Resident& resident : program.residents) {
    defined[resident.local.index()] = true;
    kept[program.root(resident.local).index()] = true;
  }
  for (const Resident& gradient : program.kept_gradients) {
    kept[program.root(gradient.local).index()] = true;
  }
  kept[program.root(program.loss).index()] = true;
  for (const std::vector<Step>* steps : {&program.microbatch, &program.update}) {
    for (const Step& step : *steps) {
      for (const LocalId input : step.inputs) {
        ASSERT_TRUE(defined[input.index()]) << "%" << input.value << " is read before it is made";
        ASSERT_EQ(ends[program.root(input).value], 0)
            << "%" << input.value << " is read after its end";
      }
      if (step.kind == StepKind::kFree) {
        ASSERT_FALSE(kept[program.root(step.inputs[0]).index()]);
        ++ends[program.root(step.inputs[0]).value];
      } else if (step.kind == StepKind::kWrite) {
        kept[program.root(step.inputs[0]).index()] = true;
      } else {
        for (const LocalId output : step.outputs) {
          defined[output.index()] = true;
        }
      }
    }
  }
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const LocalId root = program.root(LocalId(v));
    if (!kept[root.index()]) {
      EXPECT_EQ(ends[root.value], 1) << "storage of %" << v;
    }
  }
}

/// Here and not in ops, which knows no models.
TEST(AxisMaps, AreThoseOfTheOps) {
  const ir::Graph step = step_of("llama:layers=3,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32");
  const ops::AxisMaps maps(step);
  std::size_t kinds = 0;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::OpId op(i);
    EXPECT_EQ(ops::to_string(maps[op]), ops::to_string(ops::axis_map(step, op)));
    kinds = std::max(kinds, maps.kind(op) + 1);
  }
  EXPECT_LT(kinds, step.ops().size() / 3);
}

TEST(Lower, WholePlanHasNoCollectivesAndGlobalShapes) {
  const ir::Graph step = step_of(kGpt);
  const Program program = lowered(step, whole_plan(step, 2), true);
  expect_sound(program);
  EXPECT_TRUE(collectives(program.microbatch).empty());
  EXPECT_TRUE(collectives(program.update).empty());
  for (const LocalValue& value : program.values) {
    EXPECT_EQ(value.type, step.type(value.global));
  }
  std::size_t parameters = 0;
  for (const ir::Value& value : step.values()) {
    parameters += value.kind == ir::ValueKind::kParameter ? 1 : 0;
  }
  EXPECT_EQ(program.kept_gradients.size(), parameters);
}

TEST(Lower, ParametersCutOverTheDataAxisAreGatheredForEachPassAnew) {
  const ir::Graph step = step_of("mlp:layers=2,hidden=8,batch=4");
  plan::Plan plan = whole_plan(step, 2);
  int cut = 0;
  for (std::size_t v = 0; v < step.values().size(); ++v) {
    const ir::Value& value = step.values()[v];
    if (value.kind == ir::ValueKind::kParameter && value.type.rank() == 2) {
      ShardingSpec spec;
      spec.shard(0, 0);
      plan.layouts[ir::ValueId(v)] = spec;
      ++cut;
    }
  }
  const Program program = lowered(step, plan);
  expect_sound(program);
  // Once in the forward pass; once more where the backward pass reads the weight, which it does in
  // every layer but the first (nothing needs the gradient of the input). The update, whole in this
  // plan, is a reader of its own.
  EXPECT_EQ(collectives(program.microbatch)[CollectiveKind::kAllGather], cut + cut - 1);
  EXPECT_EQ(collectives(program.update)[CollectiveKind::kAllGather], cut);
  // The new value is cut back to the layout in which it is stored.
  EXPECT_EQ(collectives(program.update)[CollectiveKind::kSlice], cut);
}

TEST(Lower, RecomputedBlocksRunAgainAndKeepNoInnerValues) {
  const ir::Graph step = step_of(kGpt);
  plan::Plan plan = whole_plan(step, 2);
  const auto live_at_backward = [&](const Program& program) {
    // Bytes of storage made in the forward pass and not freed in it.
    Bytes bytes = 0;
    for (const Step& s : program.microbatch) {
      if (s.phase != ir::Phase::kForward) {
        break;
      }
      if (s.kind == StepKind::kFree) {
        bytes -= program.value(s.inputs[0]).type.bytes();
      }
      for (const LocalId output : s.outputs) {
        bytes += program.value(output).view_of.valid() ? 0 : program.value(output).type.bytes();
      }
    }
    return bytes;
  };
  const Program once = lowered(step, plan);
  plan.recompute = {{"transformer.h.0"}, {"transformer.h.1"}};
  const Program twice = lowered(step, plan);
  expect_sound(once);
  expect_sound(twice);
  int again = 0;
  for (const Step& s : twice.microbatch) {
    again += s.recompute ? 1 : 0;
    if (s.recompute) {
      EXPECT_FALSE(plan::block_of(step.op(s.op).layer).empty());
      EXPECT_EQ(step.op(s.op).phase, ir::Phase::kForward);
    }
  }
  EXPECT_GT(again, 0);
  EXPECT_LT(live_at_backward(twice), live_at_backward(once) / 2);
}

TEST(Lower, MicrobatchesAccumulateInPlace) {
  const ir::Graph step = step_of("mlp:layers=2,hidden=8,batch=4", 2);
  const Program program = lowered(step, whole_plan(step, 1));
  expect_sound(program);
  EXPECT_EQ(program.microbatches, 2);
  for (const Step& s : program.microbatch) {
    if (s.kind == StepKind::kCompute && step.op(s.op).name == "accumulate") {
      const LocalId root = program.root(s.outputs[0]);
      EXPECT_EQ(step.value(program.value(root).global).kind, ir::ValueKind::kAccumulator);
    }
  }
}

TEST(Lower, NamesTheOpWhoseStrategyIsNotPossible) {
  const ir::Graph step = step_of(kGpt);
  plan::Plan plan = whole_plan(step, 1000);  // nothing is so large
  plan.strategies[0].set(0, 0);
  const auto program =
      lower(step, plan, [](const sharding::ReshardStep&, const ir::TensorType&) { return 1.0; });
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().text().find(step.ops()[0].name), std::string::npos);
}

}  // namespace
}  // namespace shardplan::lower
