// The workspace formulas of `ops` against what the kernels allocate, counted to the byte, in f32
// and f64 with one thread.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/lower/local_op.h"
#include "shardplan/ops/op.h"
#include "shardplan/runtime/allocator.h"
#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {
namespace {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::Shape;
using ops::Types;

struct Filter {
  Shape x;
  Shape weight;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t groups = 1;
  bool transposed = false;
  std::int64_t dilation = 1;
};

Attributes attributes_of(const Filter& f) {
  const std::size_t rank = f.x.size() - 2;
  return {{"stride", IntList(rank, f.stride)},
          {"padding", IntList(rank, f.padding)},
          {"dilation", IntList(rank, f.dilation)},
          {"output_padding", IntList(rank, f.transposed && f.padding > 0 ? f.stride - 1 : 0)},
          {"transposed", f.transposed},
          {"groups", f.groups}};
}

/// An operator called by name, and its gradient by `needed` operands.
struct Called {
  std::string target;
  std::string arguments;
  Types operands;
  Shape result;
  IntList needed{};
};

class Workspace : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    install_counting_allocator();
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static ir::TensorType floating(Shape shape) { return {GetParam(), std::move(shape)}; }
  static ir::TensorType i64(Shape shape) { return {DType::kInt64, std::move(shape)}; }
  static ir::TensorType boolean(Shape shape) { return {DType::kBool, std::move(shape)}; }

  static at::Tensor content(const ir::TensorType& type) {
    constexpr std::int64_t kIds = 5;
    if (type.dtype == DType::kInt64) {
      return at::randint(0, kIds, type.shape, at::TensorOptions(at::kLong));
    }
    const at::Tensor uniform = at::rand(type.shape, at::TensorOptions(at::kDouble));
    return type.dtype == DType::kBool ? uniform.gt(0.2) : uniform.to(scalar_type(type.dtype));
  }

  /// A few scalars (8 bytes each) of ATen's own do not count.
  static void expect_exact(const std::string& name,
                           const Types& inputs,
                           const Attributes& attributes = {}) {
    const ops::OpDef& def = ops::get(name);
    const Result<Types> results = def.infer(inputs, attributes);
    ASSERT_TRUE(results.has_value()) << name << ": " << results.error().text();
    Bytes made = 0;
    for (std::size_t r = 0; r < results->size(); ++r) {
      const bool fresh = !def.view && (r >= def.in_place.size() || def.in_place[r] < 0);
      made += fresh ? (*results)[r].bytes() : 0;
    }
    std::vector<at::Tensor> operands;
    for (const ir::TensorType& type : inputs) {
      operands.push_back(content(type));
    }
    const Bytes expected =
        def.workspace == nullptr ? 0 : def.workspace(ops::OpView{inputs, *results, attributes});
    expect_workspace(KernelCall{operands, attributes, *results, {}, {}}, name, made, expected);
  }

  static void expect_convolution(const Filter& f) {
    SCOPED_TRACE(ir::to_string(floating(f.weight)));
    Attributes attributes = attributes_of(f);
    const Types operands{floating(f.x), floating(f.weight)};
    const ir::TensorType y = ops::get("convolution").infer(operands, attributes).value()[0];
    expect_exact("convolution", operands, attributes);
    attributes.set("size", IntList(f.x.begin() + 2, f.x.end()));
    if (f.x[1] != 3) {  // an image needs no gradient
      expect_exact("convolution_backward_input", {y, operands[1]}, attributes);
    }
    attributes.set("size", IntList(f.weight.begin() + 2, f.weight.end()));
    expect_exact("convolution_backward_weight", {y, operands[0]}, attributes);
  }

  /// The same of the middle of three parts along the first dimension of space.
  static void expect_exact_when_cut(const std::string& name,
                                    const Types& inputs,
                                    const Attributes& attributes) {
    const cluster::DeviceMesh mesh{{{"space", 3}}};
    const ops::OpDef& def = ops::get(name);
    const Types results = def.infer(inputs, attributes).value();
    const ops::AxisMap map = def.axes(ops::OpView{inputs, results, attributes});
    sharding::Strategy strategy;
    strategy.set(0, map.find(std::string_view("whd").substr(inputs[0].shape.size() - 3, 1)));
    const auto possible = sharding::layouts(map, strategy, mesh);
    ASSERT_TRUE(possible.has_value()) << name;
    const sharding::OpLayouts layouts = possible.value_or(sharding::OpLayouts{});
    const lower::LocalOp local =
        lower::local_op(def, map, {inputs, results}, attributes, layouts, mesh);
    std::vector<at::Tensor> operands;
    for (const ir::TensorType& type : local.inputs) {
      operands.push_back(content(type));
    }
    std::vector<ops::CutWindow> cut;
    for (const ops::Halo& halo : local.cut) {
      const auto& layout = layouts.inputs[static_cast<std::size_t>(halo.input)];
      cut.push_back(sharding::cut_window(halo, layout, mesh, 1));
    }
    Bytes made = 0;
    for (const ir::TensorType& type : local.results) {
      made += type.bytes();
    }
    expect_workspace(KernelCall{operands, attributes, local.results, {}, {}, cut},
                     name + " when cut",
                     made,
                     local.workspace);
  }

  static void expect_call(const Called& c);

  /// Results and workspace together, to a thousandth.
  static void expect_about(const std::string& name,
                           const Types& inputs,
                           const Types& results,
                           const Attributes& attributes) {
    std::vector<at::Tensor> operands;
    for (const ir::TensorType& type : inputs) {
      operands.push_back(content(type));
    }
    Bytes expected = ops::get(name).workspace(ops::OpView{inputs, results, attributes});
    for (const ir::TensorType& type : results) {
      expected += type.bytes();
    }
    MemoryCounter counter;
    {
      const at::NoGradGuard as_the_executor_runs;
      const MemoryScope scope(counter);
      find_kernel(name)(KernelCall{operands, attributes, results, {}, {}});
    }
    const auto measured = static_cast<double>(counter.peak());
    EXPECT_NEAR(measured / static_cast<double>(expected), 1, 0.001)
        << name << " of " << attributes.string("target") << " " << ir::to_string(inputs[0]);
  }

 private:
  static void expect_workspace(const KernelCall& call,
                               const std::string& name,
                               Bytes made,
                               Bytes expected) {
    std::string types;
    for (const at::Tensor& operand : call.inputs) {
      types += " " + std::to_string(operand.numel());
    }
    MemoryCounter counter;
    {
      const MemoryScope scope(counter);
      find_kernel(name.substr(0, name.find(' ')))(call);
    }
    EXPECT_NEAR(static_cast<double>(counter.peak() - made), static_cast<double>(expected), 16)
        << name << types;
  }

  int threads_ = 1;
};

TEST_P(Workspace, OfElementwiseOps) {
  const ir::TensorType x = floating({4, 32, 64});
  for (const char* const name : {"neg", "exp", "tanh", "silu", "relu", "sigmoid", "rsqrt", "abs"}) {
    expect_exact(name, {x});
  }
  for (const char* const name : {"add", "mul", "div", "maximum", "eq"}) {
    expect_exact(name, {x, x});
    expect_exact(name, {x, floating({64})});
  }
  for (const char* const name : {"tanh_backward", "silu_backward", "relu_backward"}) {
    expect_exact(name, {x, x});
  }
  for (const char* const how : {"none", "tanh"}) {
    expect_exact("gelu", {x}, {{"approximate", std::string(how)}});
    expect_exact("gelu_backward", {x, x}, {{"approximate", std::string(how)}});
  }
  expect_exact("where", {boolean({4, 32, 64}), x, floating({})});
  expect_exact("scale", {x}, {{"factor", 2.0}});
  expect_exact("pow_scalar", {x}, {{"exponent", 3.0}});
  expect_exact("cast", {x}, {{"dtype", std::string("bf16")}});
  expect_exact("dropout", {x}, {{"p", 0.1}, {"seed", std::int64_t{1}}});
}

TEST_P(Workspace, OfShapeOpsAndReductions) {
  const ir::TensorType x = floating({4, 32, 64});
  expect_exact("transpose", {x}, {{"permutation", IntList{0, 2, 1}}});
  expect_exact("broadcast", {floating({1, 32, 64})}, {{"shape", IntList{4, 32, 64}}});
  expect_exact("concat", {x, x, x}, {{"dim", std::int64_t{2}}});
  expect_exact(
      "iota",
      {},
      {{"shape", IntList{4, 1000}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}});
  for (const IntList& dims : {IntList{0, 1}, IntList{2}, IntList{0, 1, 2}, IntList{1}}) {
    expect_exact("sum", {x}, {{"dims", dims}});
    expect_exact("max", {x}, {{"dims", dims}});
  }
  expect_exact("sum", {boolean({4, 32, 64})}, {{"dims", IntList{0, 1, 2}}});
  expect_exact("sum_squares", {x});
}

TEST_P(Workspace, OfNormalizations) {
  const ir::TensorType x = floating({4, 32, 64});
  const ir::TensorType rows = floating({4, 32});
  expect_exact("softmax", {x}, {{"dim", std::int64_t{2}}});
  expect_exact("softmax_backward", {x, x}, {{"dim", std::int64_t{2}}});
  for (const bool affine : {false, true}) {
    const Attributes attributes{
        {"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", affine}, {"bias", affine}};
    Types forward{x};
    Types backward{x, x, rows, rows};
    if (affine) {
      forward.insert(forward.end(), 2, floating({64}));
      backward.push_back(floating({64}));
    }
    expect_exact("layer_norm", forward, attributes);
    expect_exact("layer_norm_backward", backward, attributes);
  }
}

TEST_P(Workspace, OfProducts) {
  const std::vector<std::pair<std::string, std::pair<Shape, Shape>>> cases{
      {"bsk,nk->bsn", {{4, 32, 64}, {128, 64}}},
      {"bsk,kn->bsn", {{4, 32, 64}, {64, 128}}},
      {"bsn,nk->bsk", {{4, 32, 128}, {128, 64}}},
      {"bsn,bsk->nk", {{4, 32, 128}, {4, 32, 64}}},
      {"bqhd,bkhd->bhqk", {{4, 32, 8, 16}, {4, 32, 8, 16}}},
      {"bhqk,bkhd->bqhd", {{4, 8, 32, 32}, {4, 32, 8, 16}}},
      {"bhqd,bhkd->bhqk", {{4, 8, 32, 16}, {4, 8, 32, 16}}},
      {"ab,cb->ca", {{32, 64}, {16, 64}}},
      {"bqhd,bhkd->bhqk", {{4, 1, 4, 16}, {4, 4, 9, 16}}},  // one query: nothing moves
      {"bhqk,bhkd->bqhd", {{4, 4, 1, 9}, {4, 4, 9, 16}}}};
  for (const auto& [equation, shapes] : cases) {
    SCOPED_TRACE(equation);
    expect_exact(
        "einsum", {floating(shapes.first), floating(shapes.second)}, {{"equation", equation}});
  }
}

TEST_P(Workspace, OfAttention) {
  for (const bool last : {true, false}) {
    for (const std::int64_t positions : {20, 200, 800}) {
      for (const std::int64_t key_heads : {4, 2, 1}) {
        for (const int mask : {0, 1, 2}) {
          const auto heads = [&](std::int64_t h) {
            return floating(last ? Shape{2, positions, h, 16} : Shape{2, h, positions, 16});
          };
          const Attributes attributes{{"layout", std::string(last ? "bshd" : "bhsd")},
                                      {"causal", mask == 0},
                                      {"scale", 0.25},
                                      {"mask", mask > 0}};
          Types forward{heads(4), heads(key_heads), heads(key_heads)};
          Types backward{heads(4), heads(4), heads(key_heads), heads(key_heads), heads(4)};
          backward.push_back(floating({2, 4, positions}));
          if (mask > 0) {
            const ir::TensorType type = mask == 1 ? boolean({2, 1, positions, positions})
                                                  : floating({2, 1, positions, positions});
            forward.push_back(type);
            backward.push_back(type);
          }
          expect_exact("attention", forward, attributes);
          expect_exact("attention_backward", backward, attributes);
        }
      }
    }
  }
}

TEST_P(Workspace, OfLookupsAndLosses) {
  const Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  expect_exact("embedding", {floating({100, 64}), i64({4, 32})});
  expect_exact(
      "embedding_backward", {floating({4, 32, 64}), i64({4, 32})}, {{"rows", std::int64_t{100}}});
  for (const std::int64_t classes : {10, 3000, 70000}) {
    const ir::TensorType logits = floating({64, classes});
    const ir::TensorType rows = floating({64});
    expect_exact("sum_exp", {logits, rows});
    expect_exact("label_score", {logits, i64({64}), rows}, ignore);
    expect_exact("label_score_backward", {rows, logits, i64({64}), rows}, ignore);
  }
}

/// A convolution and its gradients; f32 runs on oneDNN, f64 on columns.
TEST_P(Workspace, OfConvolutions) {
  for (const Filter& f : std::vector<Filter>{
           {.x = {4, 16, 20, 20}, .weight = {32, 16, 3, 3}, .padding = 1},
           {.x = {4, 3, 32, 32}, .weight = {64, 3, 7, 7}, .stride = 2, .padding = 3},
           {.x = {4, 64, 8, 8}, .weight = {64, 64, 1, 1}},
           {.x = {4, 64, 8, 8}, .weight = {32, 64, 1, 1}, .stride = 2},
           {.x = {4, 6, 8, 8}, .weight = {20, 6, 3, 3}, .padding = 1},
           {.x = {4, 20, 8, 8}, .weight = {3, 20, 3, 3}, .padding = 1},
           {.x = {4, 8, 12, 12}, .weight = {8, 8, 3, 3}, .padding = 1},
           {.x = {4, 2, 12, 12}, .weight = {8, 2, 3, 3}, .padding = 1},
           {.x = {4, 32, 12, 12}, .weight = {48, 32, 2, 2}, .stride = 2},
           {.x = {4, 24, 10, 10}, .weight = {24, 24, 3, 3}, .padding = 2, .dilation = 2},
           {.x = {4, 32, 10, 10}, .weight = {32, 1, 3, 3}, .padding = 1, .groups = 32},
           {.x = {4, 20, 10, 10}, .weight = {20, 1, 7, 7}, .padding = 3, .groups = 20},
           {.x = {4, 32, 10, 10}, .weight = {64, 8, 3, 3}, .padding = 1, .groups = 4},
           {.x = {4, 8, 10, 10}, .weight = {8, 2, 3, 3}, .padding = 1, .groups = 4},
           {.x = {2, 32, 2, 8}, .weight = {32, 1, 3, 3}, .padding = 1, .groups = 32},
           {.x = {4, 32, 6, 6, 6}, .weight = {32, 1, 3, 3, 3}, .padding = 1, .groups = 32},
           {.x = {4, 16, 20}, .weight = {24, 16, 5}, .padding = 2},
           {.x = {4, 16, 99}, .weight = {24, 16, 20}},
           {.x = {4, 16, 6, 6, 6}, .weight = {24, 16, 3, 3, 3}, .padding = 1},
           {.x = {2, 4, 4, 4, 4}, .weight = {6, 4, 3, 3, 3}, .padding = 1},
           {.x = {4, 16, 10, 10}, .weight = {16, 32, 2, 2}, .stride = 2, .transposed = true},
           {.x = {4, 16, 10, 10},
           .weight = {16, 8, 3, 3},
           .stride = 2,
           .padding = 1,
           .transposed = true},
           {.x = {4, 24, 10, 10}, .weight = {24, 40, 3, 3}, .padding = 1, .transposed = true}}) {
    expect_convolution(f);
  }
}

/// Where windows are cut in space, each part has its halo and no padding.
TEST_P(Workspace, OfConvolutionsCutInSpace) {
  for (const Filter& f : std::vector<Filter>{
           {.x = {4, 16, 20, 20}, .weight = {32, 16, 3, 3}, .padding = 1},
           {.x = {4, 64, 8, 8}, .weight = {64, 64, 1, 1}},
           {.x = {4, 32, 10, 10}, .weight = {32, 1, 3, 3}, .padding = 1, .groups = 32},
           {.x = {4, 32, 10, 10}, .weight = {64, 8, 3, 3}, .padding = 1, .groups = 4},
           {.x = {4, 16, 20}, .weight = {24, 16, 5}, .padding = 2},
           {.x = {4, 16, 6, 6, 6}, .weight = {24, 16, 3, 3, 3}, .padding = 1}}) {
    SCOPED_TRACE(ir::to_string(floating(f.weight)));
    Attributes attributes = attributes_of(f);
    const Types operands{floating(f.x), floating(f.weight)};
    const ir::TensorType y = ops::get("convolution").infer(operands, attributes).value()[0];
    expect_exact_when_cut("convolution", operands, attributes);
    attributes.set("size", IntList(f.x.begin() + 2, f.x.end()));
    expect_exact_when_cut("convolution_backward_input", {y, operands[1]}, attributes);
    attributes.set("size", IntList(f.weight.begin() + 2, f.weight.end()));
    expect_exact_when_cut("convolution_backward_weight", {y, operands[0]}, attributes);
  }
}

/// Layers of cells, of whose input a gradient is needed or not.
struct Cells {
  std::string target;
  std::int64_t steps;
  std::int64_t batch;
  std::int64_t input;
  std::int64_t hidden;
  std::int64_t layers;
  bool both_ways;
};

/// The operands of a call, what it makes, and its arguments.
struct CallSample {
  Types operands{};
  Types results{};
  Attributes attributes{};
};

CallSample call_of(const Cells& c, ir::DType dtype) {
  CallSample sample;
  const auto operand = [&](Shape shape) {
    sample.operands.push_back({dtype, std::move(shape)});
    return "$" + std::to_string(sample.operands.size() - 1);
  };
  const bool lstm = c.target == "aten.lstm.input";
  const std::int64_t directions = c.both_ways ? 2 : 1;
  const std::int64_t gates = (lstm ? 4 : c.target == "aten.gru.input" ? 3 : 1) * c.hidden;
  const Shape state{c.layers * directions, c.batch, c.hidden};
  std::string text = "input=" + operand({c.batch, c.steps, c.input});
  text += lstm ? ", hx=[" + operand(state) : ", hx=" + operand(state);
  text += lstm ? "," + operand(state) + "]" : "";
  std::string weights;
  for (std::int64_t cell = 0; cell < c.layers * directions; ++cell) {
    const std::int64_t width = cell < directions ? c.input : c.hidden * directions;
    for (const Shape& shape :
         {Shape{gates, width}, Shape{gates, c.hidden}, Shape{gates}, Shape{gates}}) {
      weights += (weights.empty() ? "" : ",") + operand(shape);
    }
  }
  const std::string both = c.both_ways ? "true" : "false";
  text += ", params=[" + weights + "], has_biases=true, num_layers=" + std::to_string(c.layers) +
          ", dropout=0.0, train=true, bidirectional=" + both + ", batch_first=true";
  sample.results.push_back({dtype, {c.batch, c.steps, c.hidden * directions}});
  sample.results.insert(sample.results.end(), lstm ? 2 : 1, {dtype, state});
  sample.attributes = {{"target", c.target}, {"arguments", text}, {"results", std::string()}};
  std::string results;
  for (const ir::TensorType& type : sample.results) {
    results += (results.empty() ? "same[" : " same[") + std::to_string(type.shape[0]) + "," +
               std::to_string(type.shape[1]) + "," + std::to_string(type.shape[2]) + "]";
  }
  sample.attributes.set("results", results);
  return sample;
}

TEST_P(Workspace, OfRecurrentCells) {
  for (const char* const target :
       {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}) {
    for (const Cells& cells : std::vector<Cells>{{target, 20, 16, 128, 128, 1, false},
                                                 {target, 50, 8, 64, 64, 2, false},
                                                 {target, 20, 16, 64, 128, 2, true},
                                                 {target, 7, 3, 20, 40, 1, false},
                                                 {target, 9, 6, 33, 65, 3, true},
                                                 {target, 1, 4, 12, 16, 1, true},
                                                 {target, 2, 4, 48, 12, 2, false}}) {
      for (const bool input : {true, false}) {
        CallSample sample = call_of(cells, GetParam());
        expect_about("call", sample.operands, sample.results, sample.attributes);
        IntList needed;
        Types gradients;
        for (std::size_t i = 0; i < sample.operands.size(); ++i) {
          if (sample.operands[i].rank() < 3 || (i == 0 && input)) {
            needed.push_back(static_cast<std::int64_t>(i));
            gradients.push_back(sample.operands[i]);
          }
        }
        sample.attributes.set("given", IntList{0});
        sample.attributes.set("needed", needed);
        sample.operands.push_back(sample.results[0]);
        expect_about("call_backward", sample.operands, gradients, sample.attributes);
      }
    }
  }
}

void Workspace::expect_call(const Called& c) {
  SCOPED_TRACE(c.target);
  std::string sizes;
  for (const std::int64_t size : c.result) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  }
  Attributes attributes{
      {"target", c.target}, {"arguments", c.arguments}, {"results", "same[" + sizes + "]"}};
  expect_exact("call", c.operands, attributes);
  if (c.needed.empty()) {
    return;
  }
  attributes.set("given", IntList{0});
  attributes.set("needed", c.needed);
  Types operands = c.operands;
  operands.push_back(floating(c.result));
  expect_exact("call_backward", operands, attributes);
}

TEST_P(Workspace, OfCalls) {
  const auto f = [](Shape shape) { return floating(std::move(shape)); };
  const std::string triplet = "anchor=$0, positive=$1, negative=$2";
  const std::string pair = "x1=$0, x2=$1";
  const std::string norm = "v=$0, g=$1, dim=";
  const std::string features = "input1=$0, input2=$1, weight=$2, bias=$3";
  const std::string grid =
      "input=$0, grid=$1, interpolation_mode=0, padding_mode=0, "
      "align_corners=false";
  const std::string theta = "theta=$0, size=[4,1,8,16], align_corners=false";
  for (const Called& c : std::vector<Called>{
           {"aten.triplet_margin_loss.default", triplet, Types(3, f({16, 8})), {}, {0, 1, 2}},
           {"aten.triplet_margin_loss.default", triplet, Types(3, f({64, 128})), {}, {0, 1, 2}},
           {"aten.cdist.default", pair, {f({8, 8}), f({16, 8})}, {8, 16}, {0, 1}},
           {"aten.cdist.default", pair, {f({8, 8}), f({16, 8})}, {8, 16}, {0}},
           {"aten.cdist.default", pair, {f({3, 32, 24}), f({3, 16, 24})}, {3, 32, 16}, {0, 1}},
           {"aten.linalg_inv.default", "A=$0", {f({2, 16, 16})}, {2, 16, 16}, {0}},
           {"aten.linalg_inv.default", "A=$0", {f({8, 64, 64})}, {8, 64, 64}, {0}},
           {"aten.linalg_solve.default", "A=$0, B=$1", {f({2, 2}), f({2, 4})}, {2, 4}, {0, 1}},
           {"aten.linalg_solve.default",
            "A=$0, B=$1",
            {f({8, 64, 64}), f({8, 64, 16})},
            {8, 64, 16},
            {0, 1}},
           {"aten.bilinear.default",
            features,
            {f({8, 16}), f({8, 12}), f({3, 16, 12}), f({3})},
            {8, 3},
            {0, 1, 2, 3}},
           {"aten.bilinear.default",
            features,
            {f({4, 32}), f({4, 16}), f({12, 32, 16}), f({12})},
            {4, 12},
            {0, 1, 2, 3}},
           {"aten.cumprod.default", "self=$0, dim=1", {f({64, 30})}, {64, 30}, {0}},
           {"aten.affine_grid_generator.default", theta, {f({4, 2, 3})}, {4, 8, 16, 2}, {0}},
           {"aten.grid_sampler.default",
            grid,
            {f({2, 3, 16, 16}), f({2, 8, 8, 2})},
            {2, 3, 8, 8},
            {0, 1}},
           {"aten._weight_norm.default",
            norm + "0",
            {f({32, 8, 16}), f({32, 1, 1})},
            {32, 8, 16},
            {0, 1}},
           {"aten._weight_norm.default",
            norm + "2",
            {f({32, 8, 16}), f({1, 1, 16})},
            {32, 8, 16},
            {0, 1}},
           {"aten.multiply.Tensor", "self=$0, other=$1", Types(2, f({4, 16})), {4, 16}, {0, 1}},
           {"aten.multiply.Tensor", "self=$0, other=$1", {f({4, 16}), f({16})}, {4, 16}, {0, 1}},
           {"aten.histc.default", "self=$0, bins=4, min=0, max=3", {f({128})}, {4}},
           {"aten.diff.default",
            "self=$0, n=1, dim=-1, prepend=$1",
            {f({4, 40}), f({4, 1})},
            {4, 40}}}) {
    expect_call(c);
  }
}

/// One step of a cell.
TEST_P(Workspace, OfSingleCells) {
  const std::int64_t batch = 8;
  const std::int64_t hidden = 16;
  const ir::TensorType state = floating({batch, hidden});
  for (const auto& [target, gates] : {std::pair("aten.lstm_cell.default", 4),
                                      std::pair("aten.gru_cell.default", 3),
                                      std::pair("aten.rnn_tanh_cell.default", 1)}) {
    const bool lstm = gates == 4;
    Types operands{state, state};
    std::string text = "input=$0, hx=$1, w_ih=$2, w_hh=$3, b_ih=$4, b_hh=$5";
    if (lstm) {
      operands.push_back(state);
      text = "input=$0, hx=[$1,$2], w_ih=$3, w_hh=$4, b_ih=$5, b_hh=$6";
    }
    operands.insert(operands.end(), 2, floating({gates * hidden, hidden}));
    operands.insert(operands.end(), 2, floating({gates * hidden}));
    IntList needed(operands.size());
    std::iota(needed.begin(), needed.end(), std::int64_t{0});
    Attributes attributes{{"target", std::string(target)},
                          {"arguments", text},
                          {"results", std::string(lstm ? "same[8,16] same[8,16]" : "same[8,16]")}};
    expect_exact("call", operands, attributes);
    attributes.set("given", IntList{0});
    attributes.set("needed", needed);
    operands.push_back(state);
    expect_exact("call_backward", operands, attributes);
  }
}

TEST_P(Workspace, OfBatchAndGroupNorms) {
  const ir::TensorType x = floating({4, 32, 10, 10});
  const ir::TensorType c = floating({32});
  const ir::TensorType moments{DType::kFloat64, {3, 32}};
  const Attributes eps{{"eps", 1e-5}};
  expect_exact("batch_moments", {x});
  expect_exact("batch_moments", {floating({64, 32})});
  expect_exact("batch_moments", {floating({64, 32, 1, 1})});
  expect_exact("batch_statistics", {moments}, {{"dtype", std::string(ir::dtype_name(GetParam()))}});
  expect_exact("batch_running", {moments, c, c}, {{"momentum", 0.1}});
  expect_exact("batch_norm",
               {x, c, c, c, c},
               {{"eps", 1e-5}, {"training", true}, {"weight", true}, {"bias", true}});
  expect_exact("batch_norm_sums", {x, x, c, c}, eps);
  expect_exact("batch_norm_sums", {floating({64, 32}), floating({64, 32}), c, c}, eps);
  expect_exact("batch_norm_backward", {x, x, c, c, moments, c}, {{"eps", 1e-5}, {"weight", true}});
  const ir::TensorType grouped = floating({4, 8, 4, 10, 10});
  const ir::TensorType weight = floating({8, 4});
  const ir::TensorType groups = floating({4, 8});
  const Attributes affine{{"eps", 1e-5}, {"weight", true}, {"bias", true}};
  expect_exact("group_norm", {grouped, weight, weight}, affine);
  expect_exact("group_norm_backward", {grouped, grouped, groups, groups, weight}, affine);
}

/// A batch so small that its sums and factors outweigh it.
TEST_P(Workspace, OfBatchNormsOfFewElements) {
  const ir::TensorType x = floating({2, 32, 1, 1});
  const ir::TensorType c = floating({32});
  const ir::TensorType sums{DType::kFloat64, {3, 32}};
  for (const bool weight : {false, true}) {
    Types operands{x, x, c, c, sums};
    operands.insert(operands.end(), weight ? 1 : 0, c);
    expect_exact("batch_norm_backward", operands, {{"eps", 1e-5}, {"weight", weight}});
  }
}

TEST_P(Workspace, OfSpaceAndSelections) {
  const ir::TensorType x = floating({4, 16, 20, 20});
  const Attributes windows{{"kernel", IntList{3, 3}},
                           {"stride", IntList{2, 2}},
                           {"padding", IntList{1, 1}},
                           {"ceil", false}};
  Attributes maxima = windows;
  maxima.set("dilation", IntList{1, 1});
  expect_exact("max_pool", {x}, maxima);
  expect_exact_when_cut("max_pool", {x}, maxima);
  maxima.set("size", IntList{20, 20});
  expect_exact("max_pool_backward", {floating({4, 16, 10, 10}), i64({4, 16, 10, 10})}, maxima);
  Attributes means = windows;
  means.set("count_padding", true);
  expect_exact("avg_pool", {x}, means);
  expect_exact_when_cut("avg_pool", {x}, means);
  means.set("size", IntList{20, 20});
  expect_exact("avg_pool_backward", {floating({4, 16, 10, 10})}, means);
  expect_exact_when_cut("avg_pool_backward", {floating({4, 16, 10, 10})}, means);
  for (const char* const mode : {"nearest", "linear"}) {  // a pixel has its channels first and last
    const std::string name(mode);
    const ir::TensorType pixel = floating({4, 16, 1, 1});
    expect_exact("resample", {pixel}, {{"mode", name}, {"size", IntList{4, 4}}});
    expect_exact("resample", {x}, {{"mode", name}, {"size", IntList{1, 1}}});
    expect_exact("resample_backward", {pixel}, {{"mode", name}, {"size", IntList{4, 4}}});
  }
  for (const char* const mode : {"nearest", "linear", "cubic"}) {
    const std::string name(mode);
    expect_exact("resample", {x}, {{"mode", name}, {"size", IntList{40, 40}}});
    expect_exact("resample_backward",
                 {floating({4, 16, 40, 40})},
                 {{"mode", name}, {"size", IntList{20, 20}}});
  }
  expect_exact_when_cut("resample",
                        {floating({4, 16, 18, 20})},
                        {{"mode", std::string("linear")}, {"size", IntList{36, 40}}});
  expect_exact_when_cut("resample_backward",
                        {floating({4, 16, 36, 40})},
                        {{"mode", std::string("linear")}, {"size", IntList{18, 20}}});
  const ir::TensorType rows = floating({64, 100});
  const std::int64_t one = 1;
  expect_exact("gather", {rows, i64({64, 30})}, {{"dim", one}});
  expect_exact("scatter_sum",
               {floating({64, 30}), i64({64, 30})},
               {{"dim", one}, {"shape", IntList{64, 100}}});
  expect_exact("log_softmax", {rows}, {{"dim", one}});
  expect_exact("log_softmax_backward", {rows, rows}, {{"dim", one}});
  expect_exact("max_index", {rows}, {{"dim", one}, {"smallest", false}});
  expect_exact("topk", {rows}, {{"dim", one}, {"k", 5 * one}, {"smallest", false}});
  expect_exact("sort", {rows}, {{"dim", one}, {"descending", true}});
  for (const char* const name : {"erf", "log1p", "hardswish", "mish"}) {
    expect_exact(name, {rows});
  }
  expect_exact("hardswish_backward", {rows, rows});
  expect_exact("mish_backward", {rows, rows});
}

TEST_P(Workspace, OfUpdates) {
  const ir::TensorType p = floating({64, 32});
  expect_exact("accumulate", {p, p});
  expect_exact("adam_update",
               {p, p, p, p, floating({})},
               {{"lr", 0.1},
                {"beta1", 0.9},
                {"beta2", 0.99},
                {"eps", 1e-8},
                {"weight_decay", 0.0},
                {"decoupled", true}});
}

/// bf16, where kernels keep sums in f32.
class NarrowWorkspace : public Workspace {};

TEST_P(NarrowWorkspace, OfProducts) {
  const std::vector<std::pair<std::string, std::pair<Shape, Shape>>> cases{
      {"bsk,nk->bsn", {{4, 32, 64}, {128, 64}}},
      {"bsk,nk->bsn", {{8, 128, 256}, {512, 256}}},
      {"bsk,nk->bsn", {{8, 128, 1024}, {512, 1024}}},
      {"bsn,nk->bsk", {{4, 32, 128}, {128, 64}}},
      {"bqhd,bkhd->bhqk", {{4, 32, 8, 16}, {4, 32, 8, 16}}},
      {"mk,kn->mn", {{16, 16}, {16, 16}}},  // too small for oneDNN
      {"mk,kn->mn", {{16, 16}, {16, 17}}},
      {"bmk,bkn->bmn", {{3, 8, 16}, {3, 16, 16}}},
      {"mk,kn->mn", {{257, 65}, {65, 33}}},
      {"mk,kn->mn", {{96, 200}, {200, 1}}},
      {"bmk,bkn->bmn", {{3, 160, 6000}, {3, 6000, 1}}},
      {"mk,kn->mn", {{1, 6000}, {6000, 160}}},
      {"km,kn->mn", {{768, 257}, {768, 1000}}},
      {"km,kn->mn", {{600, 768}, {600, 256}}},
      {"km,kn->mn", {{512, 65}, {512, 300}}},
      {"bkm,bkn->bmn", {{2, 1000, 192}, {2, 1000, 257}}},
      {"mk,kn->nm", {{257, 768}, {768, 768}}},
      {"bqhd,khd->bhqk", {{2, 16, 4, 8}, {32, 4, 8}}},  // heads lie inside: oneDNN wants copies
      {"qhd,khd->hqk", {{48, 4, 16}, {32, 4, 16}}},
      {"hkq,khd->hqd", {{4, 32, 48}, {32, 4, 16}}}};
  for (const auto& [equation, shapes] : cases) {
    SCOPED_TRACE(equation);
    expect_exact(
        "einsum", {floating(shapes.first), floating(shapes.second)}, {{"equation", equation}});
  }
}

TEST_P(NarrowWorkspace, OfLookups) {
  const ir::TensorType rows = floating({2, 32, 32, 10});
  const ir::TensorType lse{DType::kFloat32, {2, 32, 32}};
  expect_exact(
      "label_score", {rows, i64({2, 32, 32}), lse}, {{"ignore_index", std::int64_t{-100}}});
  for (const std::int64_t dim : {0, 1, 2}) {
    expect_exact("take_backward",
                 {floating({5, 5, 5})},
                 {{"dim", dim}, {"places", IntList{0, 1, 2, 3, 4}}, {"size", std::int64_t{9}}});
  }
  expect_exact("scatter_sum",
               {floating({64, 30}), i64({64, 30})},
               {{"dim", std::int64_t{1}}, {"shape", IntList{64, 100}}});
}

TEST_P(NarrowWorkspace, OfSumsAndBatchNorm) {
  const ir::TensorType x = floating({4, 32, 10, 10});
  const ir::TensorType c{DType::kFloat32, {32}};
  expect_exact("sum", {x}, {{"dims", IntList{0, 2, 3}}});
  expect_exact("sum", {x}, {{"dims", IntList{0, 1}}});
  expect_exact("batch_norm_backward",
               {x, x, c, c, {DType::kFloat64, {3, 32}}, c},
               {{"eps", 1e-5}, {"weight", true}});
  for (const ir::TensorType& some :
       {x, floating({64, 32}), floating({64, 32, 1, 1}), floating({4, 32, 40, 40})}) {
    expect_exact("batch_moments", {some});
    expect_exact("batch_norm_sums", {some, some, c, c}, {{"eps", 1e-5}});
  }
  const ir::TensorType grouped = floating({4, 8, 4, 10, 10});
  const ir::TensorType groups{DType::kFloat32, {4, 8}};
  for (const bool affine : {false, true}) {
    const Attributes attributes{{"eps", 1e-5}, {"weight", affine}, {"bias", affine}};
    Types forward{grouped};
    Types backward{grouped, grouped, groups, groups};
    if (affine) {
      forward.insert(forward.end(), 2, floating({8, 4}));
      backward.push_back(floating({8, 4}));
    }
    expect_exact("group_norm", forward, attributes);
    expect_exact("group_norm_backward", backward, attributes);
  }
}

/// Convolutions in pairs of bf16, and what oneDNN turns around for the gradient of a weight.
TEST_P(NarrowWorkspace, OfConvolutions) {
  for (const Filter& f : std::vector<Filter>{
           {.x = {2, 3, 10, 10}, .weight = {4, 3, 3, 3}},
           {.x = {2, 3, 32, 32}, .weight = {32, 3, 8, 8}, .stride = 8},
           {.x = {2, 16, 9, 9}, .weight = {16, 16, 3, 3}, .padding = 1},
           {.x = {2, 32, 8, 8}, .weight = {16, 32, 3, 3}, .stride = 2, .padding = 1},
           {.x = {2, 8, 9, 9}, .weight = {16, 8, 3, 3}, .stride = 2, .padding = 1},
           {.x = {2, 64, 8, 8}, .weight = {16, 64, 2, 2}, .stride = 2},
           {.x = {2, 16, 7, 7}, .weight = {48, 16, 1, 1}},
           {.x = {2, 16, 15, 15}, .weight = {48, 16, 1, 1}},
           {.x = {2, 128, 2, 2},
           .weight = {128, 1, 3, 3},
           .stride = 2,
           .padding = 1,
           .groups = 128},
           {.x = {2, 16, 4, 4},
           .weight = {16, 8, 4, 4},
           .stride = 2,
           .padding = 1,
           .transposed = true}}) {
    expect_convolution(f);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowWorkspace, ::testing::Values(DType::kBFloat16));

INSTANTIATE_TEST_SUITE_P(Types,
                         Workspace,
                         ::testing::Values(DType::kFloat32, DType::kFloat64),
                         [](const auto& instance) {
                           return std::string(ir::dtype_name(instance.param));
                         });

}  // namespace
}  // namespace shardplan::runtime
