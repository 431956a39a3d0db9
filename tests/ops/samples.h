#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops_testing.h"

namespace shardplan::ops {

/// Sample instances of every op, for tests that every op must pass. A new op needs a line here.

inline void add_elementwise(std::vector<Sample>& out) {
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
    out.push_back({name, {f32({4, 1, 6})}});
    out.push_back({name, {f32({})}});
  }
  out.push_back({"gelu", {f32({4, 6})}, {{"approximate", std::string("tanh")}}});
  out.push_back({"cast", {f32({4, 6})}, {{"dtype", std::string("bf16")}}});
  out.push_back({"cast", {bf16({4, 6})}, {{"dtype", std::string("f32")}}});
  out.push_back({"cast", {i64({4, 6})}, {{"dtype", std::string("f32")}}});
  out.push_back({"scale", {f32({4, 6})}, {{"factor", 0.5}}});
  out.push_back({"add_scalar", {f32({4, 6})}, {{"value", 0.5}}});
  out.push_back({"add_scalar", {i64({4, 6})}, {{"value", std::int64_t{2}}}});
  for (const double exponent : {0.0, 1.0, 2.0, -0.5}) {
    out.push_back({"pow_scalar", {f32({4, 6})}, {{"exponent", exponent}}});
  }
  out.push_back({"maximum_scalar", {f32({4, 6})}, {{"value", 0.5}}});
  out.push_back({"minimum_scalar", {f32({4, 6})}, {{"value", 0.5}}});
  for (const char* const name :
       {"eq_scalar", "ne_scalar", "lt_scalar", "le_scalar", "gt_scalar", "ge_scalar"}) {
    out.push_back({name, {i64({4, 6})}, {{"value", std::int64_t{3}}}});
  }
  for (const char* const name :
       {"tanh_backward", "sigmoid_backward", "relu_backward", "silu_backward"}) {
    out.push_back({name, {f32({4, 6}), f32({4, 6})}});
  }
  out.push_back(
      {"gelu_backward", {f32({4, 6}), f32({4, 6})}, {{"approximate", std::string("none")}}});
}

inline void add_broadcasting(std::vector<Sample>& out) {
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
    out.push_back({name, {f32({4, 6}), f32({4, 6})}});
    out.push_back({name, {f32({4, 6}), f32({6})}});
    out.push_back({name, {f32({1, 6}), f32({5, 4, 1})}});
    out.push_back({name, {f32({}), f32({4})}});
    out.push_back({name, {f32({1, 1}), f32({4})}});
  }
  out.push_back({"where", {boolean({4, 1}), f32({4, 6}), f32({})}});
  out.push_back({"where", {boolean({4, 1}), f32({6}), f32({2, 1, 1})}});
}

inline ir::Attributes cut(std::int64_t dim,
                          std::int64_t start,
                          std::int64_t end,
                          std::int64_t step) {
  return {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}};
}

inline void add_shape(std::vector<Sample>& out) {
  out.push_back({"reshape", {f32({8, 4, 6})}, {{"shape", ir::IntList{32, 2, 3}}}});
  out.push_back({"transpose", {f32({8, 4, 6})}, {{"permutation", ir::IntList{2, 0, 1}}}});
  out.push_back({"broadcast", {f32({4, 1, 6})}, {{"shape", ir::IntList{2, 4, 5, 6}}}});
  out.push_back({"slice", {f32({8, 10})}, cut(1, 2, 6, 1)});
  out.push_back({"slice", {f32({8, 10})}, cut(1, 0, 10, 2)});
  out.push_back({"slice", {f32({8, 10})}, cut(1, 1, 10, 4)});
  out.push_back({"slice", {f32({8, 10})}, cut(0, 0, 8, 1)});
  out.push_back({"pad",
                 {f32({8, 10})},
                 {{"dim", std::int64_t{0}},
                  {"before", std::int64_t{1}},
                  {"after", std::int64_t{2}},
                  {"value", 0.0}}});
  out.push_back({"concat", {f32({8, 2}), f32({8, 3}), f32({8, 2})}, {{"dim", std::int64_t{1}}}});
  out.push_back(
      {"iota",
       {},
       {{"shape", ir::IntList{4, 6}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}}});
  out.push_back(
      {"full", {}, {{"shape", ir::IntList{4, 6}}, {"value", 1.5}, {"dtype", std::string("f32")}}});
  out.push_back({"receive",
                 {},
                 {{"message", std::int64_t{0}},
                  {"from", std::int64_t{1}},
                  {"shape", ir::IntList{4, 6}},
                  {"dtype", std::string("f32")}}});
  out.push_back({"send", {f32({4, 6})}, {{"message", std::int64_t{0}}, {"to", std::int64_t{1}}}});
}

inline void add_reductions(std::vector<Sample>& out) {
  for (const char* const name : {"sum", "max"}) {
    out.push_back({name, {f32({4, 5, 6})}, {{"dims", ir::IntList{0, 2}}, {"keepdim", false}}});
    out.push_back({name, {f32({4, 5, 6})}, {{"dims", ir::IntList{1}}, {"keepdim", true}}});
  }
  out.push_back({"sum", {boolean({4, 5})}, {{"dims", ir::IntList{0, 1}}}});
  out.push_back({"cumsum", {f32({4, 5})}, {{"dim", std::int64_t{1}}}});
  out.push_back({"sum_squares", {bf16({4, 5})}});
  out.push_back({"clip_scale", {f32({})}, {{"max_norm", 1.0}}});
}

inline void add_products(std::vector<Sample>& out) {
  const std::vector<std::pair<std::string, ir::Shape>> cases{{"bsk,nk->bsn", {10, 8}},
                                                             {"bsk,kn->nbs", {8, 10}},
                                                             {"bsk,bsk->", {4, 6, 8}},
                                                             {"bsk,bk->s", {4, 8}}};
  for (const auto& [equation, second] : cases) {
    out.push_back({"einsum", {f32({4, 6, 8}), f32(second)}, {{"equation", equation}}});
  }
}

inline void add_normalizations(std::vector<Sample>& out) {
  for (const bool weight : {false, true}) {
    const ir::Attributes attributes{
        {"dims", std::int64_t{2}}, {"eps", 1e-5}, {"weight", weight}, {"bias", weight}};
    Types forward{bf16({4, 6, 8})};
    Types backward{bf16({4, 6, 8}), bf16({4, 6, 8}), f32({4}), f32({4})};
    if (weight) {
      forward.insert(forward.end(), 2, bf16({6, 8}));
      backward.push_back(bf16({6, 8}));
    }
    out.push_back({"layer_norm", forward, attributes});
    out.push_back({"layer_norm_backward", backward, attributes});
  }
  out.push_back({"softmax", {f32({4, 6, 8})}, {{"dim", std::int64_t{1}}}});
  out.push_back({"softmax_backward", {f32({4, 6}), f32({4, 6})}, {{"dim", std::int64_t{1}}}});
}

inline void add_attention(std::vector<Sample>& out) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t key_heads : {1, 2, 6}) {
      const ir::Attributes attributes{
          {"layout", std::string("bhsd")}, {"causal", causal}, {"scale", 0.5}, {"mask", !causal}};
      const ir::TensorType q = bf16({2, 6, 10, 4});
      const ir::TensorType k = bf16({2, key_heads, 12, 4});
      Types forward{q, k, k};
      Types backward{q, q, k, k, q, f32({2, 6, 10})};
      if (!causal) {
        forward.push_back(boolean({2, 1, 10, 12}));
        backward.push_back(boolean({2, 1, 10, 12}));
      }
      out.push_back({"attention", forward, attributes});
      out.push_back({"attention_backward", backward, attributes});
    }
  }
}

inline void add_lookups(std::vector<Sample>& out) {
  const ir::Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  out.push_back({"embedding", {f32({9, 4}), i64({2, 3})}});
  out.push_back({"embedding_backward", {f32({2, 3, 4}), i64({2, 3})}, {{"rows", std::int64_t{9}}}});
  out.push_back({"embedding", {f32({9, 4}), i64({2, 3})}, {{"padding_idx", std::int64_t{1}}}});
  out.push_back({"embedding_backward",
                 {f32({2, 3, 4}), i64({2, 3})},
                 {{"rows", std::int64_t{9}}, {"padding_idx", std::int64_t{1}}}});
  out.push_back({"sum_exp", {bf16({2, 3, 9}), f32({2, 3})}});
  out.push_back({"label_score", {bf16({3, 9}), i64({3}), f32({3})}, ignore});
  out.push_back({"label_score_backward", {f32({3}), bf16({3, 9}), i64({3}), f32({3})}, ignore});
  out.push_back({"dropout", {f32({3, 9})}, {{"p", 0.1}, {"seed", std::int64_t{1}}}});
}

/// Attributes of a convolution over `rank` spatial dimensions.
inline ir::Attributes window(std::size_t rank,
                             std::int64_t stride,
                             std::int64_t padding,
                             std::int64_t groups,
                             bool transposed) {
  return {{"stride", ir::IntList(rank, stride)},
          {"padding", ir::IntList(rank, padding)},
          {"dilation", ir::IntList(rank, 1)},
          {"output_padding", ir::IntList(rank, transposed ? stride - 1 : 0)},
          {"transposed", transposed},
          {"groups", groups}};
}

inline void add_convolution(std::vector<Sample>& out,
                            const ir::TensorType& x,
                            const ir::TensorType& weight,
                            const ir::TensorType& y,
                            const ir::Attributes& attributes) {
  out.push_back({"convolution", {x, weight}, attributes});
  ir::Attributes input = attributes;
  input.set("size", ir::IntList(x.shape.begin() + 2, x.shape.end()));
  out.push_back({"convolution_backward_input", {y, weight}, input});
  ir::Attributes kernel = attributes;
  kernel.set("size", ir::IntList(weight.shape.begin() + 2, weight.shape.end()));
  out.push_back({"convolution_backward_weight", {y, x}, kernel});
}

inline void add_convolutions(std::vector<Sample>& out) {
  add_convolution(out, f32({2, 4, 9}), f32({6, 4, 3}), f32({2, 6, 5}), window(1, 2, 1, 1, false));
  add_convolution(
      out, f32({2, 4, 8, 8}), f32({6, 2, 3, 3}), f32({2, 6, 8, 8}), window(2, 1, 1, 2, false));
  add_convolution(
      out, f32({2, 4, 8, 8}), f32({4, 1, 3, 3}), f32({2, 4, 8, 8}), window(2, 1, 1, 4, false));
  add_convolution(
      out, f32({2, 4, 4, 4}), f32({4, 3, 3, 3}), f32({2, 6, 8, 8}), window(2, 2, 1, 2, true));
  add_convolution(out,
                  f32({2, 4, 4, 4, 4}),
                  f32({6, 4, 1, 1, 1}),
                  f32({2, 6, 4, 4, 4}),
                  window(3, 1, 0, 1, false));
}

inline void add_batch_norms(std::vector<Sample>& out) {
  const ir::TensorType x = bf16({4, 6, 5, 3});
  const ir::TensorType c = f32({6});
  const ir::TensorType moments{ir::DType::kFloat64, {3, 6}};
  out.push_back({"batch_moments", {x}});
  out.push_back({"batch_statistics", {moments}, {{"dtype", std::string("f32")}}});
  out.push_back({"batch_running", {moments, c, c}, {{"momentum", 0.1}}});
  out.push_back({"batch_norm_sums", {x, x, c, c}, {{"eps", 1e-5}}});
  for (const bool weight : {false, true}) {
    Types forward{x, c, c};
    Types backward{x, x, c, c, moments};
    if (weight) {
      forward.insert(forward.end(), 2, bf16({6}));
      backward.push_back(bf16({6}));
    }
    out.push_back({"batch_norm_backward", backward, {{"eps", 1e-5}, {"weight", weight}}});
    for (const bool training : {false, true}) {
      out.push_back(
          {"batch_norm",
           forward,
           {{"eps", 1e-5}, {"training", training}, {"weight", weight}, {"bias", weight}}});
    }
    const ir::Attributes group{{"eps", 1e-5}, {"weight", weight}, {"bias", weight}};
    const ir::TensorType grouped = bf16({4, 3, 2, 5});
    Types group_forward{grouped};
    Types group_backward{grouped, grouped, f32({4, 3}), f32({4, 3})};
    if (weight) {
      group_forward.insert(group_forward.end(), 2, bf16({3, 2}));
      group_backward.push_back(bf16({3, 2}));
    }
    out.push_back({"group_norm", group_forward, group});
    out.push_back({"group_norm_backward", group_backward, group});
  }
}

inline void add_functions(std::vector<Sample>& out) {
  for (const char* const name : {"erf",
                                 "tan",
                                 "asin",
                                 "acos",
                                 "atan",
                                 "sinh",
                                 "cosh",
                                 "expm1",
                                 "log1p",
                                 "hardswish",
                                 "hardsigmoid",
                                 "mish"}) {
    out.push_back({name, {f32({4, 6})}});
  }
  for (const char* const name : {"sign", "floor", "ceil", "round", "trunc"}) {
    out.push_back({name, {f32({4, 6})}});
  }
  for (const char* const name : {"pow", "atan2", "remainder"}) {
    out.push_back({name, {f32({4, 6}), f32({5, 4, 1})}});
  }
  out.push_back({"floor_div", {i64({4, 6}), i64({})}});
  const ir::Attributes slope{{"slope", 0.1}};
  const ir::Attributes elu{{"alpha", 1.0}, {"scale", 1.0}, {"input_scale", 1.0}};
  const ir::Attributes softplus{{"beta", 1.0}, {"threshold", 20.0}};
  const ir::Attributes bounds{{"low", -1.0}, {"high", 1.0}};
  const std::vector<std::pair<std::string, ir::Attributes>> activations{
      {"leaky_relu", slope}, {"elu", elu}, {"softplus", softplus}, {"hardtanh", bounds}};
  for (const auto& [name, attributes] : activations) {
    out.push_back({name, {f32({4, 6})}, attributes});
    out.push_back({name + "_backward", {f32({4, 6}), f32({4, 6})}, attributes});
  }
  for (const char* const name : {"hardswish_backward", "hardsigmoid_backward", "mish_backward"}) {
    out.push_back({name, {f32({4, 6}), f32({4, 6})}});
  }
  out.push_back({"binary_cross_entropy", {f32({4, 6}), f32({4, 6})}});
  out.push_back({"binary_cross_entropy_backward", {f32({4, 6}), f32({4, 6}), f32({4, 6})}});
  const ir::Attributes dim{{"dim", std::int64_t{1}}};
  out.push_back({"log_softmax", {f32({4, 6})}, dim});
  out.push_back({"log_softmax_backward", {f32({4, 6}), f32({4, 6})}, dim});
  out.push_back({"max_index", {f32({4, 6})}, {{"dim", std::int64_t{1}}, {"smallest", true}}});
  out.push_back({"topk",
                 {f32({4, 6})},
                 {{"dim", std::int64_t{1}}, {"k", std::int64_t{3}}, {"smallest", false}}});
  out.push_back({"sort", {f32({4, 6})}, {{"dim", std::int64_t{1}}, {"descending", true}}});
}

inline void add_space(std::vector<Sample>& out) {
  const ir::Attributes windows{{"kernel", ir::IntList{3, 2}},
                               {"stride", ir::IntList{2, 2}},
                               {"padding", ir::IntList{1, 0}},
                               {"ceil", true}};
  ir::Attributes maxima = windows;
  maxima.set("dilation", ir::IntList{1, 2});
  out.push_back({"max_pool", {f32({2, 4, 9, 9})}, maxima});
  ir::Attributes maxima_backward = maxima;
  maxima_backward.set("size", ir::IntList{9, 9});
  out.push_back({"max_pool_backward", {f32({2, 4, 5, 4}), i64({2, 4, 5, 4})}, maxima_backward});
  out.push_back({"adaptive_max_pool", {f32({2, 4, 9})}, {{"size", ir::IntList{4}}}});
  ir::Attributes means = windows;
  means.set("count_padding", true);
  out.push_back({"avg_pool", {f32({2, 4, 9, 8})}, means});
  // A window that is larger than what it sees.
  out.push_back({"avg_pool",
                 {f32({2, 4, 1, 1})},
                 {{"kernel", ir::IntList{5, 5}},
                  {"stride", ir::IntList{5, 5}},
                  {"padding", ir::IntList{0, 0}},
                  {"ceil", true},
                  {"count_padding", true}}});
  means.set("divisor", std::int64_t{3});
  means.set("size", ir::IntList{9, 8});
  out.push_back({"avg_pool_backward", {f32({2, 4, 5, 4})}, means});
  const ir::Attributes to_size{
      {"mode", std::string("cubic")}, {"size", ir::IntList{5, 7}}, {"align_corners", true}};
  out.push_back({"resample", {f32({2, 4, 9, 8})}, to_size});
  out.push_back({"resample_backward", {f32({2, 4, 9, 8})}, to_size});
  out.push_back({"resample",
                 {f32({2, 4, 9})},
                 {{"mode", std::string("nearest")}, {"size", ir::IntList{13}}, {"scale0", 1.5}}});
  const ir::IntList places{4, 0, 0, 2};
  out.push_back({"take", {i64({4, 5, 6})}, {{"dim", std::int64_t{1}}, {"places", places}}});
  out.push_back({"take", {f32({4, 5, 6})}, {{"dim", std::int64_t{1}}, {"places", places}}});
  out.push_back({"take_backward",
                 {f32({4, 4, 6})},
                 {{"dim", std::int64_t{1}}, {"places", places}, {"size", std::int64_t{5}}}});
}

inline void add_indexing(std::vector<Sample>& out) {
  const ir::Attributes dim{{"dim", std::int64_t{1}}};
  const ir::Attributes sum{{"dim", std::int64_t{1}}, {"shape", ir::IntList{4, 9, 6}}};
  for (const ir::Shape& index : {ir::Shape{4, 5, 6}, ir::Shape{2, 5, 6}}) {
    out.push_back({"gather", {f32({4, 9, 6}), i64(index)}, dim});
    out.push_back({"scatter_sum", {f32(index), i64(index)}, sum});
  }
  out.push_back({"gather", {boolean({4, 9, 6}), i64({4, 5, 6})}, dim});
}

inline void add_updates(std::vector<Sample>& out) {
  const ir::TensorType p = f32({4, 6});
  const ir::TensorType g = bf16({4, 6});
  out.push_back({"accumulate", {p, g}});
  for (const bool clip : {false, true}) {
    Types adam{p, g, p, p, f32({})};
    Types sgd{p, g, p, f32({})};
    if (clip) {
      adam.push_back(f32({}));
      sgd.push_back(f32({}));
    }
    out.push_back({"adam_update",
                   adam,
                   {{"lr", 0.1},
                    {"beta1", 0.9},
                    {"beta2", 0.99},
                    {"eps", 1e-8},
                    {"weight_decay", 0.0},
                    {"decoupled", true},
                    {"clip", clip}}});
    out.push_back({"sgd_update",
                   sgd,
                   {{"lr", 0.1},
                    {"momentum", 0.9},
                    {"dampening", 0.0},
                    {"weight_decay", 0.0},
                    {"nesterov", false},
                    {"has_momentum", true},
                    {"clip", clip}}});
  }
}

inline void add_grouped(std::vector<Sample>& out) {
  const ir::TensorType rows = f32({6, 4});
  const ir::TensorType ends = i64({2});
  out.push_back({"grouped_matmul", {rows, f32({2, 4, 8}), ends}});
  out.push_back({"grouped_matmul", {rows, f32({2, 8, 4}), ends}, {{"transposed", true}}});
  out.push_back({"grouped_outer", {rows, f32({6, 8}), ends}});
}

inline void add_calls(std::vector<Sample>& out) {
  const Types x{f32({4, 6})};
  const auto call = [](const char* target, const char* arguments, const char* results) {
    return ir::Attributes{{"target", std::string(target)},
                          {"arguments", std::string(arguments)},
                          {"results", std::string(results)}};
  };
  out.push_back({"call", x, call("aten.cumprod.default", "self=$0, dim=1", "same[4,6]")});
  out.push_back({"call", x, call("aten.sort.default", "self=$0", "same[4,6] i64[4,6]")});
  out.push_back({"call", x, call("aten.sort.default", "self=$0", "- i64[4,6]")});
  out.push_back({"call", x, call("aten.trace.default", "self=$0", "same[]")});
  ir::Attributes backward = call("aten.cumprod.default", "self=$0, dim=1", "same[4,6]");
  backward.set("given", ir::IntList{0});
  backward.set("needed", ir::IntList{0});
  out.push_back({"call_backward", {f32({4, 6}), f32({4, 6})}, backward});
}

inline std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const auto add : {add_elementwise,
                         add_broadcasting,
                         add_shape,
                         add_reductions,
                         add_products,
                         add_normalizations,
                         add_attention,
                         add_lookups,
                         add_indexing,
                         add_convolutions,
                         add_batch_norms,
                         add_grouped,
                         add_space,
                         add_functions,
                         add_calls,
                         add_updates}) {
    add(out);
  }
  return out;
}

}  // namespace shardplan::ops
