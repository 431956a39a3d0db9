// Every op on every layout that its axis map allows: the kernel on each rank's parts, put together
// as the map says (parts side by side, partial sums added, partial maxima compared), must give what
// the kernel gives on the whole tensors. This holds axis maps, partial rules and positions to their
// meaning.

#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharded_op.h"
#include "shardplan/ops/op.h"

namespace shardplan::runtime {
namespace {

using cluster::DeviceMesh;
using ir::Attributes;
using ir::IntList;
using ops::Types;
using sharding::Strategy;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kRows = 12;  ///< of tables and classes; ids are below

at::Tensor content(const ir::TensorType& type) {
  if (type.dtype == ir::DType::kInt64) {
    return at::randint(0, kRows, type.shape, at::TensorOptions(at::kLong));
  }
  const at::Tensor uniform =
      at::rand(type.shape, at::TensorOptions(at::kDouble)).mul(0.8).add(0.15);
  return type.dtype == ir::DType::kBool ? uniform.gt(0.4) : uniform;
}

struct Sample {
  std::string op;
  Types inputs;
  Attributes attributes{};

  [[nodiscard]] Tensors contents() const {
    Tensors out;
    for (const ir::TensorType& type : inputs) {
      out.push_back(content(type));
    }
    if (op == "max_pool_backward") {  // places that windows can see
      ir::TensorType whole{inputs[0].dtype, {inputs[0].shape[0], inputs[0].shape[1]}};
      const IntList& space = attributes.ints("size");
      whole.shape.insert(whole.shape.end(), space.begin(), space.end());
      out[1] = find_kernel("max_pool")(
          KernelCall{{content(whole)}, attributes, inputs, {}, RandomState{}, {}})[1];
    }
    if (op.starts_with("grouped_")) {
      out[2] = std::get<0>(out[2].sort());  // ends of runs: some are empty
    }
    return out;
  }
};

ir::TensorType f64(ir::Shape shape) {
  return {ir::DType::kFloat64, std::move(shape)};
}
ir::TensorType i64(ir::Shape shape) {
  return {ir::DType::kInt64, std::move(shape)};
}
ir::TensorType boolean(ir::Shape shape) {
  return {ir::DType::kBool, std::move(shape)};
}

// ---- samples: one or more of every op ----

void add_elementwise(std::vector<Sample>& out) {
  const ir::TensorType x = f64({4, 1, 6});
  for (const char* const name : {"identity",
                                 "detach",
                                 "neg",
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
                                 "relu",
                                 "silu",
                                 "logical_not"}) {
    out.push_back({name, {x}});
  }
  for (const char* const name : {"add",
                                 "sub",
                                 "mul",
                                 "div",
                                 "maximum",
                                 "minimum",
                                 "eq",
                                 "ne",
                                 "lt",
                                 "le",
                                 "gt",
                                 "ge",
                                 "logical_and",
                                 "logical_or"}) {
    out.push_back({name, {f64({4, 6}), f64({4, 6})}});
    out.push_back({name, {f64({1, 6}), f64({2, 4, 1})}});
  }
  for (const char* const name : {"eq_scalar",
                                 "ne_scalar",
                                 "lt_scalar",
                                 "le_scalar",
                                 "gt_scalar",
                                 "ge_scalar",
                                 "add_scalar",
                                 "maximum_scalar",
                                 "minimum_scalar"}) {
    out.push_back({name, {x}, {{"value", 0.5}}});
  }
  for (const char* const name :
       {"tanh_backward", "sigmoid_backward", "relu_backward", "silu_backward"}) {
    out.push_back({name, {x, x}});
  }
  const Attributes gelu{{"approximate", std::string("tanh")}};
  out.push_back({"gelu", {x}, gelu});
  out.push_back({"gelu_backward", {x, x}, gelu});
  out.push_back({"scale", {x}, {{"factor", 0.5}}});
  out.push_back({"pow_scalar", {x}, {{"exponent", 3.0}}});
  out.push_back({"where", {boolean({4, 1}), f64({4, 6}), f64({})}});
  out.push_back({"cast", {x}, {{"dtype", std::string("f32")}}});
  out.push_back({"dropout", {f64({4, 2, 6})}, {{"p", 0.4}, {"seed", std::int64_t{3}}}});
}

void add_shape(std::vector<Sample>& out) {
  const std::int64_t one = 1;
  out.push_back({"reshape", {f64({4, 8, 6})}, {{"shape", IntList{8, 4, 2, 3}}}});
  out.push_back({"transpose", {f64({2, 4, 6})}, {{"permutation", IntList{2, 0, 1}}}});
  out.push_back({"broadcast", {f64({4, 1})}, {{"shape", IntList{2, 4, 6}}}});
  out.push_back({"slice",
                 {f64({4, 8})},
                 {{"dim", one}, {"start", one}, {"end", 7 * one}, {"step", 2 * one}}});
  out.push_back(
      {"pad", {f64({4, 8})}, {{"dim", one}, {"before", one}, {"after", 2 * one}, {"value", 0.0}}});
  out.push_back(
      {"pad", {f64({4, 8})}, {{"dim", one}, {"before", one}, {"after", 2 * one}, {"value", 2.0}}});
  out.push_back({"concat", {f64({4, 8}), f64({4, 2})}, {{"dim", one}}});
  out.push_back(
      {"iota", {}, {{"shape", IntList{4, 6}}, {"dim", one}, {"dtype", std::string("i64")}}});
  out.push_back(
      {"full", {}, {{"shape", IntList{4, 6}}, {"value", 1.5}, {"dtype", std::string("f64")}}});
  for (const char* const name : {"sum", "max"}) {
    out.push_back({name, {f64({4, 2, 6})}, {{"dims", IntList{0, 2}}, {"keepdim", false}}});
    out.push_back({name, {f64({4, 2, 6})}, {{"dims", IntList{1}}, {"keepdim", true}}});
  }
  out.push_back({"cumsum", {f64({4, 6})}, {{"dim", one}}});
  out.push_back({"sum_squares", {f64({4, 6})}});
  out.push_back({"clip_scale", {f64({})}, {{"max_norm", 0.5}}});
}

void add_products(std::vector<Sample>& out) {
  const std::vector<std::pair<std::string, std::pair<ir::Shape, ir::Shape>>> cases{
      {"bsk,nk->bsn", {{4, 2, 6}, {8, 6}}},
      {"bsn,bsk->nk", {{4, 2, 8}, {4, 2, 6}}},
      {"bqhd,bkhd->bhqk", {{2, 4, 2, 3}, {2, 6, 2, 3}}},
      {"ab,ab->", {{4, 6}, {4, 6}}}};
  for (const auto& [equation, shapes] : cases) {
    out.push_back({"einsum", {f64(shapes.first), f64(shapes.second)}, {{"equation", equation}}});
  }
}

void add_attention(std::vector<Sample>& out) {
  for (const bool last : {true, false}) {
    for (const std::int64_t key_heads : {4, 2, 1}) {
      for (const int mask : {0, 1, 2}) {
        const auto heads = [&](std::int64_t h, std::int64_t positions) {
          return f64(last ? ir::Shape{2, positions, h, 3} : ir::Shape{2, h, positions, 3});
        };
        const Attributes attributes{{"layout", std::string(last ? "bshd" : "bhsd")},
                                    {"causal", mask == 1},
                                    {"scale", 0.5},
                                    {"mask", mask == 2}};
        const ir::TensorType q = heads(4, 4);
        const ir::TensorType k = heads(key_heads, mask == 1 ? 4 : 6);
        Types forward{q, k, k};
        Types backward{q, q, k, k, q, f64({2, 4, 4})};
        if (mask == 2) {
          forward.push_back(f64({1, 4, 4, 6}));
          backward.push_back(f64({1, 4, 4, 6}));
        }
        out.push_back({"attention", forward, attributes});
        out.push_back({"attention_backward", backward, attributes});
      }
    }
  }
}

void add_model_ops(std::vector<Sample>& out) {
  const ir::TensorType x = f64({4, 2, 6});
  out.push_back({"softmax", {x}, {{"dim", std::int64_t{1}}}});
  out.push_back({"softmax_backward", {x, x}, {{"dim", std::int64_t{2}}}});
  const Attributes norm{{"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", true}, {"bias", true}};
  out.push_back({"layer_norm", {x, f64({6}), f64({6})}, norm});
  out.push_back({"layer_norm_backward", {x, x, f64({4, 2}), f64({4, 2}), f64({6})}, norm});
  out.push_back({"embedding", {f64({kRows, 6}), i64({4, 2})}});
  out.push_back({"embedding_backward", {x, i64({4, 2})}, {{"rows", kRows}}});
  const Attributes ignore{{"ignore_index", std::int64_t{2}}};
  const ir::TensorType logits = f64({4, 2, kRows});
  const ir::TensorType rows = f64({4, 2});
  out.push_back({"sum_exp", {logits, rows}});
  out.push_back({"label_score", {logits, i64({4, 2}), rows}, ignore});
  out.push_back({"label_score_backward", {rows, logits, i64({4, 2}), rows}, ignore});
}

Attributes window(std::size_t rank,
                  std::int64_t stride,
                  std::int64_t dilation,
                  std::int64_t groups,
                  bool transposed) {
  return {{"stride", IntList(rank, stride)},
          {"padding", IntList(rank, 1)},
          {"dilation", IntList(rank, dilation)},
          {"output_padding", IntList(rank, transposed ? stride - 1 : 0)},
          {"transposed", transposed},
          {"groups", groups}};
}

/// A convolution of x by a weight and its two gradients.
void add_convolution(std::vector<Sample>& out,
                     const ir::Shape& x,
                     const ir::Shape& weight,
                     const Attributes& attributes) {
  const Types operands{f64(x), f64(weight)};
  const Types y = ops::get("convolution").infer(operands, attributes).value();
  out.push_back({"convolution", operands, attributes});
  Attributes input = attributes;
  input.set("size", IntList(x.begin() + 2, x.end()));
  out.push_back({"convolution_backward_input", {y[0], operands[1]}, input});
  Attributes kernel = attributes;
  kernel.set("size", IntList(weight.begin() + 2, weight.end()));
  out.push_back({"convolution_backward_weight", {y[0], operands[0]}, kernel});
}

void add_convolutions(std::vector<Sample>& out) {
  add_convolution(out, {4, 6, 7}, {12, 6, 3}, window(1, 2, 1, 1, false));
  add_convolution(out, {4, 6, 5, 4}, {12, 6, 3, 2}, window(2, 1, 1, 1, false));
  add_convolution(out, {4, 8, 5, 5}, {12, 2, 3, 3}, window(2, 2, 2, 4, false));
  add_convolution(out, {2, 6, 5, 5}, {12, 1, 3, 3}, window(2, 1, 1, 6, false));
  add_convolution(out, {2, 6, 5, 5}, {6, 1, 3, 3}, window(2, 1, 1, 6, false));
  add_convolution(out, {2, 6, 3, 3}, {6, 4, 3, 3}, window(2, 2, 1, 1, true));
  add_convolution(out, {2, 12, 3, 3}, {12, 2, 3, 3}, window(2, 2, 1, 6, true));
  add_convolution(out, {2, 4, 3, 3, 3}, {6, 4, 3, 3, 3}, window(3, 1, 1, 1, false));
  // Windows that reach past the neighbours' parts, that leave elements out, that pad much.
  for (const bool transposed : {false, true}) {
    const auto attributes = [&](IntList stride, IntList padding, IntList dilation) {
      return Attributes{{"stride", std::move(stride)},
                        {"padding", std::move(padding)},
                        {"dilation", std::move(dilation)},
                        {"output_padding", IntList(2, 0)},
                        {"transposed", transposed},
                        {"groups", std::int64_t{1}}};
    };
    add_convolution(out, {2, 2, 9, 7}, {2, 2, 5, 3}, attributes({1, 2}, {4, 1}, {1, 2}));
    add_convolution(out, {2, 2, 11, 7}, {2, 2, 2, 1}, attributes({3, 2}, {1, 0}, {1, 1}));
    add_convolution(out, {1, 2, 13, 8}, {2, 2, 1, 4}, attributes({2, 3}, {0, 3}, {1, 2}));
    add_convolution(out, {1, 2, 8, 6}, {2, 2, 2, 3}, attributes({2, 1}, {0, 1}, {1, 1}));
  }
}

void add_batch_norms(std::vector<Sample>& out) {
  const ir::TensorType x = f64({4, 6, 2});
  const ir::TensorType c = f64({6});
  const ir::TensorType moments = f64({3, 6});
  const Attributes eps{{"eps", 1e-3}};
  const Attributes affine{{"eps", 1e-3}, {"weight", true}, {"bias", true}, {"training", true}};
  out.push_back({"batch_moments", {x}});
  out.push_back({"batch_moments", {f64({4, 6, 2, 3})}});
  out.push_back({"batch_statistics", {moments}, {{"dtype", std::string("f64")}}});
  out.push_back({"batch_running", {moments, c, c}, {{"momentum", 0.1}}});
  out.push_back({"batch_norm", {x, c, c, c, c}, affine});
  out.push_back({"batch_norm_sums", {x, x, c, c}, eps});
  out.push_back({"batch_norm_backward", {x, x, c, c, moments}, eps});
  out.push_back(
      {"batch_norm_backward", {x, x, c, c, moments, c}, {{"eps", 1e-3}, {"weight", true}}});
  const ir::TensorType grouped = f64({4, 6, 2, 3});
  const ir::TensorType groups = f64({4, 6});
  const ir::TensorType weight = f64({6, 2});
  const Attributes group{{"eps", 1e-3}, {"weight", true}, {"bias", true}};
  out.push_back({"group_norm", {grouped, weight, weight}, group});
  out.push_back({"group_norm_backward", {grouped, grouped, groups, groups, weight}, group});
}

void add_functions(std::vector<Sample>& out) {
  const ir::TensorType x = f64({4, 6});
  for (const char* const name : {"erf",
                                 "tan",
                                 "asin",
                                 "acos",
                                 "atan",
                                 "sinh",
                                 "cosh",
                                 "expm1",
                                 "log1p",
                                 "sign",
                                 "floor",
                                 "ceil",
                                 "round",
                                 "trunc",
                                 "hardswish",
                                 "hardsigmoid",
                                 "mish"}) {
    out.push_back({name, {x}});
  }
  for (const char* const name : {"pow", "atan2", "remainder", "floor_div"}) {
    out.push_back({name, {f64({1, 6}), f64({2, 4, 1})}});
  }
  const Attributes elu{{"alpha", 1.5}, {"scale", 1.0}, {"input_scale", 1.0}};
  const std::vector<std::pair<std::string, Attributes>> activations{
      {"leaky_relu", {{"slope", 0.1}}},
      {"elu", elu},
      {"softplus", {{"beta", 2.0}, {"threshold", 20.0}}},
      {"hardtanh", {{"low", 0.3}, {"high", 0.9}}}};
  for (const auto& [name, attributes] : activations) {
    out.push_back({name, {x}, attributes});
    out.push_back({name + "_backward", {x, x}, attributes});
  }
  for (const char* const name : {"hardswish_backward", "hardsigmoid_backward", "mish_backward"}) {
    out.push_back({name, {x, x}});
  }
  out.push_back({"binary_cross_entropy", {x, x}});
  out.push_back({"binary_cross_entropy_backward", {x, x, x}});
  const Attributes dim{{"dim", std::int64_t{1}}};
  out.push_back({"log_softmax", {x}, dim});
  out.push_back({"log_softmax_backward", {x, x}, dim});
  out.push_back({"max_index", {x}, {{"dim", std::int64_t{0}}, {"smallest", true}}});
  out.push_back(
      {"topk", {x}, {{"dim", std::int64_t{1}}, {"k", std::int64_t{3}}, {"smallest", false}}});
  out.push_back({"sort", {x}, {{"dim", std::int64_t{1}}, {"descending", true}}});
}

Attributes pooling(std::size_t rank, bool backward) {
  Attributes attributes{{"kernel", IntList(rank, 3)},
                        {"stride", IntList(rank, 2)},
                        {"padding", IntList(rank, 1)},
                        {"ceil", false}};
  attributes.set("count_padding", true);
  if (backward) {
    attributes.set("size", IntList(rank, 5));
  }
  return attributes;
}

/// Pooling of x, and its gradient.
void add_pooling(std::vector<Sample>& out,
                 const std::string& op,
                 const ir::Shape& x,
                 Attributes attributes) {
  const Types results = ops::get(op).infer(Types{f64(x)}, attributes).value();
  out.push_back({op, {f64(x)}, attributes});
  attributes.set("size", IntList(x.begin() + 2, x.end()));
  out.push_back({op + "_backward", results, attributes});
}

void add_space(std::vector<Sample>& out) {
  const std::int64_t one = 1;
  for (const std::size_t rank : {1U, 2U, 3U}) {
    ir::Shape x(rank + 2, 5);
    ir::Shape y(rank + 2, 3);
    x[0] = y[0] = 4;
    x[1] = y[1] = 6;
    out.push_back({"avg_pool", {f64(x)}, pooling(rank, false)});
    out.push_back({"avg_pool_backward", {f64(y)}, pooling(rank, true)});
    out.push_back({"adaptive_max_pool", {f64(x)}, {{"size", IntList(rank, 3)}}});
    for (const char* const mode : {"nearest", "linear"}) {
      out.push_back(
          {"resample", {f64(x)}, {{"mode", std::string(mode)}, {"size", IntList(rank, 7)}}});
      out.push_back({"resample_backward",
                     {f64(x)},
                     {{"mode", std::string(mode)}, {"size", IntList(rank, 3)}}});
    }
    out.push_back({"max_pool",
                   {f64(x)},
                   {{"kernel", IntList(rank, 3)},
                    {"stride", IntList(rank, 2)},
                    {"padding", IntList(rank, 1)},
                    {"dilation", IntList(rank, 1)},
                    {"ceil", true}}});
  }
  for (const bool ceil : {false, true}) {
    Attributes windows{{"kernel", IntList{4, 3}},
                       {"stride", IntList{1, 2}},
                       {"padding", IntList{2, 1}},
                       {"ceil", ceil}};
    Attributes maxima = windows;
    maxima.set("dilation", IntList{2, 1});
    add_pooling(out, "max_pool", {2, 2, 9, 8}, maxima);
    windows.set("count_padding", false);
    add_pooling(out, "avg_pool", {2, 2, 9, 8}, windows);
    windows.set("count_padding", true);
    windows.set("stride", IntList{3, 5});
    add_pooling(out, "avg_pool", {2, 2, 10, 11}, windows);
    windows.set("divisor", std::int64_t{3});
    add_pooling(out, "avg_pool", {2, 2, 10, 11}, windows);
    maxima.set("stride", IntList{3, 5});
    add_pooling(out, "max_pool", {2, 2, 10, 11}, maxima);
  }
  for (const char* const mode : {"nearest", "nearest_exact", "linear"}) {
    Attributes twice{{"mode", std::string(mode)}, {"size", IntList{12, 10}}};
    out.push_back({"resample", {f64({2, 2, 6, 5})}, twice});
    twice.set("scale0", 2.0);
    out.push_back({"resample", {f64({2, 2, 6, 1})}, twice});
    twice.set("size", IntList{6, 1});
    out.push_back({"resample_backward", {f64({2, 2, 12, 10})}, twice});
    twice.set("size", IntList{6, 5});
    out.push_back({"resample_backward", {f64({2, 2, 12, 10})}, twice});
  }
  out.push_back({"take", {f64({4, 5, 6})}, {{"dim", one}, {"places", IntList{4, 0, 0, 2}}}});
  out.push_back({"take_backward",
                 {f64({4, 4, 6})},
                 {{"dim", one}, {"places", IntList{4, 0, 0, 2}}, {"size", 5 * one}}});
}

void add_indexing(std::vector<Sample>& out) {
  const std::int64_t one = 1;
  const Attributes padding{{"padding_idx", 3 * one}};
  out.push_back({"embedding", {f64({kRows, 6}), i64({4, 2})}, padding});
  out.push_back({"embedding_backward",
                 {f64({4, 2, 6}), i64({4, 2})},
                 {{"rows", kRows}, {"padding_idx", 3 * one}}});
  for (const ir::Shape& index : {ir::Shape{4, 6, 6}, ir::Shape{2, 6, 6}}) {
    out.push_back({"gather", {f64({4, kRows, 6}), i64(index)}, {{"dim", one}}});
    out.push_back(
        {"scatter_sum", {f64(index), i64(index)}, {{"dim", one}, {"shape", IntList{4, kRows, 6}}}});
  }
  out.push_back({"gather", {boolean({4, kRows}), i64({4, 6})}, {{"dim", one}}});
}

void add_updates(std::vector<Sample>& out) {
  const ir::TensorType p = f64({4, 6});
  out.push_back({"accumulate", {p, p}});
  out.push_back({"adam_update",
                 {p, p, p, p, f64({}), f64({})},
                 {{"lr", 0.1},
                  {"beta1", 0.9},
                  {"beta2", 0.99},
                  {"eps", 1e-8},
                  {"weight_decay", 0.1},
                  {"decoupled", false},
                  {"clip", true}}});
  out.push_back({"sgd_update",
                 {p, p, p, f64({})},
                 {{"lr", 0.1},
                  {"momentum", 0.9},
                  {"dampening", 0.1},
                  {"weight_decay", 0.1},
                  {"nesterov", false},
                  {"has_momentum", true}}});
}

/// A call, and its gradient for the floating operands.
void add_call(std::vector<Sample>& out,
              const std::string& target,
              const std::string& arguments,
              const std::string& results,
              Types inputs,
              const Types& gradients) {
  Attributes attributes{{"target", target}, {"arguments", arguments}, {"results", results}};
  out.push_back({"call", inputs, attributes});
  if (gradients.empty()) {
    return;
  }
  IntList needed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype == ir::DType::kFloat64) {
      needed.push_back(static_cast<std::int64_t>(i));
    }
  }
  attributes.set("given", IntList{0});
  attributes.set("needed", needed);
  inputs.push_back(gradients.front());
  out.push_back({"call_backward", inputs, attributes});
}

void add_grouped(std::vector<Sample>& out) {
  const ir::TensorType rows = f64({12, 4});
  const ir::TensorType ends = i64({6});
  out.push_back({"grouped_matmul", {rows, f64({6, 4, 8}), ends}});
  out.push_back({"grouped_matmul", {rows, f64({6, 8, 4}), ends}, {{"transposed", true}}});
  out.push_back({"grouped_outer", {rows, f64({12, 8}), ends}});
}

void add_calls(std::vector<Sample>& out) {
  const ir::TensorType x = f64({4, 6});
  add_call(out, "aten.cumprod.default", "self=$0, dim=1", "same[4,6]", {x}, {x});
  add_call(out, "aten.sort.default", "self=$0, dim=0", "same[4,6] i64[4,6]", {x}, {x});
  add_call(out, "aten.trace.default", "self=$0", "same[]", {f64({4, 4})}, {f64({})});
  add_call(out,
           "aten.addcmul.default",
           "self=$0, tensor1=$1, tensor2=$2, value=0.5",
           "same[4,6]",
           {x, f64({6}), f64({4, 1})},
           {x});
  add_call(out,
           "aten.index_add.default",
           "self=$0, dim=0, index=$1, source=$2",
           "same[12,6]",
           {f64({12, 6}), i64({4}), x},
           {f64({12, 6})});
  add_call(out,
           "aten.upsample_nearest2d.vec",
           "input=$0, output_size=[8,8]",
           "same[2,4,8,8]",
           {f64({2, 4, 4, 4})},
           {f64({2, 4, 8, 8})});
  add_call(out,
           "aten.scaled_dot_product_attention.default",
           "query=$0, key=$1, value=$2, attn_mask=$3, scale=0.3",
           "same[2,4,6,2]",
           {f64({2, 4, 6, 2}), f64({2, 4, 3, 2}), f64({2, 4, 3, 2}), f64({1, 4, 6, 3})},
           {f64({2, 4, 6, 2})});
  // One or more of every row of the table of axes that reads its arguments in a way of its own.
  const std::pair<const char*, const char*> unary[] = {
      {"aten.flip.default", "self=$0, dims=[0]"},
      {"aten.roll.default", "self=$0, shifts=[2], dims=[1]"},
      {"aten.roll.default", "self=$0, shifts=[2]"},
      {"aten.logcumsumexp.default", "self=$0, dim=-1"},
      {"aten.triu.default", "self=$0"},
      {"aten.erfc.default", "self=$0"},
      {"aten.sgn.default", "self=$0"},
      {"aten.logit.default", "self=$0, eps=0.1"},
      {"aten.clamp.default", "self=$0, min=0.3, max=0.9"}};
  for (const auto& [target, arguments] : unary) {
    add_call(out, target, arguments, "same[4,6]", {x}, {x});
  }
  add_call(out, "aten.cummax.default", "self=$0, dim=0", "same[4,6] i64[4,6]", {x}, {x});
  add_call(out, "aten.topk.default", "self=$0, k=2", "same[4,2] i64[4,2]", {x}, {f64({4, 2})});
  add_call(out, "aten.glu.default", "self=$0, dim=1", "same[4,3]", {x}, {f64({4, 3})});
  add_call(out,
           "aten.index_select.default",
           "self=$0, dim=0, index=$1",
           "same[3,6]",
           {f64({12, 6}), i64({3})},
           {f64({3, 6})});
  add_call(out,
           "aten.pixel_shuffle.default",
           "self=$0, upscale_factor=2",
           "same[2,1,4,4]",
           {f64({2, 4, 2, 2})},
           {f64({2, 1, 4, 4})});
  add_call(out,
           "aten.reflection_pad1d.default",
           "self=$0, padding=[1,2]",
           "same[2,4,9]",
           {f64({2, 4, 6})},
           {f64({2, 4, 9})});
  add_call(out,
           "aten.grid_sampler_2d.default",
           "input=$0, grid=$1, interpolation_mode=0, padding_mode=0, align_corners=false",
           "same[2,4,3,2]",
           {f64({2, 4, 4, 4}), f64({2, 3, 2, 2})},
           {f64({2, 4, 3, 2})});
  add_call(
      out, "aten.linalg_inv.default", "A=$0", "same[2,3,3]", {f64({2, 3, 3})}, {f64({2, 3, 3})});
  add_call(out,
           "aten.gru.input",
           "input=$0, hx=$1, params=[$2,$3], has_biases=false, num_layers=1, dropout=0.0, "
           "train=true, bidirectional=false, batch_first=false",
           "same[4,6,2] same[1,6,2]",
           {f64({4, 6, 3}), f64({1, 6, 2}), f64({6, 3}), f64({6, 2})},
           {f64({4, 6, 2})});
  add_call(out,
           "aten.lstm.input",
           "input=$0, hx=[$1,$2], params=[$3,$4], has_biases=false, num_layers=1, dropout=0.0, "
           "train=true, bidirectional=false, batch_first=true",
           "same[4,6,2] same[1,4,2] same[1,4,2]",
           {f64({4, 6, 3}), f64({1, 4, 2}), f64({1, 4, 2}), f64({8, 3}), f64({8, 2})},
           {f64({4, 6, 2})});
}

std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const auto add : {add_elementwise,
                         add_shape,
                         add_products,
                         add_attention,
                         add_model_ops,
                         add_convolutions,
                         add_batch_norms,
                         add_space,
                         add_functions,
                         add_indexing,
                         add_updates,
                         add_grouped,
                         add_calls}) {
    add(out);
  }
  return out;
}

// ---- all layouts ----

void check_all_layouts(const DeviceMesh& mesh) {
  for (const Sample& sample : samples()) {
    const Result<Types> results = ops::get(sample.op).infer(sample.inputs, sample.attributes);
    ASSERT_TRUE(results.has_value()) << sample.op << ": " << results.error().text();
    const OpInstance op{sample.op, sample.inputs, *results, sample.attributes};
    ShardedOp run(op, sample.contents(), mesh);
    SCOPED_TRACE(sample.op + " " + ops::to_string(run.map()));
    for (const Strategy& strategy : sharding::enumerate_strategies(run.map(), mesh)) {
      EXPECT_EQ(run.difference(strategy), "") << sharding::to_string(strategy, run.map(), mesh);
    }
  }
}

TEST(ShardedKernels, HaveASampleForEveryOp) {
  std::set<std::string> seen;
  for (const Sample& sample : samples()) {
    seen.insert(sample.op);
  }
  for (const ops::OpDef* const def : ops::all()) {
    if (def->name == "send" || def->name == "receive") {
      continue;  // pipeline_test.cc
    }
    EXPECT_EQ(seen.count(std::string(def->name)), 1U) << def->name;
  }
}

TEST(ShardedKernels, EqualTheWholeOverTwoDevices) {
  check_all_layouts(DeviceMesh{{{"data", 2}}});
}

TEST(ShardedKernels, EqualTheWholeOverThreeDevices) {
  check_all_layouts(DeviceMesh{{{"data", 3}}});
}

// Sizes of 4 and 6 leave the last device less than the others, or nothing.
TEST(ShardedKernels, EqualTheWholeOverFiveDevices) {
  check_all_layouts(DeviceMesh{{{"data", 5}}});
}

TEST(ShardedKernels, EqualTheWholeOnAMeshOfUnequalAxes) {
  check_all_layouts(DeviceMesh{{{"data", 2}, {"tensor", 3}}});
}

TEST(ShardedKernels, EqualTheWholeOnAMeshOfTwoAxes) {
  check_all_layouts(DeviceMesh{{{"data", 2}, {"tensor", 2}}});
}

}  // namespace
}  // namespace shardplan::runtime
