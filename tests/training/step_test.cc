#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "graph_builder.h"
#include "shardplan/training/microbatch.h"
#include "shardplan/training/training.h"

namespace shardplan::training {
namespace {

using ir::ValueId;
using ::testing::HasSubstr;

ir::Graph step_of(const ir::Graph& forward, const Recipe& recipe) {
  Result<ir::Graph> step = build_training_step(forward, recipe);
  EXPECT_TRUE(step.has_value()) << step.error().text();
  const Status valid = ops::verify(*step);
  EXPECT_TRUE(valid.has_value()) << valid.error().text();
  return *std::move(step);
}

std::string error_of(const ir::Graph& forward, const Recipe& recipe) {
  const Result<ir::Graph> step = build_training_step(forward, recipe);
  return step ? "" : step.error().text();
}

Recipe with(Precision precision, std::int64_t microbatches = 1, double clip = 0) {
  Recipe recipe;
  recipe.precision = precision;
  recipe.microbatches = microbatches;
  recipe.clip_norm = clip;
  return recipe;
}

int count(const ir::Graph& graph, const std::string& name, ir::Phase phase) {
  return static_cast<int>(
      std::count_if(graph.ops().begin(), graph.ops().end(), [&](const ir::Op& op) {
        return op.name == name && op.phase == phase;
      }));
}

TEST(Step, GradientsAreRecordedForAllThatWasDifferentiated) {
  const ir::Graph step = step_of(mlp(8), with(Precision::kAsModel));
  std::set<std::string> parameters;
  for (const ir::Write& gradient : step.gradients) {
    EXPECT_EQ(step.type(gradient.target).shape, step.type(gradient.value).shape);
    if (step.value(gradient.target).kind == ir::ValueKind::kParameter) {
      parameters.insert(step.value(gradient.target).name);
    }
  }
  EXPECT_EQ(parameters, (std::set<std::string>{"up.weight", "up.bias", "down.weight"}));
}

TEST(Step, OfAnMlpWithSgd) {
  Recipe recipe;
  recipe.optimizer = *parse_optimizer("sgd:lr=0.1");
  ir::Graph step = step_of(mlp(8), recipe);
  step.gradients.clear();  // GradientsAreRecorded has them
  EXPECT_EQ(ir::print(step), R"(graph "" microbatches=1
%0 = parameter "up.weight" f32[4,6] trainable
%1 = parameter "up.bias" f32[4] trainable
%2 = parameter "down.weight" f32[3,4] trainable
%3 = input "x" f32[8,6]
%4 = input "y" f32[8,3]
%5 = state "optimizer.step" f32[]
%6 = einsum(%3, %0) {equation="bk,nk->bn"} : f32[8,4] layer="up"
%7 = add(%6, %1) : f32[8,4] layer="up"
%8 = relu(%7) : f32[8,4] layer="up"
%9 = einsum(%8, %2) {equation="bk,nk->bn"} : f32[8,3] layer="down"
%10 = sub(%9, %4) : f32[8,3] layer="loss"
%11 = pow_scalar(%10) {exponent=2.0} : f32[8,3] layer="loss"
%12 = sum(%11) {dims=[0,1], keepdim=false} : f32[] layer="loss"
%13 = scale(%12) {factor=0.041666666666666664} : f32[] layer="loss"
%14 = full() {dtype="f32", shape=[], value=1.0} : f32[] phase=backward
%15 = scale(%14) {factor=0.041666666666666664} : f32[] layer="loss" phase=backward source=#7
%16 = reshape(%15) {shape=[1,1]} : f32[1,1] layer="loss" phase=backward source=#6
%17 = scale(%16) {factor=2.0} : f32[1,1] layer="loss" phase=backward source=#5
%18 = mul(%17, %10) : f32[8,3] layer="loss" phase=backward source=#5
%19 = einsum(%18, %2) {equation="bn,nk->bk"} : f32[8,4] layer="down" phase=backward source=#3
%20 = einsum(%18, %8) {equation="bn,bk->nk"} : f32[3,4] layer="down" phase=backward source=#3
%21 = relu_backward(%19, %8) : f32[8,4] layer="up" phase=backward source=#2
%22 = sum(%21) {dims=[0], keepdim=false} : f32[4] layer="up" phase=backward source=#1
%23 = identity(%21) : f32[8,4] layer="up" phase=backward source=#1
%24 = einsum(%23, %3) {equation="bn,bk->nk"} : f32[4,6] layer="up" phase=backward source=#0
%25 = sgd_update(%2, %20, %5) {clip=false, dampening=0.0, has_momentum=false, lr=0.1, momentum=0.0, nesterov=false, weight_decay=0.0} : f32[3,4] layer="down" phase=update
%26 = sgd_update(%1, %22, %5) {clip=false, dampening=0.0, has_momentum=false, lr=0.1, momentum=0.0, nesterov=false, weight_decay=0.0} : f32[4] layer="up" phase=update
%27 = sgd_update(%0, %24, %5) {clip=false, dampening=0.0, has_momentum=false, lr=0.1, momentum=0.0, nesterov=false, weight_decay=0.0} : f32[4,6] layer="up" phase=update
%28 = add_scalar(%5) {value=1.0} : f32[] phase=update
output %13
write %2 <- %25
write %1 <- %26
write %0 <- %27
write %5 <- %28
)");
}

TEST(Step, JoinsGradientsAtIdentitiesAndOfTiedWeightsWithoutSource) {
  const ir::Graph step = step_of(gpt({.layers = 2}), Recipe{});
  int without_source = 0;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::Op& op = step.ops()[i];
    if (op.name != "add" || op.phase != ir::Phase::kBackward) {
      continue;
    }
    if (op.source.valid()) {
      EXPECT_EQ(step.op(op.source).name, "identity");
      EXPECT_EQ(step.type(step.op(op.source).outputs[0]), step.type(op.outputs[0]));
    } else {
      ++without_source;
      EXPECT_EQ(step.type(op.outputs[0]), (ir::TensorType{ir::DType::kFloat32, {10, 8}}));
    }
  }
  EXPECT_EQ(without_source, 1);
  EXPECT_EQ(count(step, "concat", ir::Phase::kBackward), 2);
  EXPECT_EQ(count(step, "pad", ir::Phase::kBackward), 0);
}

TEST(Step, HasNoFloatingOpResultWithTwoForwardReadersButIdentities) {
  const ir::Graph step = step_of(gpt({.layers = 2}), Recipe{});
  std::map<ValueId, int> reads;
  for (const ir::Op& op : step.ops()) {
    for (const ValueId input : op.inputs) {
      reads[input] += op.phase == ir::Phase::kForward ? 1 : 0;
    }
  }
  for (const auto& [value, number] : reads) {
    const ir::Value& found = step.value(value);
    if (found.producer.valid() && ir::is_floating(found.type.dtype) && number > 1) {
      EXPECT_EQ(step.op(found.producer).name, "identity");
    }
  }
}

TEST(Step, RunsBackwardInReverseOrder) {
  const ir::Graph step = step_of(gpt({.layers = 2}), Recipe{});
  ir::OpId last{step.ops().size()};
  for (const ir::Op& op : step.ops()) {
    if (op.phase == ir::Phase::kBackward && op.source.valid() && op.name != "add" &&
        op.name != "concat") {
      EXPECT_LE(op.source, last);
      last = op.source;
    }
  }
}

TEST(Step, DropsWhatTheLossDoesNotNeedButKeepsTheModel) {
  GraphBuilder b;
  const ValueId used = b.parameter("used", {4});
  const ValueId unused = b.parameter("unused", {5});
  const ValueId frozen = b.parameter("frozen", {4}, false);
  b.input("ignored", {4});
  b.op("exp", {unused});
  ir::Graph forward = b.loss(b.sum_all(b.op("mul", {used, frozen})));
  forward.outputs.push_back(forward.op(ir::OpId{0}).outputs[0]);
  const ir::Graph step = step_of(forward, Recipe{});
  EXPECT_EQ(step.outputs.size(), 1U);
  EXPECT_TRUE(step.find_input("unused").valid());
  EXPECT_TRUE(step.find_input("ignored").valid());
  EXPECT_TRUE(step.find_input("used.exp_avg").valid());
  EXPECT_FALSE(step.find_input("unused.exp_avg").valid());
  EXPECT_FALSE(step.find_input("frozen.exp_avg").valid());
  EXPECT_EQ(count(step, "exp", ir::Phase::kForward), 0);
}

TEST(Step, ReadsThroughBroadcasts) {
  GraphBuilder b;
  const ValueId p = b.parameter("p", {4});
  const ValueId wide = b.op("broadcast", {p}, {{"shape", ir::IntList{3, 4}}});
  const ValueId y = b.op("mul", {b.input("x", {3, 4}), wide});
  const ir::Graph step = step_of(b.loss(b.sum_all(b.op("sin", {y}))), Recipe{});
  EXPECT_EQ(count(step, "broadcast", ir::Phase::kForward), 0);
  EXPECT_EQ(count(step, "broadcast", ir::Phase::kBackward), 0);
}

TEST(Step, ClipsByTheNormOfAllGradients) {
  const ir::Graph step = step_of(gpt({.layers = 1}), with(Precision::kAsModel, 1, 1.0));
  const int updates = count(step, "adam_update", ir::Phase::kUpdate);
  EXPECT_EQ(count(step, "sum_squares", ir::Phase::kUpdate), updates);
  EXPECT_EQ(count(step, "clip_scale", ir::Phase::kUpdate), 1);
  for (const ir::Op& op : step.ops()) {
    if (op.name == "adam_update") {
      EXPECT_EQ(op.inputs.size(), 6U);
      EXPECT_TRUE(op.attributes.flag_or("clip", false));
    }
  }
}

TEST(Step, GivesSgdAMomentumOnlyWhenItHasOne) {
  Recipe recipe;
  recipe.optimizer = *parse_optimizer("sgd:lr=0.1,momentum=0.9");
  const ir::Graph step = step_of(mlp(8), recipe);
  EXPECT_TRUE(step.find_input("up.bias.momentum_buffer").valid());
  EXPECT_FALSE(step.find_input("up.bias.exp_avg").valid());
}

TEST(Step, SaysWhatIsWrongWithTheGraph) {
  GraphBuilder no_loss;
  no_loss.parameter("p", {4});
  EXPECT_EQ(error_of(no_loss.loss(no_loss.full({}, 1.0, "f32")), Recipe{}),
            "graph: the loss does not depend on any trainable parameter");
  GraphBuilder b;
  b.layer = "pool";
  const ValueId p = b.parameter("p", {4});
  EXPECT_EQ(error_of(b.loss(b.op("sum_squares", {p})), Recipe{}),
            "op 'sum_squares' of layer 'pool': this op has no gradient, but the loss depends on a "
            "trainable parameter through it");
  ir::Graph none = mlp(8);
  none.outputs.clear();
  EXPECT_EQ(error_of(none, Recipe{}),
            "graph: the graph has no output: outputs[0] must be the scalar loss");
  EXPECT_THAT(error_of(step_of(mlp(8), Recipe{}), Recipe{}),
              HasSubstr("is a training step already"));
  EXPECT_THAT(error_of(mlp(8), with(Precision::kAsModel, 0)), HasSubstr("at least 1 expected"));
}

TEST(Step, RefusesGradientsOfStatistics) {
  GraphBuilder b;
  const std::vector<ValueId> results =
      b.all("layer_norm", {b.parameter("p", {3, 4})}, {{"dims", std::int64_t{1}}, {"eps", 1e-5}});
  EXPECT_EQ(error_of(b.loss(b.sum_all(results[1])), Recipe{}),
            "op 'layer_norm': the gradient of layer_norm's mean is not supported");
}

// precision ---------------------------------------------------------------------------------------

TEST(Precision, OfFloat64IsEverywhere) {
  const ir::Graph step = step_of(gpt({.layers = 1}), with(Precision::kFloat64, 2, 1.0));
  for (const ir::Value& value : step.values()) {
    EXPECT_TRUE(!ir::is_floating(value.type.dtype) || value.type.dtype == ir::DType::kFloat64)
        << ir::to_string(value.type);
  }
}

/// A variance is a difference of moments: rounded to f32 before, it would be noise.
TEST(Precision, OfFloat32KeepsMomentsInFloat64) {
  GraphBuilder g;
  const ValueId x = g.op("mul", {g.input("x", {8, 4}), g.parameter("w", {4})});
  const ValueId moments = g.op("batch_moments", {x});
  const std::vector<ValueId> statistics =
      g.all("batch_statistics", {moments}, {{"dtype", std::string("f32")}});
  const ValueId y =
      g.op("batch_norm", {x, statistics[0], statistics[1]}, {{"eps", 1e-5}, {"training", true}});
  const ir::Graph step = step_of(g.loss(g.sum_all(y)), with(Precision::kFloat32));
  for (const ir::Op& op : step.ops()) {
    if (op.name == "batch_statistics") {
      EXPECT_EQ(step.type(op.inputs[0]).dtype, ir::DType::kFloat64);
      EXPECT_EQ(step.type(op.outputs[1]).dtype, ir::DType::kFloat32);
    }
  }
  EXPECT_EQ(count(step, "batch_statistics", ir::Phase::kForward), 1);
}

TEST(Precision, MakesCastsVanish) {
  GraphBuilder b;
  const ValueId p = b.parameter("p", {4});
  const ValueId wide = b.op("cast", {p}, {{"dtype", std::string("f64")}});
  const ValueId back = b.op("cast", {b.op("exp", {wide})}, {{"dtype", std::string("f32")}});
  const ir::Graph forward = b.loss(b.sum_all(back));
  EXPECT_EQ(count(step_of(forward, with(Precision::kFloat32)), "cast", ir::Phase::kForward), 0);
  EXPECT_EQ(count(step_of(forward, Recipe{}), "cast", ir::Phase::kForward), 2);
}

TEST(Precision, OfBFloat16KeepsMasterWeightsAndTheLossInFloat32) {
  const ir::Graph step = step_of(gpt({.layers = 1}), with(Precision::kBFloat16, 1, 1.0));
  EXPECT_EQ(step.type(step.outputs[0]).dtype, ir::DType::kFloat32);
  for (const ir::Value& value : step.values()) {
    if (value.kind == ir::ValueKind::kParameter) {
      EXPECT_EQ(value.type.dtype, ir::DType::kBFloat16);
      const ValueId master = step.find_input(value.name + ".master");
      ASSERT_TRUE(master.valid()) << value.name;
      EXPECT_EQ(step.type(master).dtype, ir::DType::kFloat32);
      EXPECT_EQ(step.value(step.value(master).init_from).name, value.name);
    }
  }
  for (const ir::Op& op : step.ops()) {
    const ir::DType result = step.type(op.outputs[0]).dtype;
    if (op.name == "einsum" || op.name == "attention_backward" || op.name == "gelu") {
      EXPECT_EQ(result, ir::DType::kBFloat16);
    }
    if (op.name == "sum_exp" || op.name == "label_score" || op.name == "log") {
      EXPECT_EQ(result, ir::DType::kFloat32);
    }
    if (op.name == "label_score") {
      EXPECT_EQ(step.type(op.inputs[0]).dtype, ir::DType::kBFloat16);
    }
  }
}

TEST(Precision, OfBFloat16AccumulatesInFloat32) {
  const ir::Graph step = step_of(gpt({.layers = 1}), with(Precision::kBFloat16, 2));
  int accumulators = 0;
  for (const ir::Value& value : step.values()) {
    if (value.kind == ir::ValueKind::kAccumulator) {
      ++accumulators;
      EXPECT_EQ(value.type.dtype, ir::DType::kFloat32);
    }
  }
  EXPECT_EQ(accumulators, count(step, "adam_update", ir::Phase::kUpdate));
  // The sums are wider than the parameters, and still their gradients.
  const auto of_parameter = [&](const ir::Write& gradient) {
    return step.value(gradient.target).kind == ir::ValueKind::kParameter;
  };
  EXPECT_EQ(std::count_if(step.gradients.begin(), step.gradients.end(), of_parameter),
            accumulators);
}

/// Rotary tables and counts do not depend on parameters: computed in f32, rounded at the border.
TEST(Precision, OfBFloat16LeavesTablesInTheModelsPrecision) {
  GraphBuilder b;
  const ValueId p = b.parameter("p", {4, 8});
  const ValueId x = b.input("x", {4, 8});
  const ValueId steps =
      b.op("iota",
           {},
           {{"shape", ir::IntList{8}}, {"dim", std::int64_t{0}}, {"dtype", std::string("f32")}});
  const ValueId table = b.op("cos", {b.scale(steps, 0.01)});
  const ValueId one = b.op("mul", {b.op("mul", {p, table}), x});
  const ir::Graph step =
      step_of(b.loss(b.sum_all(b.op("mul", {one, table}))), with(Precision::kBFloat16));
  int casts_of_table = 0;
  for (const ir::Op& op : step.ops()) {
    if (op.name == "cos") {
      EXPECT_EQ(step.type(op.outputs[0]).dtype, ir::DType::kFloat32);
    }
    if (op.name == "mul") {
      EXPECT_EQ(step.type(op.outputs[0]).dtype, ir::DType::kBFloat16);
    }
    casts_of_table += op.name == "cast" && op.phase == ir::Phase::kForward &&
                              step.type(op.inputs[0]).shape == ir::Shape{8}
                          ? 1
                          : 0;
  }
  EXPECT_EQ(casts_of_table, 1);
  EXPECT_EQ(step.type(step.find_input("x")).dtype, ir::DType::kBFloat16);
}

// microbatches ------------------------------------------------------------------------------------

TEST(Microbatches, DivideTheBatchOfEveryShape) {
  const ir::Graph step = step_of(gpt({.layers = 1, .batch = 4}), with(Precision::kAsModel, 2));
  EXPECT_EQ(step.type(step.find_input("input_ids")).shape, (ir::Shape{2, 8}));
  EXPECT_EQ(step.type(step.find_input("wpe.weight")).shape, (ir::Shape{8, 8}));
  for (const ir::Op& op : step.ops()) {
    if (op.name == "attention") {
      EXPECT_EQ(step.type(op.inputs[0]).shape, (ir::Shape{2, 8, 2, 4}));
    }
    if (op.name == "label_score") {
      EXPECT_EQ(step.type(op.inputs[0]).shape, (ir::Shape{16, 10}));
    }
  }
  EXPECT_EQ(count(step, "accumulate", ir::Phase::kBackward),
            count(step, "adam_update", ir::Phase::kUpdate));
  // The mean over the tokens of the whole batch, of which this is a part.
  const ir::Op& last = step.op(step.value(step.outputs[0]).producer);
  EXPECT_EQ(last.name, "scale");
  EXPECT_EQ(step.op(step.value(last.inputs[0]).producer).name, "div");
  EXPECT_EQ(step.type(step.find_input(whole_batch_name("labels"))).shape, (ir::Shape{4, 8}));
}

TEST(Microbatches, CutTablesThatAreMadeForTheWholeBatch) {
  GraphBuilder b;
  const ValueId p = b.parameter("p", {8});
  const ValueId ones = b.full({4, 8}, 1.0, "f32");
  const ValueId row =
      b.op("iota",
           {},
           {{"shape", ir::IntList{1, 8}}, {"dim", std::int64_t{1}}, {"dtype", std::string("f32")}});
  const ValueId table = b.op("broadcast", {row}, {{"shape", ir::IntList{4, 8}}});
  const ValueId y = b.op("mul", {b.op("mul", {b.input("x", {4, 8}), ones}), p});
  const ValueId z = b.op("concat", {y, table}, {{"dim", std::int64_t{1}}});
  const ir::Graph step = step_of(b.loss(b.sum_all(z)), with(Precision::kAsModel, 4));
  for (const ir::Op& op : step.ops()) {
    if (op.phase == ir::Phase::kForward && (op.name == "full" || op.name == "broadcast")) {
      EXPECT_EQ(step.type(op.outputs[0]).shape, (ir::Shape{1, 8}));
    }
  }
}

/// x · p, normalised over the batch, with running statistics.
struct Normalised {
  ValueId y{};
  ValueId moments{};
};

Normalised normalised(GraphBuilder& b, ValueId x) {
  const ValueId moments = b.op("batch_moments", {x});
  const std::vector<ValueId> statistics =
      b.all("batch_statistics", {moments}, {{"dtype", std::string("f32")}});
  const ValueId y =
      b.op("batch_norm", {x, statistics[0], statistics[1]}, {{"eps", 1e-5}, {"training", true}});
  return {y, moments};
}

TEST(Microbatches, HaveBatchNormalisationOfTheirOwn) {
  for (const bool trained : {true, false}) {  // before the statistics
    GraphBuilder b;
    const ValueId x = b.input("x", {8, 3});
    const ValueId p = b.parameter("p", {3});
    const ValueId in = trained ? b.op("mul", {x, p}) : x;
    const Normalised norm = normalised(b, in);
    const ValueId mean = b.buffer("running_mean", {3});
    const ValueId variance = b.buffer("running_var", {3});
    const std::vector<ValueId> moved =
        b.all("batch_running", {norm.moments, mean, variance}, {{"momentum", 0.1}});
    b.write(mean, moved[0]);
    b.write(variance, moved[1]);
    const ValueId out = trained ? norm.y : b.op("mul", {norm.y, p});
    const ir::Graph step =
        step_of(b.loss(b.sum_all(b.op("mul", {out, out}))), with(Precision::kAsModel, 4));
    for (const ir::Op& op : step.ops()) {
      if (op.name == "batch_moments") {
        EXPECT_EQ(step.type(op.inputs[0]).shape, (ir::Shape{2, 3}));
      }
    }
    EXPECT_EQ(count(step, "batch_moments", ir::Phase::kForward), 1);
    EXPECT_EQ(count(step, "batch_running", ir::Phase::kForward), 1);
    EXPECT_FALSE(step.find_input(whole_batch_name("x")).valid());
  }
}

TEST(Microbatches, NormalisedOverTheBatchHaveMoreThanOneValue) {
  GraphBuilder b;
  const ValueId y = normalised(b, b.op("mul", {b.input("x", {8, 3}), b.parameter("p", {3})})).y;
  EXPECT_EQ(
      error_of(b.loss(b.sum_all(y)), with(Precision::kAsModel, 8)),
      "op 'batch_moments': needs the whole batch: a microbatch has one value of each channel, "
      "which has no variance; use one microbatch");
}

TEST(Microbatches, RefuseWhatIsWrittenFromASumOverTheBatch) {
  GraphBuilder b;
  const ValueId x = b.input("x", {8, 3});
  const ValueId y = b.op("mul", {x, b.parameter("p", {3})});
  b.write(b.buffer("total", {3}), b.sum(y, {0}));
  EXPECT_EQ(error_of(b.loss(b.sum_all(y)), with(Precision::kAsModel, 2)),
            "microbatches: 'total' is written from the whole batch; use one microbatch");
}

// The loss is divided by a number of the whole batch that no microbatch can compute.
TEST(Microbatches, RefuseCountsThatDependOnStatistics) {
  GraphBuilder b;
  const ValueId x = b.input("x", {8, 3});
  const Normalised norm = normalised(b, x);
  const ValueId y = b.op("mul", {x, b.parameter("p", {3})});
  EXPECT_EQ(
      error_of(b.loss(b.op("div", {b.sum_all(y), b.sum_all(norm.y)})),
               with(Precision::kAsModel, 2)),
      "op 'batch_norm': needs the whole batch: a count over the batch depends on statistics, which "
      "every microbatch has of its own; use one microbatch");
}

TEST(Microbatches, ScaleALossThatIsASumOverTheBatch) {
  const ir::Graph step = step_of(mlp(8), with(Precision::kAsModel, 4));
  const ir::Op& last = step.op(step.value(step.outputs[0]).producer);
  EXPECT_EQ(last.name, "scale");
  EXPECT_EQ(last.attributes.number("factor"), 4.0);
}

TEST(Microbatches, NameTheInputThatDoesNotFit) {
  EXPECT_EQ(error_of(mlp(6), with(Precision::kAsModel, 4)),
            "microbatches: input 'x' is f32[6,6]: 6 rows cannot be cut into 4 microbatches");
  GraphBuilder b;
  const ValueId x = b.input("x", {4, 3});
  const ValueId y = b.einsum("ak,bk->ab", x, b.input("z", {8, 3}));
  EXPECT_EQ(error_of(b.loss(b.sum_all(b.op("mul", {y, b.parameter("p", {4, 8})}))),
                     with(Precision::kAsModel, 2)),
            "microbatches: input 'z' has 8 rows, input 'x' has 4: the batch must be dimension 0 of "
            "all inputs");
}

TEST(Microbatches, NameTheOpThatNeedsTheWholeBatch) {
  const Recipe two = with(Precision::kAsModel, 2);
  GraphBuilder softmax;
  softmax.layer = "router";
  const ValueId x = softmax.op("mul", {softmax.input("x", {4, 3}), softmax.parameter("p", {3})});
  EXPECT_EQ(
      error_of(
          softmax.loss(softmax.sum_all(softmax.op("softmax", {x}, {{"dim", std::int64_t{0}}}))),
          two),
      "op 'softmax' of layer 'router': needs the whole batch: dimension 0 of f32[4,3] carries "
      "the batch; use one microbatch");

  GraphBuilder call;
  call.layer = "scan";
  const ValueId s = call.op("mul", {call.input("x", {4, 3}), call.parameter("p", {3})});
  EXPECT_EQ(
      error_of(call.loss(call.sum_all(call.op("call",
                                              {s},
                                              {{"target", std::string("aten.cumprod.default")},
                                               {"arguments", std::string("self=$0, dim=0")},
                                               {"results", std::string("same[4,3]")}}))),
               two),
      "op 'call' of aten.cumprod.default of layer 'scan': needs the whole batch: dimension 0 "
      "of f32[4,3] carries the batch; use one microbatch");

  GraphBuilder norm;
  norm.layer = "batch_norm";
  const ValueId h = norm.op("mul", {norm.input("x", {4, 3}), norm.parameter("p", {3})});
  const ValueId centred = norm.op("sub", {h, norm.scale(norm.sum(h, {0}), 0.25)});
  EXPECT_EQ(error_of(norm.loss(norm.sum_all(centred)), two),
            "op 'sub' of layer 'batch_norm': needs the whole batch: it joins a sum over the batch "
            "with values of the batch; use one microbatch");

  GraphBuilder root;
  const ValueId r = root.op("mul", {root.input("x", {4, 3}), root.parameter("p", {3})});
  EXPECT_THAT(error_of(root.loss(root.op("sqrt", {root.sum_all(r)})), two),
              HasSubstr("op 'sqrt': needs the whole batch: it is not linear in a sum over the "
                        "batch"));

  GraphBuilder merged;
  const ValueId t =
      merged.op("transpose",
                {merged.op("mul", {merged.input("x", {4, 3}), merged.parameter("p", {3})})},
                {{"permutation", ir::IntList{1, 0}}});
  EXPECT_THAT(
      error_of(merged.loss(merged.sum_all(merged.op("reshape", {t}, {{"shape", ir::IntList{12}}}))),
               two),
      HasSubstr("the batch is not the major part of dimension 0 of f32[12]"));
}

TEST(Microbatches, RefuseACountThatParametersOrRandomNumbersDecide) {
  GraphBuilder b;
  const ValueId x = b.op("mul", {b.input("x", {4, 3}), b.parameter("p", {3})});
  const ValueId positive = b.sum_all(b.op("gt_scalar", {x}, {{"value", 0.0}}));
  const ValueId count = b.op("cast", {positive}, {{"dtype", std::string("f32")}});
  EXPECT_EQ(error_of(b.loss(b.op("div", {b.sum_all(x), count})), with(Precision::kAsModel, 2)),
            "op 'mul': needs the whole batch: a count over the batch depends on 'p'; use one "
            "microbatch");

  GraphBuilder r;
  const ValueId z = r.input("z", {4, 3});
  const ValueId y = r.op("mul", {z, r.parameter("p", {3})});
  const ValueId kept = r.op("dropout", {z}, {{"p", 0.5}, {"seed", std::int64_t{1}}});
  EXPECT_EQ(
      error_of(r.loss(r.op("div", {r.sum_all(y), r.sum_all(kept)})), with(Precision::kAsModel, 2)),
      "op 'dropout': needs the whole batch: a count over the batch depends on its random numbers; "
      "use one microbatch");
}

TEST(Microbatches, RefuseParametersThatGoWithTheBatch) {
  GraphBuilder b;
  const ValueId y = b.op("add", {b.input("x", {4, 3}), b.parameter("p", {4, 3})});
  EXPECT_EQ(error_of(b.loss(b.sum_all(y)), with(Precision::kAsModel, 2)),
            "op 'add': needs the whole batch: dimension 0 of 'p' goes with the batch; use one "
            "microbatch");
}

TEST(Microbatches, WeighRegularisersAsTheWholeBatchDoes) {
  GraphBuilder b;
  const ValueId p = b.parameter("p", {3});
  const ValueId data = b.sum_all(b.op("mul", {b.input("x", {4, 3}), p}));
  const ValueId decay = b.sum_all(b.op("mul", {p, p}));
  const ir::Graph step = step_of(b.loss(b.op("add", {data, decay})), with(Precision::kAsModel, 2));
  const ir::Op& last = step.op(step.value(step.outputs[0]).producer);
  EXPECT_EQ(last.name, "add");
  EXPECT_EQ(step.op(step.value(last.inputs[0]).producer).name, "scale");
}

}  // namespace
}  // namespace shardplan::training
