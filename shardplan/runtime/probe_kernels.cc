#include "shardplan/runtime/probe_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"
#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {
namespace {

using ir::Attributes;
using ir::DType;
using ir::TensorType;

constexpr std::int64_t kColumns = 512;
constexpr std::int64_t kIds = 256;  ///< ids and labels stay below

TensorType floats(ir::Shape shape) {
  return {DType::kFloat32, std::move(shape)};
}
TensorType ids(ir::Shape shape) {
  return {DType::kInt64, std::move(shape)};
}

void add_elementwise(const TensorType& x, std::vector<KernelSample>& out) {
  for (const char* const op : {"neg",
                               "exp",
                               "log",
                               "sqrt",
                               "rsqrt",
                               "tanh",
                               "sigmoid",
                               "relu",
                               "silu",
                               "sin",
                               "cos",
                               "abs"}) {
    out.push_back({op, {}, {x}});
  }
  for (const char* const op : {"add", "sub", "mul", "div", "maximum"}) {
    out.push_back({op, {}, {x, x}});
  }
  for (const char* const op :
       {"tanh_backward", "sigmoid_backward", "silu_backward", "relu_backward"}) {
    out.push_back({op, {}, {x, x}});
  }
  const Attributes costlier{{"approximate", std::string("tanh")}};
  out.push_back({"gelu", costlier, {x}});
  out.push_back({"gelu_backward", costlier, {x, x}});
  out.push_back({"scale", {{"factor", 0.5}}, {x}});
  out.push_back({"add_scalar", {{"value", 0.5}}, {x}});
  out.push_back({"pow_scalar", {{"exponent", 2.0}}, {x}});
  out.push_back({"cast", {{"dtype", std::string("bf16")}}, {x}});
  out.push_back({"dropout", {{"p", 0.1}, {"seed", std::int64_t{1}}}, {x}});
}

void add_rows(std::int64_t rows, const TensorType& x, std::vector<KernelSample>& out) {
  const TensorType row = floats({rows});
  const TensorType column = floats({kColumns});
  const Attributes last{{"dim", std::int64_t{1}}};
  const Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  const Attributes norm{{"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", true}, {"bias", true}};
  out.push_back({"softmax", last, {x}});
  out.push_back({"softmax_backward", last, {x, x}});
  out.push_back({"layer_norm", norm, {x, column, column}});
  out.push_back({"layer_norm_backward", norm, {x, x, row, row, column}});
  out.push_back({"sum", {{"dims", ir::IntList{0}}}, {x}});
  out.push_back({"max", {{"dims", ir::IntList{1}}}, {x}});
  out.push_back({"sum_exp", {}, {x, row}});
  out.push_back({"label_score_backward", ignore, {row, x, ids({rows}), row}});
  out.push_back({"transpose", {{"permutation", ir::IntList{1, 0}}}, {x}});
  out.push_back({"concat", {{"dim", std::int64_t{1}}}, {x, x}});
  out.push_back({"embedding", {}, {floats({kIds, kColumns}), ids({rows})}});
  out.push_back({"embedding_backward", {{"rows", kIds}}, {x, ids({rows})}});
}

void add_updates(const TensorType& x, std::vector<KernelSample>& out) {
  out.push_back({"accumulate", {}, {x, x}});
  out.push_back({"sum_squares", {}, {x}});
  out.push_back({"sgd_update",
                 {{"lr", 0.1},
                  {"momentum", 0.9},
                  {"dampening", 0.0},
                  {"weight_decay", 0.0},
                  {"nesterov", false},
                  {"has_momentum", true}},
                 {x, x, x, floats({})}});
  out.push_back({"adam_update",
                 {{"lr", 0.1},
                  {"beta1", 0.9},
                  {"beta2", 0.99},
                  {"eps", 1e-8},
                  {"weight_decay", 0.0},
                  {"decoupled", true}},
                 {x, x, x, x, floats({})}});
}

/// Heads of width 64 over 128 positions, the most usual shape.
void add_attention(std::int64_t elements, std::vector<KernelSample>& out) {
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kPositions = 128;
  const std::int64_t heads = std::max<std::int64_t>(1, elements / (kWidth * kPositions));
  const TensorType x = floats({1, kPositions, heads, kWidth});
  const Attributes attributes{
      {"layout", std::string("bshd")}, {"causal", true}, {"scale", 0.125}, {"mask", false}};
  out.push_back({"attention", attributes, {x, x, x}});
  out.push_back(
      {"attention_backward", attributes, {x, x, x, x, x, floats({1, heads, kPositions})}});
}

ops::Types results_of(const KernelSample& sample) {
  Result<ops::Types> results = ops::get(sample.op).infer(sample.inputs, sample.attributes);
  SHARDPLAN_CHECK(results.has_value()) << sample.op << ": " << results.error().text();
  return *std::move(results);
}

at::Tensor content(const TensorType& type) {
  return type.dtype == DType::kInt64
             ? at::randint(0, kIds, type.shape, at::TensorOptions(at::kLong))
             : at::rand(type.shape, at::TensorOptions(scalar_type(type.dtype)));
}

}  // namespace

std::vector<KernelSample> kernel_samples(std::int64_t elements) {
  const std::int64_t rows = std::max<std::int64_t>(1, elements / kColumns);
  const TensorType x = floats({rows, kColumns});
  std::vector<KernelSample> out;
  add_elementwise(x, out);
  add_rows(rows, x, out);
  add_updates(x, out);
  add_attention(elements, out);
  return out;
}

std::int64_t cold_sets(Bytes bytes) {
  constexpr Bytes kBeyondCaches = Bytes{64} << 20;
  constexpr Bytes kMostSets = 32;
  return std::clamp<Bytes>(kBeyondCaches / std::max<Bytes>(bytes, 1), 1, kMostSets);
}

double size_of(const KernelSample& sample) {
  const ops::OpDef& op = ops::get(sample.op);
  const ops::Types results = results_of(sample);
  const ops::OpView view{sample.inputs, results, sample.attributes};
  return op.matmul
             ? op.flops(view)
             : static_cast<double>(lower::memory_traffic(op.axes(view), sample.inputs, results));
}

std::function<void()> work_of(const KernelSample& sample) {
  struct Work {
    KernelSample sample;
    ops::Types results;
    std::vector<std::vector<at::Tensor>> operands;
    Kernel kernel;
    std::size_t calls = 0;
  };
  const auto work =
      std::make_shared<Work>(Work{sample, results_of(sample), {}, find_kernel(sample.op)});
  Bytes bytes = 0;
  for (const TensorType& type : sample.inputs) {
    bytes += type.bytes();
  }
  for (std::int64_t set = 0; set < cold_sets(bytes); ++set) {
    std::vector<at::Tensor>& operands = work->operands.emplace_back();
    for (const TensorType& type : sample.inputs) {
      operands.push_back(content(type));
    }
  }
  return [work] {
    const std::vector<at::Tensor>& operands = work->operands[work->calls++ % work->operands.size()];
    (void)work->kernel(KernelCall{operands, work->sample.attributes, work->results, {}, {}});
  };
}

}  // namespace shardplan::runtime
