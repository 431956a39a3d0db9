// Gradients of autodiff against central differences, both in double precision by the slow
// interpreter.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "graph_builder.h"
#include "interpreter.h"
#include "shardplan/training/autodiff.h"
#include "shardplan/training/microbatch.h"
#include "shardplan/training/training.h"

namespace shardplan::training {
namespace {

using ir::IntList;
using ir::ValueId;

using Inputs = std::map<std::string, Tensor>;

/// Random content for every parameter and input; integers are below `classes`.
Inputs random_inputs(const ir::Graph& graph, int classes = 1) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0.2, 1.5);
  Inputs inputs;
  for (const ir::Value& value : graph.values()) {
    if (value.kind == ir::ValueKind::kOpResult) {
      continue;
    }
    Tensor content = tensor(value.type.shape);
    for (double& x : content.data) {
      x = ir::is_floating(value.type.dtype)
              ? uniform(random)
              : static_cast<double>(random() % static_cast<unsigned>(classes));
    }
    inputs[value.name] = content;
  }
  return inputs;
}

double loss_of(const ir::Graph& graph, const Inputs& inputs) {
  Interpreter interpreter(graph);
  for (const auto& [name, content] : inputs) {
    interpreter.set(name, content);
  }
  interpreter.run();
  return interpreter.value(graph.outputs.front()).data.front();
}

/// What the updates of a step read as gradients.
std::vector<ParameterGradient> gradients_of(const ir::Graph& step) {
  std::vector<ParameterGradient> gradients;
  for (const ir::Op& op : step.ops()) {
    if (op.name == "adam_update") {
      gradients.push_back({op.inputs[0], op.inputs[1]});
    }
  }
  return gradients;
}

/// Every element of every parameter's gradient is the central difference of the loss.
void expect_right_gradients(const ir::Graph& forward, int classes = 1) {
  const Result<ir::Graph> built = build_training_step(forward, Recipe{});
  ASSERT_TRUE(built.has_value()) << built.error().text();
  const ir::Graph& graph = *built;
  const Status valid = ops::verify(graph);
  ASSERT_TRUE(valid.has_value()) << valid.error().text();
  const Inputs inputs = random_inputs(forward, classes);
  Interpreter interpreter(graph);
  for (const auto& [name, content] : inputs) {
    interpreter.set(name, content);
  }
  interpreter.run();
  constexpr double kStep = 1e-5;
  const std::vector<ParameterGradient> gradients = gradients_of(graph);
  ASSERT_FALSE(gradients.empty());
  for (const ParameterGradient& pair : gradients) {
    const std::string& name = graph.value(pair.parameter).name;
    for (std::size_t i = 0; i < inputs.at(name).data.size(); ++i) {
      Inputs up = inputs;
      Inputs down = inputs;
      up[name].data[i] += kStep;
      down[name].data[i] -= kStep;
      const double expected = (loss_of(forward, up) - loss_of(forward, down)) / (2 * kStep);
      const double found = interpreter.value(pair.gradient).data[i];
      EXPECT_NEAR(found, expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << name << "[" << i << "]";
    }
  }
}

/// Σ f(p)² · (1 + Σ f(p)): a loss whose gradient differs for each element.
void expect_right_gradient_of(const ir::Shape& shape,
                              const std::function<ValueId(GraphBuilder&, ValueId)>& f) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId y = f(b, b.parameter("p", shape));
  const ValueId squares = b.sum_all(b.op("mul", {y, y}));
  const ValueId factor = b.op("add_scalar", {b.sum_all(y)}, {{"value", 1.0}});
  expect_right_gradients(b.loss(b.op("mul", {squares, factor})));
}

TEST(Gradient, OfUnaryOps) {
  for (const char* const name : {"neg",
                                 "abs",
                                 "exp",
                                 "log",
                                 "sqrt",
                                 "rsqrt",
                                 "reciprocal",
                                 "sin",
                                 "cos",
                                 "tanh",
                                 "sigmoid",
                                 "relu"}) {
    SCOPED_TRACE(name);
    expect_right_gradient_of({2, 3}, [&](GraphBuilder& b, ValueId p) {
      return b.op(name, {b.op("add_scalar", {p}, {{"value", -0.1}})});
    });
  }
}

TEST(Gradient, OfOpsWithScalars) {
  for (const double exponent : {0.0, 1.0, 2.0, 3.0, -0.5}) {
    expect_right_gradient_of({3}, [&](GraphBuilder& b, ValueId p) {
      return b.op("add", {p, b.op("pow_scalar", {p}, {{"exponent", exponent}})});
    });
  }
  expect_right_gradient_of({6}, [](GraphBuilder& b, ValueId p) {
    return b.scale(b.op("maximum_scalar", {p}, {{"value", 0.7}}), -1.5);
  });
}

TEST(Gradient, OfBroadcastingOps) {
  for (const char* const name : {"add", "sub", "mul", "div", "maximum", "minimum"}) {
    SCOPED_TRACE(name);
    GraphBuilder b(ir::DType::kFloat64);
    const ValueId p = b.parameter("p", {3, 1});
    const ValueId q = b.parameter("q", {2, 1, 4});
    const ValueId r = b.parameter("r", {});
    const ValueId y = b.op(name, {b.op(name, {p, q}), r});
    expect_right_gradients(b.loss(b.sum_all(b.op("sin", {y}))));
  }
}

TEST(Gradient, OfMaximumSplitsATie) {
  expect_right_gradient_of({4}, [](GraphBuilder& b, ValueId p) { return b.op("maximum", {p, p}); });
}

TEST(Gradient, OfWhere) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId p = b.parameter("p", {2, 3});
  const ValueId q = b.parameter("q", {3});
  const ValueId c = b.op("gt_scalar", {b.input("x", {2, 1})}, {{"value", 0.8}});
  expect_right_gradients(b.loss(b.sum_all(b.op("sin", {b.op("where", {c, p, q})}))));
}

TEST(Gradient, OfShapeOps) {
  expect_right_gradient_of({2, 6}, [](GraphBuilder& b, ValueId p) {
    const ValueId split = b.op("reshape", {p}, {{"shape", IntList{2, 2, 3}}});
    return b.op("transpose", {split}, {{"permutation", IntList{2, 0, 1}}});
  });
  expect_right_gradient_of({2, 1}, [](GraphBuilder& b, ValueId p) {
    return b.op("sin", {b.op("broadcast", {p}, {{"shape", IntList{3, 2, 2}}})});
  });
}

ir::Attributes cut(std::int64_t start, std::int64_t end, std::int64_t step) {
  return {{"dim", std::int64_t{1}}, {"start", start}, {"end", end}, {"step", step}};
}

TEST(Gradient, OfSlices) {
  for (const auto& attributes :
       {cut(1, 4, 1), cut(0, 7, 2), cut(1, 7, 3), cut(1, 6, 4), cut(0, 7, 1), cut(2, 3, 5)}) {
    expect_right_gradient_of(
        {2, 7}, [&](GraphBuilder& b, ValueId p) { return b.op("slice", {p}, attributes); });
  }
}

TEST(Gradient, OfSlicesThatTileIsOneConcat) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId x = b.op("sin", {b.parameter("p", {2, 7})});
  const ValueId second = b.op("slice", {x}, cut(3, 7, 1));
  const ValueId first = b.op("slice", {x}, cut(0, 3, 1));
  const ValueId joined = b.op("concat", {second, first}, {{"dim", std::int64_t{1}}});
  const ir::Graph forward = b.loss(b.sum_all(b.op("mul", {joined, x})));
  expect_right_gradients(forward);
  const ir::Graph step = *build_training_step(forward, Recipe{});
  std::map<std::string, int> count;
  for (const ir::Op& op : step.ops()) {
    if (op.phase == ir::Phase::kBackward) {
      ++count[op.name];
    }
  }
  EXPECT_EQ(count["concat"], 1);
  EXPECT_EQ(count["pad"], 0);
}

TEST(Gradient, OfTilesWithoutAGradientFallsBackToPads) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId x = b.op("sin", {b.parameter("p", {2, 7})});
  const ValueId first = b.op("slice", {x}, cut(0, 3, 1));
  const ValueId unused =
      b.op("pow_scalar", {b.op("slice", {x}, cut(3, 7, 1))}, {{"exponent", 0.0}});
  expect_right_gradients(b.loss(b.op("add", {b.sum_all(first), b.sum_all(unused)})));
}

TEST(Gradient, OfPadAndConcat) {
  expect_right_gradient_of({2, 3}, [](GraphBuilder& b, ValueId p) {
    const ValueId padded = b.op("pad",
                                {p},
                                {{"dim", std::int64_t{1}},
                                 {"before", std::int64_t{1}},
                                 {"after", std::int64_t{2}},
                                 {"value", 0.0}});
    return b.op("concat", {padded, b.op("sin", {p})}, {{"dim", std::int64_t{1}}});
  });
}

TEST(Gradient, OfReductions) {
  for (const bool keepdim : {false, true}) {
    expect_right_gradient_of({2, 3, 2}, [&](GraphBuilder& b, ValueId p) {
      return b.sum(p, {0, 2}, keepdim);
    });
  }
  expect_right_gradient_of({2, 4}, [](GraphBuilder& b, ValueId p) {
    return b.op("cumsum", {p}, {{"dim", std::int64_t{1}}});
  });
  expect_right_gradient_of({2, 4}, [](GraphBuilder& b, ValueId p) {
    return b.op("softmax", {p}, {{"dim", std::int64_t{1}}});
  });
}

TEST(Gradient, OfEinsum) {
  for (const char* const equation : {"abc,cd->abd", "abc,dc->dba", "abc,abc->", "abc,ab->c"}) {
    SCOPED_TRACE(equation);
    const std::string text = equation;
    const std::string second = text.substr(4, text.find("->") - 4);
    ir::Shape shape;
    for (const char letter : second) {
      shape.push_back(letter - 'a' + 2);
    }
    GraphBuilder b(ir::DType::kFloat64);
    const ValueId y = b.einsum(text, b.parameter("p", {2, 3, 4}), b.parameter("q", shape));
    expect_right_gradients(b.loss(b.sum_all(b.op("sin", {y}))));
  }
}

TEST(Gradient, OfRootMeanSquareNormScalesOneNumberARow) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId x = b.op("sin", {b.parameter("p", {3, 4})});
  const ValueId squares = b.op("pow_scalar", {x}, {{"exponent", 2.0}});
  const ValueId mean = b.scale(b.sum(squares, {1}, true), 0.25);
  const ValueId rms = b.op("rsqrt", {b.op("add_scalar", {mean}, {{"value", 1e-6}})});
  const ValueId y = b.op("mul", {b.op("mul", {x, rms}), b.parameter("w", {4})});
  const ir::Graph forward = b.loss(b.sum_all(b.op("sin", {y})));
  expect_right_gradients(forward);
  const ir::Graph step = *build_training_step(forward, Recipe{});
  for (const ir::Op& op : step.ops()) {
    EXPECT_NE(op.name, "broadcast");
    if (op.name == "scale") {
      EXPECT_EQ(step.type(op.outputs[0]).numel(), 3);
    }
  }
}

TEST(Gradient, OfCrossEntropyWithATiedEmbedding) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId table = b.parameter("table", {5, 3});
  const ValueId x = b.op("tanh", {b.op("embedding", {table, b.indices("ids", {2, 4})})});
  const ValueId logits = b.einsum("bsk,vk->bsv", x, table);
  expect_right_gradients(b.loss(b.cross_entropy(logits, b.indices("labels", {2, 4}))), 5);
}

/// Microbatch `m` of `count` of a whole batch: what has as many rows is cut.
Inputs microbatch_of(const ir::Graph& forward,
                     const Inputs& whole,
                     std::size_t m,
                     std::int64_t count) {
  Inputs inputs = whole;
  for (const ir::Value& value : forward.values()) {
    if (value.kind != ir::ValueKind::kInput) {
      continue;
    }
    Tensor& cut = inputs[value.name];
    inputs[whole_batch_name(value.name)] = whole.at(value.name);
    const std::size_t size = cut.data.size() / static_cast<std::size_t>(count);
    cut.shape[0] /= count;
    const auto first = whole.at(value.name).data.begin() + static_cast<std::ptrdiff_t>(m * size);
    cut.data.assign(first, first + static_cast<std::ptrdiff_t>(size));
  }
  return inputs;
}

/// Loss and gradients, summed over microbatches, are those of the whole batch.
void expect_gradients_of_the_whole_batch(const ir::Graph& forward,
                                         const Inputs& inputs,
                                         std::int64_t count) {
  Recipe recipe;
  const ir::Graph whole = *build_training_step(forward, recipe);
  Interpreter reference(whole);
  for (const auto& [name, content] : inputs) {
    reference.set(name, content);
  }
  reference.run();
  std::map<std::string, ValueId> expected;
  for (const ParameterGradient& pair : gradients_of(whole)) {
    expected[whole.value(pair.parameter).name] = pair.gradient;
  }

  recipe.microbatches = count;
  const Result<ir::Graph> built = build_training_step(forward, recipe);
  ASSERT_TRUE(built.has_value()) << built.error().text();
  const ir::Graph& step = *built;
  EXPECT_EQ(step.microbatches, count);
  std::map<std::string, std::vector<double>> sums;
  double loss = 0;
  for (std::size_t m = 0; m < static_cast<std::size_t>(count); ++m) {
    Interpreter part(step);
    for (const auto& [name, content] : microbatch_of(forward, inputs, m, count)) {
      if (step.find_input(name).valid()) {
        part.set(name, content);
      }
    }
    part.run();
    loss += part.value(step.outputs[0]).data[0] / static_cast<double>(count);
    for (const ParameterGradient& pair : gradients_of(step)) {
      std::vector<double>& sum = sums[step.value(pair.parameter).name];
      const std::vector<double>& gradient = part.value(pair.gradient).data;
      sum.resize(gradient.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += gradient[i];
      }
    }
  }
  EXPECT_NEAR(loss, reference.value(whole.outputs[0]).data[0], 1e-12);
  ASSERT_EQ(sums.size(), expected.size());
  for (const auto& [name, sum] : sums) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i], reference.value(expected.at(name)).data[i], 1e-12) << name;
    }
  }
}

TEST(Microbatches, AccumulateTheGradientOfTheWholeBatch) {
  const ir::Graph forward = mlp(8, ir::DType::kFloat64);
  expect_gradients_of_the_whole_batch(forward, random_inputs(forward), 4);
}

/// A classifier of 6 rows in 3 classes, with a loss of its logits, labels and its weight.
ir::Graph classifier(
    const std::function<ValueId(GraphBuilder&, ValueId logits, ValueId labels, ValueId w)>& loss) {
  GraphBuilder b(ir::DType::kFloat64);
  const ValueId w = b.parameter("w", {4, 3});
  const ValueId logits = b.einsum("bk,kn->bn", b.input("x", {6, 4}), w);
  return b.loss(loss(b, logits, b.indices("labels", {6}), w));
}

/// Six labels, of which the first microbatch of three has one, the second none, the third two.
Inputs with_ignored_labels(const ir::Graph& forward) {
  Inputs inputs = random_inputs(forward, 3);
  for (const std::size_t row : {0U, 2U, 3U}) {
    inputs["labels"].data[row] = -100;
  }
  return inputs;
}

TEST(Microbatches, DivideByTheTokensOfTheWholeBatch) {
  const ir::Graph mean = classifier([](GraphBuilder& b, ValueId logits, ValueId labels, ValueId) {
    return b.cross_entropy(logits, labels);
  });
  expect_gradients_of_the_whole_batch(mean, with_ignored_labels(mean), 3);

  const ir::Graph with_decay =
      classifier([](GraphBuilder& b, ValueId logits, ValueId labels, ValueId w) {
        const ValueId decay = b.scale(b.sum_all(b.op("mul", {w, w})), 0.1);
        return b.op("add", {decay, b.scale(b.cross_entropy(logits, labels), 0.5)});
      });
  expect_gradients_of_the_whole_batch(with_decay, with_ignored_labels(with_decay), 3);

  // The count is a denominator of every row, and goes through functions that are not linear.
  const ir::Graph by_row = classifier([](GraphBuilder& b, ValueId logits, ValueId labels, ValueId) {
    const ValueId counted = b.op("cast",
                                 {b.op("ne_scalar", {labels}, {{"value", std::int64_t{-100}}})},
                                 {{"dtype", std::string("f64")}});
    const ValueId count =
        b.op("sqrt", {b.op("add_scalar", {b.sum_all(counted)}, {{"value", 1.0}})});
    const ValueId rows = b.op("mul", {b.sum(b.op("mul", {logits, logits}), {1}), counted});
    return b.sum_all(b.op("div", {rows, count}));
  });
  expect_gradients_of_the_whole_batch(by_row, with_ignored_labels(by_row), 3);
}

}  // namespace
}  // namespace shardplan::training
