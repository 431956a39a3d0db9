// The workspace formulas of `ops` against what the kernels allocate, counted to the byte, in f32
// and f64 with one thread.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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
    std::string types;
    for (std::size_t r = 0; r < results->size(); ++r) {
      const bool fresh = !def.view && (r >= def.in_place.size() || def.in_place[r] < 0);
      made += fresh ? (*results)[r].bytes() : 0;
    }
    std::vector<at::Tensor> operands;
    for (const ir::TensorType& type : inputs) {
      operands.push_back(content(type));
      types += " " + ir::to_string(type);
    }
    MemoryCounter counter;
    {
      const MemoryScope scope(counter);
      find_kernel(name)(KernelCall{operands, attributes, *results, {}, {}});
    }
    const Bytes expected =
        def.workspace == nullptr ? 0 : def.workspace(ops::OpView{inputs, *results, attributes});
    EXPECT_NEAR(static_cast<double>(counter.peak() - made), static_cast<double>(expected), 16)
        << name << types;
  }

 private:
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
      {"ab,cb->ca", {{32, 64}, {16, 64}}}};
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

INSTANTIATE_TEST_SUITE_P(Types,
                         Workspace,
                         ::testing::Values(DType::kFloat32, DType::kFloat64),
                         [](const auto& instance) {
                           return std::string(ir::dtype_name(instance.param));
                         });

}  // namespace
}  // namespace shardplan::runtime
