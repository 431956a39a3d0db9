// Every kernel against a formula in plain ATen operators, in double precision, and the gradient
// that our autodiff emits against PyTorch's autograd of that formula.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/new_full.h>
#include <ATen/ops/new_zeros.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {
namespace {

using ir::Attributes;
using ir::IntList;
using ops::Types;
using Tensors = std::vector<at::Tensor>;

ir::TensorType f64(ir::Shape shape) {
  return {ir::DType::kFloat64, std::move(shape)};
}
ir::TensorType i64(ir::Shape shape) {
  return {ir::DType::kInt64, std::move(shape)};
}
ir::TensorType boolean(ir::Shape shape) {
  return {ir::DType::kBool, std::move(shape)};
}

struct Case {
  std::string op;
  Types inputs;
  Attributes attributes;
  std::function<at::Tensor(const Tensors&)> truth;  ///< of result 0
};

/// Positive reals away from 0 (log, sqrt, division are smooth there), ids below 5, or bools.
at::Tensor random_tensor(const ir::TensorType& type) {
  if (type.dtype == ir::DType::kInt64) {
    return at::randint(0, 5, type.shape, at::TensorOptions(at::kLong));
  }
  const at::Tensor normal = at::randn(type.shape, at::TensorOptions(at::kDouble));
  return type.dtype == ir::DType::kBool ? normal.gt(-0.5) : normal.abs().add(0.3);
}

Tensors run_op(const ir::Graph& graph, const ir::Op& op, const Tensors& inputs) {
  const Kernel kernel = find_kernel(op.name);
  EXPECT_NE(kernel, nullptr) << op.name;
  std::vector<ir::TensorType> results;
  results.reserve(op.outputs.size());
  for (const ir::ValueId output : op.outputs) {
    results.push_back(graph.type(output));
  }
  Tensors made = kernel(KernelCall{inputs, op.attributes, results, {}, {}});
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].sizes(), at::IntArrayRef(results[i].shape)) << op.name << " result " << i;
    EXPECT_EQ(made[i].scalar_type(), scalar_type(results[i].dtype)) << op.name << " result " << i;
    EXPECT_TRUE(made[i].is_contiguous()) << op.name << " result " << i;
  }
  return made;
}

/// One op, and the ops that its gradient function emits, in one graph with its tensors.
struct OpRun {
  ir::Graph graph{};
  ir::OpId op{};
  Tensors values{};
  std::size_t executed = 0;

  explicit OpRun(const Case& sample, const Tensors& inputs) {
    ir::Op node;
    node.name = sample.op;
    node.attributes = sample.attributes;
    for (const ir::TensorType& type : sample.inputs) {
      ir::Value value;
      value.type = type;
      value.kind = ir::ValueKind::kInput;
      node.inputs.push_back(graph.add_value(std::move(value)));
    }
    values = inputs;
    Result<ir::OpId> appended = ops::append(graph, std::move(node));
    EXPECT_TRUE(appended.has_value()) << sample.op << ": " << appended.error().text();
    op = *appended;
    execute();
  }

  void execute() {
    for (; executed < graph.ops().size(); ++executed) {
      const ir::Op& node = graph.ops()[executed];
      Tensors operands;
      for (const ir::ValueId input : node.inputs) {
        operands.push_back(values[input.index()]);
      }
      const Tensors results = run_op(graph, node, operands);
      values.resize(graph.values().size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        values[node.outputs[i].index()] = results[i];
      }
    }
  }

  [[nodiscard]] const at::Tensor& output() const { return values[graph.op(op).outputs[0].index()]; }

  /// Gradients of the floating operands for the gradient `g` of result 0.
  Tensors gradients(const at::Tensor& g) {
    const ir::Op node = graph.op(op);
    ir::Value value;
    value.type = graph.type(node.outputs[0]);
    value.kind = ir::ValueKind::kInput;
    std::vector<ir::ValueId> output_gradients(node.outputs.size());
    output_gradients[0] = graph.add_value(std::move(value));
    values.resize(graph.values().size());
    values.back() = g;
    std::vector<bool> needed;
    needed.reserve(node.inputs.size());
    for (const ir::ValueId input : node.inputs) {
      needed.push_back(ir::is_floating(graph.type(input).dtype));
    }
    ops::GradientBuilder builder(graph, op, output_gradients, needed);
    ops::get(node.name).gradient(builder);
    execute();
    Tensors found;
    found.reserve(builder.input_gradients().size());
    for (const ir::ValueId gradient : builder.input_gradients()) {
      found.push_back(gradient.valid() ? values[gradient.index()] : at::Tensor());
    }
    return found;
  }
};

void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = std::max(1e-12, want.to(at::kDouble).abs().max().item<double>());
  const double difference =
      got.to(at::kDouble).sub(want.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LT(difference / scale, 1e-12) << what;
}

void check(const Case& sample) {
  SCOPED_TRACE(sample.op);
  Tensors inputs;
  Tensors tracked;
  for (const ir::TensorType& type : sample.inputs) {
    inputs.push_back(random_tensor(type));
    if (sample.op == "attention" && type.dtype == ir::DType::kBool) {
      inputs.back().select(-1, 0).fill_(true);  // a row without keys has no plain formula
    }
    tracked.push_back(inputs.back().clone());
    if (ir::is_floating(type.dtype)) {
      tracked.back().requires_grad_(true);
    }
  }
  OpRun run(sample, inputs);
  const at::Tensor truth = sample.truth(tracked);
  expect_close(run.output(), truth.detach(), "forward");
  if (ops::get(sample.op).gradient == nullptr || !truth.requires_grad()) {
    return;
  }
  const at::Tensor g = at::randn(truth.sizes(), at::TensorOptions(at::kDouble));
  truth.mul(g).sum().backward();
  const Tensors gradients = run.gradients(g);
  for (std::size_t i = 0; i < tracked.size(); ++i) {
    if (tracked[i].requires_grad() && tracked[i].grad().defined()) {
      ASSERT_TRUE(gradients[i].defined()) << "no gradient of operand " << i;
      expect_close(gradients[i], tracked[i].grad(), "gradient of operand " + std::to_string(i));
    }
  }
}

using T = at::Tensor;
using In = const Tensors&;

std::vector<Case> elementwise_cases() {
  const Types x{f64({3, 1, 4})};
  const Types xy{f64({3, 4}), f64({3, 4})};
  const Types row{f64({2, 3, 4}), f64({4})};
  const Types outer{f64({3, 1}), f64({1, 4})};
  std::vector<Case> cases{
      {"identity", x, {}, [](In t) { return t[0].mul(1); }},
      {"neg", x, {}, [](In t) { return t[0].neg(); }},
      {"abs", x, {}, [](In t) { return t[0].abs(); }},
      {"exp", x, {}, [](In t) { return t[0].exp(); }},
      {"log", x, {}, [](In t) { return t[0].log(); }},
      {"sqrt", x, {}, [](In t) { return t[0].sqrt(); }},
      {"rsqrt", x, {}, [](In t) { return t[0].pow(-0.5); }},
      {"reciprocal", x, {}, [](In t) { return t[0].pow(-1); }},
      {"sin", x, {}, [](In t) { return t[0].sin(); }},
      {"cos", x, {}, [](In t) { return t[0].cos(); }},
      {"tanh", x, {}, [](In t) { return t[0].tanh(); }},
      {"sigmoid", x, {}, [](In t) { return t[0].neg().exp().add(1).reciprocal(); }},
      {"relu", x, {}, [](In t) { return t[0].clamp_min(0); }},
      {"silu", x, {}, [](In t) { return t[0].mul(t[0].sigmoid()); }},
      {"logical_not", x, {}, [](In t) { return t[0].eq(0); }},
      {"gelu",
       x,
       {{"approximate", std::string("none")}},
       [](In t) { return at::gelu(t[0], "none"); }},
      {"gelu",
       x,
       {{"approximate", std::string("tanh")}},
       [](In t) { return at::gelu(t[0], "tanh"); }},
      {"cast",
       x,
       {{"dtype", std::string("f32")}},
       [](In t) { return t[0].detach().to(at::kFloat); }},
      {"scale", x, {{"factor", 2.5}}, [](In t) { return t[0].mul(2.5); }},
      {"add_scalar", x, {{"value", 2.5}}, [](In t) { return t[0].add(2.5); }},
      {"pow_scalar", x, {{"exponent", 3.0}}, [](In t) { return t[0].pow(3); }},
      {"pow_scalar", x, {{"exponent", -0.5}}, [](In t) { return t[0].rsqrt(); }},
      {"maximum_scalar", x, {{"value", 0.9}}, [](In t) { return t[0].clamp_min(0.9); }},
      {"minimum_scalar", x, {{"value", 0.9}}, [](In t) { return t[0].clamp_max(0.9); }},
      {"where",
       {boolean({3, 1}), f64({3, 4}), f64({4})},
       {},
       [](In t) { return at::where(t[0], t[1], t[2]); }},
      {"eq", xy, {}, [](In t) { return t[0].eq(t[1]); }},
      {"ne", xy, {}, [](In t) { return t[0].ne(t[1]); }},
      {"logical_and",
       {boolean({3}), boolean({3})},
       {},
       [](In t) { return t[0].logical_and(t[1]); }},
      {"logical_or", {boolean({3}), boolean({3})}, {}, [](In t) { return t[0].logical_or(t[1]); }},
      {"eq_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].eq(2); }},
      {"ne_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].ne(2); }},
      {"lt_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].lt(2); }},
      {"le_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].le(2); }},
      {"gt_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].gt(2); }},
      {"ge_scalar", {i64({9})}, {{"value", std::int64_t{2}}}, [](In t) { return t[0].ge(2); }},
  };
  for (const Types& types : {xy, row, outer}) {
    cases.push_back({"add", types, {}, [](In t) { return t[0].add(t[1]); }});
    cases.push_back({"sub", types, {}, [](In t) { return t[0].sub(t[1]); }});
    cases.push_back({"mul", types, {}, [](In t) { return t[0].mul(t[1]); }});
    cases.push_back({"div", types, {}, [](In t) { return t[0].div(t[1]); }});
    cases.push_back({"maximum", types, {}, [](In t) { return t[0].maximum(t[1]); }});
    cases.push_back({"minimum", types, {}, [](In t) { return t[0].minimum(t[1]); }});
    cases.push_back({"lt", types, {}, [](In t) { return t[0].lt(t[1]); }});
    cases.push_back({"le", types, {}, [](In t) { return t[0].le(t[1]); }});
    cases.push_back({"gt", types, {}, [](In t) { return t[0].gt(t[1]); }});
    cases.push_back({"ge", types, {}, [](In t) { return t[0].ge(t[1]); }});
  }
  return cases;
}

Attributes cut(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  return {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}};
}

std::vector<Case> shape_cases() {
  const Types x{f64({4, 3, 5})};
  return {
      {"reshape",
       x,
       {{"shape", IntList{6, 10}}},
       [](In t) {
         return t[0].view({6, 10});
       }},
      {"transpose",
       x,
       {{"permutation", IntList{2, 0, 1}}},
       [](In t) {
         return t[0].permute({2, 0, 1});
       }},
      {"broadcast",
       {f64({3, 1})},
       {{"shape", IntList{2, 3, 4}}},
       [](In t) {
         return t[0].expand({2, 3, 4});
       }},
      {"slice", x, cut(2, 1, 5, 2), [](In t) { return t[0].slice(2, 1, 5, 2); }},
      {"slice", x, cut(0, 0, 4, 1), [](In t) { return t[0].mul(1); }},
      {"pad",
       x,
       {{"dim", std::int64_t{1}},
        {"before", std::int64_t{1}},
        {"after", std::int64_t{2}},
        {"value", 0.0}},
       [](In t) {
         return at::constant_pad_nd(t[0], {0, 0, 1, 2}, 0);
       }},
      {"concat",
       {f64({2, 3}), f64({2, 1}), f64({2, 2})},
       {{"dim", std::int64_t{1}}},
       [](In t) { return at::cat(t, 1); }},
      {"sum",
       x,
       {{"dims", IntList{0, 2}}, {"keepdim", false}},
       [](In t) {
         return t[0].sum({0, 2});
       }},
      {"sum",
       x,
       {{"dims", IntList{1}}, {"keepdim", true}},
       [](In t) { return t[0].sum({1}, true); }},
      {"sum",
       {boolean({5})},
       {{"dims", IntList{0}}, {"keepdim", false}},
       [](In t) { return t[0].sum(); }},
      {"max",
       x,
       {{"dims", IntList{2}}, {"keepdim", false}},
       [](In t) { return t[0].detach().amax({2}); }},
      {"cumsum", {i64({3, 4})}, {{"dim", std::int64_t{1}}}, [](In t) { return t[0].cumsum(1); }},
      {"iota",
       {},
       {{"shape", IntList{2, 3}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}},
       [](In) {
         return at::arange(3, at::TensorOptions(at::kLong)).expand({2, 3});
       }},
      {"full",
       {},
       {{"shape", IntList{2, 3}}, {"value", 1.5}, {"dtype", std::string("f64")}},
       [](In) {
         return at::full({2, 3}, 1.5, at::TensorOptions(at::kDouble));
       }},
      {"sum_squares", x, {}, [](In t) { return t[0].detach().pow(2).sum(); }},
      {"clip_scale",
       {f64({})},
       {{"max_norm", 0.5}},
       [](In t) { return t[0].detach().sqrt().add(1e-6).reciprocal().mul(0.5).clamp_max(1); }},
  };
}

std::vector<Case> product_cases() {
  const std::vector<std::tuple<std::string, ir::Shape, ir::Shape>> equations{
      {"bsk,nk->bsn", {2, 3, 4}, {5, 4}},
      {"bsk,kn->bsn", {2, 3, 4}, {4, 5}},
      {"bsn,bsk->nk", {2, 3, 5}, {2, 3, 4}},
      {"bsn,nk->bsk", {2, 3, 5}, {5, 4}},
      {"bsk,kn->nbs", {2, 3, 4}, {4, 5}},
      {"bsk,bsk->", {2, 3, 4}, {2, 3, 4}},
      {"bsk,bk->s", {2, 3, 4}, {2, 4}},
      {"bij,bjk->bik", {2, 3, 4}, {2, 4, 5}},
      {"bij,bkj->bik", {2, 3, 4}, {2, 5, 4}},
      {"bshd,bthd->bhst", {2, 3, 2, 4}, {2, 5, 2, 4}},
      {"bhst,bthd->bshd", {2, 2, 3, 5}, {2, 5, 2, 4}},
      {"hbk,nk->bhn", {2, 3, 4}, {5, 4}},
      {"a,b->ab", {3}, {4}},
      {"a,b->ba", {3}, {4}},
      {"ak,k->a", {3, 4}, {4}},
      {"ab,ab->ab", {3, 4}, {3, 4}},
      {"mbk,bkn->mbn", {3, 2, 4}, {2, 4, 5}},
      {"kbm,nbk->bmn", {4, 2, 3}, {5, 2, 4}},
  };
  std::vector<Case> cases;
  for (const auto& [equation, a, b] : equations) {
    const std::string text = equation;
    cases.push_back({"einsum", {f64(a), f64(b)}, {{"equation", text}}, [text](In t) {
                       return at::einsum(text, {t[0], t[1]});
                     }});
  }
  return cases;
}

/// Attention written out: every key-value head repeated for its query heads.
at::Tensor plain_attention(In t, const std::string& layout, bool causal, double scale) {
  const bool bshd = layout == "bshd";
  const at::Tensor q = bshd ? t[0].transpose(1, 2) : t[0];
  const std::int64_t repeats = q.size(1) / t[1].size(bshd ? 2 : 1);
  const at::Tensor k = (bshd ? t[1].transpose(1, 2) : t[1]).repeat_interleave(repeats, 1);
  const at::Tensor v = (bshd ? t[2].transpose(1, 2) : t[2]).repeat_interleave(repeats, 1);
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul(scale);
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  if (causal) {
    const at::Tensor keys = at::arange(k.size(2), at::TensorOptions(at::kLong));
    const at::Tensor rows = at::arange(q.size(2), at::TensorOptions(at::kLong)).unsqueeze(1);
    scores = scores.masked_fill(keys.gt(rows), kHidden);
  }
  if (t.size() == 4) {
    scores = t[3].scalar_type() == at::kBool ? scores.masked_fill(t[3].logical_not(), kHidden)
                                             : scores.add(t[3].detach());
  }
  const at::Tensor y = at::matmul(scores.softmax(3), v);
  return bshd ? y.transpose(1, 2) : y;
}

Case attention_case(const std::string& layout,
                    std::int64_t heads,
                    std::int64_t groups,
                    bool causal,
                    std::int64_t value_width,
                    Types mask = {}) {
  const auto shape = [&](std::int64_t h, std::int64_t s, std::int64_t d) {
    return layout == "bshd" ? ir::Shape{2, s, h, d} : ir::Shape{2, h, s, d};
  };
  Case made{"attention",
            {f64(shape(heads, 5, 4)), f64(shape(groups, 7, 4)), f64(shape(groups, 7, value_width))},
            {{"layout", layout}, {"causal", causal}, {"scale", 0.7}, {"mask", !mask.empty()}},
            [=](In t) { return plain_attention(t, layout, causal, 0.7); }};
  made.inputs.insert(made.inputs.end(), mask.begin(), mask.end());
  return made;
}

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  for (const char* const layout : {"bshd", "bhsd"}) {
    for (const bool causal : {false, true}) {
      cases.push_back(attention_case(layout, 2, 2, causal, 4));
      cases.push_back(attention_case(layout, 6, 2, causal, 4));
      cases.push_back(attention_case(layout, 6, 2, causal, 3));
    }
    for (const std::int64_t mask_heads : {1, 6}) {
      cases.push_back(attention_case(layout, 6, 2, false, 4, {boolean({1, mask_heads, 1, 7})}));
      cases.push_back(attention_case(layout, 6, 6, false, 4, {boolean({2, mask_heads, 5, 7})}));
    }
  }
  return cases;
}

std::vector<Case> model_cases() {
  const Types x{f64({2, 3, 4})};
  std::vector<Case> cases{
      {"softmax", x, {{"dim", std::int64_t{1}}}, [](In t) { return t[0].softmax(1); }},
      {"softmax", x, {{"dim", std::int64_t{2}}}, [](In t) { return t[0].softmax(2); }},
      {"embedding", {f64({5, 3}), i64({2, 4})}, {}, [](In t) { return at::embedding(t[0], t[1]); }},
      {"sum_exp",
       {f64({3, 5}), f64({3})},
       {},
       [](In t) { return t[0].detach().sub(t[1].detach().unsqueeze(1)).exp().sum(1); }},
  };
  for (const bool weight : {false, true}) {
    for (const bool bias : {false, true}) {
      Types inputs{f64({2, 3, 4})};
      inputs.insert(inputs.end(),
                    static_cast<std::size_t>(weight) + static_cast<std::size_t>(bias),
                    f64({3, 4}));
      cases.push_back(
          {"layer_norm",
           inputs,
           {{"dims", std::int64_t{2}}, {"eps", 1e-5}, {"weight", weight}, {"bias", bias}},
           [=](In t) {
             return at::layer_norm(t[0],
                                   {3, 4},
                                   weight ? t[1] : at::Tensor(),
                                   bias ? t[weight ? 2 : 1] : at::Tensor(),
                                   1e-5);
           }});
    }
  }
  return cases;
}

struct Filter {
  ir::Shape x;
  ir::Shape weight;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool transposed = false;
};

std::vector<Case> convolution_cases() {
  std::vector<Case> cases;
  for (const Filter& f : std::vector<Filter>{
           {.x = {2, 4, 9}, .weight = {6, 4, 3}, .stride = 2, .padding = 1},
           {.x = {2, 4, 6, 7}, .weight = {6, 4, 3, 2}, .padding = 1},
           {.x = {2, 4, 9, 9}, .weight = {6, 2, 3, 3}, .stride = 2, .dilation = 2, .groups = 2},
           {.x = {2, 4, 6, 6}, .weight = {8, 1, 3, 3}, .padding = 1, .groups = 4},
           {.x = {1, 4, 6, 6}, .weight = {8, 4, 1, 1}},
           {.x = {2, 4, 4, 4},
           .weight = {4, 3, 3, 3},
           .stride = 2,
           .groups = 2,
           .transposed = true},
           {.x = {2, 4, 5}, .weight = {4, 3, 3}, .stride = 3, .transposed = true},
           {.x = {2, 3, 4, 5, 4}, .weight = {6, 3, 2, 3, 2}, .padding = 1}}) {
    const std::size_t rank = f.x.size() - 2;
    const IntList stride(rank, f.stride);
    const IntList padding(rank, f.padding);
    const IntList dilation(rank, f.dilation);
    const IntList extra(rank, f.transposed ? f.stride - 1 : 0);
    cases.push_back(
        {"convolution",
         {f64(f.x), f64(f.weight)},
         {{"stride", stride},
          {"padding", padding},
          {"dilation", dilation},
          {"output_padding", extra},
          {"transposed", f.transposed},
          {"groups", f.groups}},
         [=](In t) {
           return at::convolution(
               t[0], t[1], std::nullopt, stride, padding, dilation, f.transposed, extra, f.groups);
         }});
  }
  return cases;
}

/// With fixed statistics; batch norm in training has a test of its own.
std::vector<Case> batch_norm_cases() {
  const ir::TensorType c = f64({4});
  const auto normalized = [](In t, bool affine) {
    const at::Tensor x =
        t[0].sub(t[1].detach().view({1, 4, 1})).mul(t[2].detach().add(0.1).rsqrt().view({1, 4, 1}));
    return affine ? x.mul(t[3].view({1, 4, 1})).add(t[4].view({1, 4, 1})) : x;
  };
  std::vector<Case> cases{
      {"batch_norm",
       {f64({3, 4, 5}), c, c},
       {{"eps", 0.1}, {"training", false}},
       [=](In t) { return normalized(t, false); }},
      {"batch_norm",
       {f64({3, 4, 5}), c, c, c, c},
       {{"eps", 0.1}, {"training", false}, {"weight", true}, {"bias", true}},
       [=](In t) { return normalized(t, true); }},
      {"batch_moments", {f64({3, 4, 5})}, {}, [](In t) {
         const at::Tensor x = t[0].detach();
         return at::stack({x.new_full({4}, 15), x.sum({0, 2}), x.mul(x).sum({0, 2})});
       }}};
  for (const bool affine : {false, true}) {
    Types inputs{f64({3, 2, 4, 5})};
    inputs.insert(inputs.end(), affine ? 2 : 0, f64({2, 4}));
    cases.push_back(
        {"group_norm", inputs, {{"eps", 0.1}, {"weight", affine}, {"bias", affine}}, [=](In t) {
           return at::group_norm(t[0].reshape({3, 8, 5}),
                                 2,
                                 affine ? t[1].reshape({8}) : at::Tensor(),
                                 affine ? t[2].reshape({8}) : at::Tensor(),
                                 0.1)
               .view({3, 2, 4, 5});
         }});
  }
  return cases;
}

std::vector<Case> function_cases() {
  const Types x{f64({3, 4})};
  const Types outer{f64({3, 1}), f64({1, 4})};
  const Attributes dim{{"dim", std::int64_t{1}}};
  return {
      {"erf", x, {}, [](In t) { return t[0].erf(); }},
      {"tan", x, {}, [](In t) { return t[0].tan(); }},
      {"atan", x, {}, [](In t) { return t[0].atan(); }},
      {"sinh", x, {}, [](In t) { return t[0].sinh(); }},
      {"cosh", x, {}, [](In t) { return t[0].cosh(); }},
      {"expm1", x, {}, [](In t) { return t[0].exp().sub(1); }},
      {"log1p", x, {}, [](In t) { return t[0].add(1).log(); }},
      {"sign", x, {}, [](In t) { return t[0].detach().sign(); }},
      {"floor", x, {}, [](In t) { return t[0].detach().floor(); }},
      {"pow", outer, {}, [](In t) { return t[0].pow(t[1]); }},
      {"atan2", outer, {}, [](In t) { return t[0].atan2(t[1]); }},
      {"remainder", outer, {}, [](In t) { return t[0].remainder(t[1]); }},
      {"leaky_relu",
       x,
       {{"slope", 0.1}},
       [](In t) { return at::where(t[0].gt(0), t[0], t[0].mul(0.1)); }},
      {"elu",
       x,
       {{"alpha", 0.5}, {"scale", 2.0}, {"input_scale", 1.0}},
       [](In t) { return at::elu(t[0], 0.5, 2.0, 1.0); }},
      {"softplus",
       x,
       {{"beta", 2.0}, {"threshold", 20.0}},
       [](In t) { return t[0].mul(2).exp().add(1).log().div(2); }},
      {"hardtanh",
       x,
       {{"low", 0.4}, {"high", 0.9}},
       [](In t) { return at::hardtanh(t[0], 0.4, 0.9); }},
      {"hardswish", x, {}, [](In t) { return t[0].mul(t[0].add(3).clamp(0, 6)).div(6); }},
      {"hardsigmoid", x, {}, [](In t) { return at::hardsigmoid(t[0]); }},
      {"mish", x, {}, [](In t) { return t[0].mul(t[0].exp().add(1).log().tanh()); }},
      {"log_softmax", x, dim, [](In t) { return t[0].log_softmax(1); }},
      {"max",
       x,
       {{"dims", IntList{0, 1}}, {"keepdim", false}},
       [](In t) {
         return t[0].amax({0, 1});
       }},
      {"max_index",
       x,
       {{"dim", std::int64_t{1}}, {"smallest", true}},
       [](In t) { return std::get<0>(t[0].min(1, true)); }},
      {"topk",
       x,
       {{"dim", std::int64_t{1}}, {"k", std::int64_t{2}}, {"smallest", false}},
       [](In t) { return std::get<0>(t[0].topk(2, 1)); }},
      {"sort",
       x,
       {{"dim", std::int64_t{1}}, {"descending", true}},
       [](In t) { return std::get<0>(t[0].sort(1, true)); }},
  };
}

std::vector<Case> space_cases() {
  const Types x{f64({2, 3, 7, 6})};
  const Attributes windows{{"kernel", IntList{3, 2}},
                           {"stride", IntList{2, 1}},
                           {"padding", IntList{1, 0}},
                           {"ceil", true}};
  Attributes maxima = windows;
  maxima.set("dilation", IntList{1, 2});
  Attributes means = windows;
  means.set("count_padding", false);
  const auto mode = [](const char* name, IntList size) {
    return Attributes{{"mode", std::string(name)}, {"size", std::move(size)}};
  };
  return {
      {"max_pool",
       x,
       maxima,
       [](In t) {
         return at::max_pool2d(t[0], {3, 2}, {2, 1}, {1, 0}, {1, 2}, true);
       }},
      {"max_pool",
       {f64({2, 3, 7})},
       {{"kernel", IntList{3}},
        {"stride", IntList{2}},
        {"padding", IntList{1}},
        {"dilation", IntList{1}},
        {"ceil", false}},
       [](In t) { return at::max_pool1d(t[0], {3}, {2}, {1}); }},
      {"adaptive_max_pool",
       x,
       {{"size", IntList{3, 4}}},
       [](In t) {
         return std::get<0>(at::adaptive_max_pool2d(t[0], {3, 4}));
       }},
      {"avg_pool",
       x,
       means,
       [](In t) {
         return at::avg_pool2d(t[0], {3, 2}, {2, 1}, {1, 0}, true, false);
       }},
      {"resample",
       x,
       mode("nearest", {11, 9}),
       [](In t) {
         return at::upsample_nearest2d(t[0], {11, 9});
       }},
      {"resample",
       x,
       mode("cubic", {11, 9}),
       [](In t) {
         return at::upsample_bicubic2d(t[0], {11, 9}, false);
       }},
      {"resample",
       {f64({2, 3, 7})},
       mode("linear", {12}),
       [](In t) { return at::upsample_linear1d(t[0], {12}, false); }},
      {"take",
       x,
       {{"dim", std::int64_t{2}}, {"places", IntList{6, 0, 0, 3}}},
       [](In t) {
         return at::stack(
             {t[0].select(2, 6), t[0].select(2, 0), t[0].select(2, 0), t[0].select(2, 3)}, 2);
       }},
  };
}

std::vector<Case> indexing_cases() {
  const Attributes dim{{"dim", std::int64_t{1}}};
  return {
      {"embedding",
       {f64({5, 3}), i64({2, 4})},
       {{"padding_idx", std::int64_t{2}}},
       [](In t) { return at::embedding(t[0], t[1], 2); }},
      {"embedding_backward",
       {f64({4, 3}), i64({4})},
       {{"rows", std::int64_t{6}}},
       [](In t) {
         return t[0].new_zeros({6, 3}).index_add(0, t[1], t[0]);
       }},
      {"embedding_backward",
       {f64({4, 3}), i64({4})},
       {{"rows", std::int64_t{6}}, {"padding_idx", std::int64_t{2}}},
       [](In t) {
         const at::Tensor kept = t[1].ne(2).unsqueeze(1);
         return t[0].new_zeros({6, 3}).index_add(0, t[1], t[0].mul(kept));
       }},
      {"gather", {f64({4, 5, 3}), i64({4, 7, 3})}, dim, [](In t) { return t[0].gather(1, t[1]); }},
      {"gather", {f64({4, 5, 3}), i64({2, 7, 1})}, dim, [](In t) { return t[0].gather(1, t[1]); }},
      {"scatter_sum",
       {f64({2, 7, 3}), i64({2, 7, 3})},
       {{"dim", std::int64_t{1}}, {"shape", IntList{4, 5, 3}}},
       [](In t) {
         return t[0].new_zeros({4, 5, 3}).scatter_add(1, t[1], t[0]);
       }},
  };
}

// Drawn alike in every run: a mask that happens to leave one key everywhere has gradients of zero,
// of which rounding is no small part.
TEST(Kernels, EqualPlainFormulasAndAutograd) {
  at::manual_seed(0);
  for (const auto cases : {elementwise_cases,
                           shape_cases,
                           product_cases,
                           attention_cases,
                           model_cases,
                           convolution_cases,
                           batch_norm_cases,
                           function_cases,
                           space_cases,
                           indexing_cases}) {
    for (const Case& sample : cases()) {
      check(sample);
    }
  }
}

TEST(Kernels, ThereIsOneForEveryOp) {
  std::set<std::string> kernels;
  for (const KernelEntry& entry : all_kernels()) {
    EXPECT_TRUE(kernels.insert(std::string(entry.op)).second) << entry.op << " twice";
    EXPECT_NE(ops::find(entry.op), nullptr) << entry.op << " is no op";
  }
  for (const ops::OpDef* const def : ops::all()) {
    if (def->name == "send" || def->name == "receive") {
      continue;  // runtime/messages.h
    }
    EXPECT_EQ(kernels.count(std::string(def->name)), 1U) << def->name;
  }
}

// Long runs of float take loops of their own.
TEST(Kernels, BatchNormOfLongRunsOfFloatIsThatOfDouble) {
  const at::Tensor x = at::randn({3, 4, 5, 9}, at::TensorOptions(at::kDouble)).mul(2).add(1);
  const at::Tensor g = at::randn({3, 4, 5, 9}, at::TensorOptions(at::kDouble));
  const at::Tensor c = at::rand({4}, at::TensorOptions(at::kDouble)).add(0.5);
  const at::Tensor sums = at::rand({3, 4}, at::TensorOptions(at::kDouble)).add(1);
  const auto result = [&](const char* op, Tensors in, const Attributes& a, at::ScalarType type) {
    const bool moments = in.size() == 1;
    for (at::Tensor& tensor : in) {
      tensor = tensor.to(type);
    }
    const ir::DType dtype =
        type == at::kFloat && !moments ? ir::DType::kFloat32 : ir::DType::kFloat64;
    const Types types{{dtype, moments ? ir::Shape{3, 4} : ir::Shape{3, 4, 5, 9}}};
    return find_kernel(op)(KernelCall{in, a, types, {}, {}})[0].to(at::kDouble);
  };
  const Attributes backward{{"eps", 1e-3}, {"weight", true}};
  for (const auto& [op, inputs, attributes] :
       {std::tuple("batch_moments", Tensors{x}, Attributes{}),
        std::tuple("batch_norm_backward", Tensors{g, x, c, c, sums, c}, backward)}) {
    const at::Tensor narrow = result(op, inputs, attributes, at::kFloat);
    const at::Tensor wide = result(op, inputs, attributes, at::kDouble);
    EXPECT_TRUE(at::allclose(narrow, wide, 1e-5, 1e-4)) << op;
  }
}

// What an element becomes must not depend on where in a tensor it lies: ranks hold it at others.
TEST(Kernels, NarrowElementsAreWhatTheyAreWhereverTheyLie) {
  std::vector<std::tuple<std::string, std::size_t, Attributes>> calls;
  for (const char* const op : {"neg",
                               "exp",
                               "log",
                               "sqrt",
                               "rsqrt",
                               "reciprocal",
                               "tanh",
                               "sigmoid",
                               "relu",
                               "sin",
                               "cos",
                               "abs",
                               "silu"}) {
    calls.emplace_back(op, 1, Attributes{});
  }
  for (const char* const op : {"add",
                               "sub",
                               "mul",
                               "div",
                               "maximum",
                               "minimum",
                               "tanh_backward",
                               "sigmoid_backward",
                               "silu_backward",
                               "relu_backward"}) {
    calls.emplace_back(op, 2, Attributes{});
  }
  for (const double exponent : {-2.0, -1.0, -0.5, 0.5, 1.5, 2.0, 3.0}) {
    calls.emplace_back("pow_scalar", 1, Attributes{{"exponent", exponent}});
  }
  for (const char* const approximate : {"none", "tanh"}) {
    const Attributes attributes{{"approximate", std::string(approximate)}};
    calls.emplace_back("gelu", 1, attributes);
    calls.emplace_back("gelu_backward", 2, attributes);
  }
  calls.emplace_back("scale", 1, Attributes{{"factor", 0.3}});
  calls.emplace_back("add_scalar", 1, Attributes{{"value", 0.3}});
  constexpr std::int64_t kCount = 200;
  for (const auto& [type, dtype] : {std::pair(at::kBFloat16, ir::DType::kBFloat16),
                                    std::pair(at::kHalf, ir::DType::kFloat16)}) {
    const Tensors operands{at::rand({kCount}).mul(4).add(0.1).to(type),
                           at::rand({kCount}).mul(2).add(0.1).to(type)};
    for (const auto& [op, inputs, attributes] : calls) {
      const Kernel kernel = find_kernel(op);
      const auto run = [&, count = inputs, with = attributes, of = dtype](std::int64_t start,
                                                                          std::int64_t size) {
        Tensors in;
        for (std::size_t i = 0; i < count; ++i) {
          in.push_back(operands[i].slice(0, start, start + size).clone());
        }
        return kernel(KernelCall{in, with, {ir::TensorType{of, {size}}}, {}, {}})[0];
      };
      const at::Tensor whole = run(0, kCount);
      for (std::int64_t i = 0; i < kCount; ++i) {
        EXPECT_TRUE(run(i, 1).equal(whole.slice(0, i, i + 1))) << op << " of element " << i;
      }
    }
  }
}

// Sums in float would depend on how a batch is cut; what comes out in bf16 then differs by a unit
// here and there, and behind some layers and ReLUs by everything.
TEST(Kernels, SumsOfBatchNormAreExactHoweverTheBatchIsCut) {
  const at::Tensor mean = at::randn({3}, at::TensorOptions(at::kFloat));
  const at::Tensor variance = at::rand({3}, at::TensorOptions(at::kFloat)).add(0.5);
  constexpr double kEps = 1e-3;
  const auto run = [](const char* op, Tensors in, const Attributes& attributes) {
    for (at::Tensor& tensor : in) {
      tensor = tensor.contiguous();
    }
    return find_kernel(op)(KernelCall{in, attributes, {f64({3, 3})}, {}, {}})[0];
  };
  const auto wide = [](const at::Tensor& x) {
    return x.to(at::kDouble).transpose(0, 1).reshape({3, -1});
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ir::Shape& shape : {ir::Shape{8, 3, 40, 60},
                                   ir::Shape{8, 3, 2, 13},
                                   ir::Shape{8, 3, 2, 3},
                                   ir::Shape{64, 3}}) {
      if (type == at::kFloat && shape.back() == 3) {
        continue;  // short runs of float are ATen's
      }
      const at::Tensor x = at::randn(shape).mul(2).add(1).to(type);
      const at::Tensor g = at::randn(shape).to(type);
      const at::Tensor moments = at::full({3, 3}, 0.0, at::TensorOptions(at::kDouble));
      const at::Tensor sums = moments.clone();
      for (std::int64_t part = 0; part < 4; ++part) {
        const at::Tensor of_x = x.chunk(4)[static_cast<std::size_t>(part)];
        const at::Tensor of_g = g.chunk(4)[static_cast<std::size_t>(part)];
        moments.add_(run("batch_moments", {of_x}, {}));
        sums.add_(run("batch_norm_sums", {of_g, of_x, mean, variance}, {{"eps", kEps}}));
      }
      const at::Tensor count = moments[0];
      const at::Tensor x_hat = wide(x)
                                   .sub(mean.to(at::kDouble).unsqueeze(1))
                                   .div(variance.to(at::kDouble).add(kEps).sqrt().unsqueeze(1));
      const at::Tensor true_moments =
          at::stack({count, wide(x).sum(1), wide(x).mul(wide(x)).sum(1)});
      const at::Tensor true_sums = at::stack({count, wide(g).sum(1), wide(g).mul(x_hat).sum(1)});
      EXPECT_EQ(count[0].item<double>() * 3, static_cast<double>(x.numel()));
      for (const auto& [found, truth, op, in] :
           {std::tuple(moments, true_moments, "batch_moments", Tensors{x}),
            std::tuple(sums, true_sums, "batch_norm_sums", Tensors{g, x, mean, variance})}) {
        const Attributes eps = in.size() > 1 ? Attributes{{"eps", kEps}} : Attributes{};
        EXPECT_TRUE(at::allclose(found, truth, 1e-13, 1e-10)) << op << " of parts";
        EXPECT_TRUE(at::allclose(run(op, in, eps), truth, 1e-13, 1e-10)) << op;
      }
    }
  }
}

// What arrives lies at the end of a page, and the next may not be read: ATen copies parts of
// operands of which a gradient needs the shape only, which are larger here.
TEST(Kernels, GradientsReadNothingBehindWhatArrives) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  char* const end = static_cast<char*>(pages) + page;
  ASSERT_EQ(::mprotect(end, page, PROT_NONE), 0);
  const auto at_end = [end](const ir::Shape& shape) {
    const at::Tensor value = at::randn(shape, at::TensorOptions(at::kDouble));
    at::Tensor out =
        at::from_blob(end - value.nbytes(), at::IntArrayRef(shape), at::TensorOptions(at::kDouble));
    out.copy_(value);
    return out;
  };
  const Attributes window{{"stride", IntList{1, 1}},
                          {"padding", IntList{0, 0}},
                          {"dilation", IntList{1, 1}},
                          {"output_padding", IntList{0, 0}},
                          {"transposed", false},
                          {"groups", std::int64_t{2}}};
  const ir::TensorType x = f64({2, 4, 20, 20});
  const ir::TensorType weight = f64({4, 2, 20, 20});
  const at::Tensor g = at_end({2, 4, 1, 1});
  const at::Tensor values = at::randn(x.shape, at::TensorOptions(at::kDouble));
  const at::Tensor filter = at::randn(weight.shape, at::TensorOptions(at::kDouble));
  const auto run = [&](const char* op, const Tensors& in, const ir::TensorType& type) {
    const Types types{type};
    return find_kernel(op)(KernelCall{in, window, types, {}, {}})[0];
  };
  const at::Tensor tracked = values.clone().requires_grad_(true);
  const at::Tensor tracked_filter = filter.clone().requires_grad_(true);
  at::convolution(tracked,
                  tracked_filter,
                  std::nullopt,
                  IntList{1, 1},
                  IntList{0, 0},
                  IntList{1, 1},
                  false,
                  IntList{0, 0},
                  2)
      .mul(g)
      .sum()
      .backward();
  expect_close(run("convolution_backward_input", {g, filter}, x), tracked.grad(), "of x");
  expect_close(
      run("convolution_backward_weight", {g, values}, weight), tracked_filter.grad(), "of weight");
  ::munmap(pages, 2 * page);
}

// x -> moments -> statistics -> batch_norm against PyTorch's batch norm in training.
TEST(Kernels, BatchNormByItsOwnStatisticsIsPyTorchs) {
  const at::Tensor x = at::randn({3, 4, 5}, at::TensorOptions(at::kDouble)).mul(2).add(1);
  const at::Tensor weight = at::randn({4}, at::TensorOptions(at::kDouble));
  const at::Tensor bias = at::randn({4}, at::TensorOptions(at::kDouble));
  const auto results = [](const char* op, const Tensors& in, const Attributes& a, const Types& t) {
    return find_kernel(op)(KernelCall{in, a, t, {}, {}});
  };
  const ir::TensorType c = f64({4});
  const at::Tensor moments = results("batch_moments", {x}, {}, {f64({3, 4})})[0];
  const Tensors statistics =
      results("batch_statistics", {moments}, {{"dtype", std::string("f64")}}, {c, c});
  const at::Tensor old_mean = at::randn({4}, at::TensorOptions(at::kDouble));
  const at::Tensor old_variance = at::randn({4}, at::TensorOptions(at::kDouble)).abs();
  const Tensors running =
      results("batch_running", {moments, old_mean, old_variance}, {{"momentum", 0.3}}, {c, c});

  const Tensors tracked{x.clone().requires_grad_(true),
                        weight.clone().requires_grad_(true),
                        bias.clone().requires_grad_(true)};
  const at::Tensor truth = at::batch_norm(
      tracked[0], tracked[1], tracked[2], old_mean, old_variance, true, 0.3, 1e-3, false);
  const at::Tensor g = at::randn(truth.sizes(), at::TensorOptions(at::kDouble));
  truth.mul(g).sum().backward();

  const Case sample{"batch_norm",
                    {f64({3, 4, 5}), c, c, c, c},
                    {{"eps", 1e-3}, {"training", true}, {"weight", true}, {"bias", true}},
                    {}};
  OpRun run(sample, {x, statistics[0], statistics[1], weight, bias});
  expect_close(run.output(), truth.detach(), "forward");
  expect_close(running[0], old_mean, "running mean");
  expect_close(running[1], old_variance, "running variance");
  const Tensors gradients = run.gradients(g);
  expect_close(gradients[0], tracked[0].grad(), "gradient of x");
  expect_close(gradients[3], tracked[1].grad(), "gradient of the weight");
  expect_close(gradients[4], tracked[2].grad(), "gradient of the bias");
}

// Functions whose operands must be below 1, and the loss of probabilities.
TEST(Kernels, FunctionsOnTheUnitIntervalEqualAutograd) {
  const at::Tensor x = at::rand({3, 4}, at::TensorOptions(at::kDouble)).mul(0.9).add(0.05);
  const at::Tensor target = at::rand({3, 4}, at::TensorOptions(at::kDouble));
  const Types one{f64({3, 4})};
  const Types two{f64({3, 4}), f64({3, 4})};
  const std::vector<Case> cases{{"asin", one, {}, [](In t) { return t[0].asin(); }},
                                {"acos", one, {}, [](In t) { return t[0].acos(); }},
                                {"binary_cross_entropy", two, {}, [](In t) {
                                   const at::Tensor rest =
                                       t[1].neg().add(1).mul(t[0].neg().add(1).log());
                                   return t[1].mul(t[0].log()).add(rest).neg();
                                 }}};
  for (const Case& sample : cases) {
    SCOPED_TRACE(sample.op);
    Tensors inputs{x, target};
    inputs.resize(sample.inputs.size());
    Tensors tracked;
    for (const at::Tensor& input : inputs) {
      tracked.push_back(input.clone().requires_grad_(true));
    }
    OpRun run(sample, inputs);
    const at::Tensor truth = sample.truth(tracked);
    expect_close(run.output(), truth.detach(), "forward");
    const at::Tensor g = at::randn(truth.sizes(), at::TensorOptions(at::kDouble));
    truth.mul(g).sum().backward();
    const Tensors gradients = run.gradients(g);
    for (std::size_t i = 0; i < tracked.size(); ++i) {
      expect_close(gradients[i], tracked[i].grad(), "gradient of operand " + std::to_string(i));
    }
  }
}

// logits -> score of the label, whose lse is logsumexp of the same logits.
TEST(Kernels, LabelScoreIsTheLogProbabilityAndIgnoresWhatItIsTold) {
  const at::Tensor logits = at::randn({6, 5}, at::TensorOptions(at::kDouble));
  const at::Tensor target = at::randint(0, 5, {6}, at::TensorOptions(at::kLong));
  target[2] = -100;
  const Case sample{
      "label_score", {f64({6, 5}), i64({6}), f64({6})}, {{"ignore_index", std::int64_t{-100}}}, {}};
  OpRun run(sample, {logits, target, logits.logsumexp({1})});
  const at::Tensor tracked = logits.clone().requires_grad_(true);
  const at::Tensor kept = target.ne(-100);
  const at::Tensor truth =
      tracked.log_softmax(1).gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1).mul(kept);
  expect_close(run.output(), truth.detach(), "forward");
  const at::Tensor g = at::randn({6}, at::TensorOptions(at::kDouble));
  truth.mul(g).sum().backward();
  expect_close(run.gradients(g)[0], tracked.grad(), "gradient");
}

// Two shards of a table or of the classes, run one after the other, sum up to the whole.
TEST(Kernels, ShardsOfLookupsSumToTheWhole) {
  const at::Tensor weight = at::randn({6, 3}, at::TensorOptions(at::kDouble));
  const at::Tensor ids = at::randint(0, 6, {4, 2}, at::TensorOptions(at::kLong));
  const at::Tensor g = at::randn({4, 2, 3}, at::TensorOptions(at::kDouble));
  const at::Tensor logits = at::randn({5, 6}, at::TensorOptions(at::kDouble));
  const at::Tensor target = at::randint(0, 6, {5}, at::TensorOptions(at::kLong));
  target[1] = -100;
  const at::Tensor lse = logits.logsumexp({1});
  const Attributes none;
  const Attributes rows{{"rows", std::int64_t{6}}};
  const Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  const auto whole =
      [](const char* op, const Tensors& in, const Attributes& a, const ir::Shape& shape) {
        const std::vector<ir::TensorType> types{f64(shape)};
        return find_kernel(op)({in, a, types, {}, {}})[0];
      };
  at::Tensor looked_up;
  at::Tensor score;
  Tensors weight_gradients;
  Tensors logit_gradients;
  for (const std::int64_t start : {0, 3}) {
    const GlobalAxis axis{"v", -1, start, 3, 6};
    const auto shard =
        [&](const char* op, const Tensors& in, const Attributes& a, const ir::Shape& shape) {
          const std::vector<ir::TensorType> types{f64(shape)};
          return find_kernel(op)({in, a, types, {axis}, {}})[0];
        };
    const at::Tensor part = shard("embedding", {weight.narrow(0, start, 3), ids}, none, {4, 2, 3});
    looked_up = looked_up.defined() ? looked_up.add(part) : part;
    weight_gradients.push_back(shard("embedding_backward", {g, ids}, rows, {3, 3}));
    const at::Tensor columns = logits.narrow(1, start, 3).contiguous();
    const at::Tensor scores = shard("label_score", {columns, target, lse}, ignore, {5});
    score = score.defined() ? score.add(scores) : scores;
    logit_gradients.push_back(
        shard("label_score_backward", {lse, columns, target, lse}, ignore, {5, 3}));
  }
  expect_close(looked_up, at::embedding(weight, ids), "embedding");
  expect_close(at::cat(weight_gradients),
               whole("embedding_backward", {g, ids}, rows, {6, 3}),
               "embedding_backward");
  expect_close(score, whole("label_score", {logits, target, lse}, ignore, {5}), "label_score");
  expect_close(at::cat(logit_gradients, 1),
               whole("label_score_backward", {lse, logits, target, lse}, ignore, {5, 6}),
               "label_score_backward");
}

TEST(Kernels, DropoutDependsOnTheGlobalIndexOnly) {
  const at::Tensor x = at::full({6, 8, 10}, 1.0, at::TensorOptions(at::kFloat));
  const Attributes attributes{{"p", 0.3}, {"seed", std::int64_t{4}}};
  const std::vector<ir::TensorType> whole_type{{ir::DType::kFloat32, {6, 8, 10}}};
  const RandomState state{1, 2, 3};
  const Kernel kernel = find_kernel("dropout");
  const at::Tensor whole = kernel({{x}, attributes, whole_type, {}, state})[0];
  EXPECT_NEAR(whole.eq(0).to(at::kFloat).mean().item<double>(), 0.3, 0.08);
  EXPECT_NEAR(whole.max().item<double>(), 1 / 0.7, 1e-6);
  const std::vector<ir::TensorType> part_type{{ir::DType::kFloat32, {3, 8, 5}}};
  const std::vector<GlobalAxis> positions{{"a", 0, 3, 3, 6}, {"b", 1, 0, 8, 8}, {"c", 2, 5, 5, 10}};
  const at::Tensor part = kernel({{x.narrow(0, 0, 3).narrow(2, 0, 5).contiguous()},
                                  attributes,
                                  part_type,
                                  positions,
                                  state})[0];
  EXPECT_TRUE(at::allclose(part, whole.narrow(0, 3, 3).narrow(2, 5, 5)));
  const at::Tensor later = kernel({{x}, attributes, whole_type, {}, RandomState{1, 3, 3}})[0];
  EXPECT_FALSE(at::allclose(later, whole));
}

/// 2^40 + 1 is no float: as one it would equal 2^40.
TEST(Kernels, NumbersDoNotTurnIntegersIntoFloats) {
  const std::int64_t large = (std::int64_t{1} << 40) + 1;
  const at::Tensor x = at::full({3}, large, at::TensorOptions(at::kLong));
  const auto made = [&](const char* op, const char* name, double value, ir::DType dtype) {
    const Attributes attributes{{name, value}};
    return find_kernel(op)(KernelCall{{x}, attributes, {{dtype, {3}}}, {}, {}})[0]
        .to(at::kLong)[0]
        .item<std::int64_t>();
  };
  const auto below = static_cast<double>(large - 1);
  EXPECT_EQ(made("ne_scalar", "value", below, ir::DType::kBool), 1);
  EXPECT_EQ(made("gt_scalar", "value", below, ir::DType::kBool), 1);
  EXPECT_EQ(made("gt_scalar", "value", 0.5, ir::DType::kBool), 1);
  EXPECT_EQ(made("add_scalar", "value", 2, ir::DType::kInt64), large + 2);
  EXPECT_EQ(made("scale", "factor", 3, ir::DType::kInt64), 3 * large);
  EXPECT_EQ(made("maximum_scalar", "value", 1, ir::DType::kInt64), large);
}

TEST(Kernels, CallsOfUnknownOperatorsAreToldBeforeTheyRun) {
  ir::Op op{.name = "call", .layer = "head"};
  op.attributes.set("target", std::string("aten.cumprod.default"));
  EXPECT_TRUE(check_runnable(op).has_value());
  op.attributes.set("target", std::string("my_library.fused_head.default"));
  const Status status = check_runnable(op);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().text().find("my_library.fused_head.default of layer 'head'"),
            std::string::npos);
}

TEST(Kernels, IotaStartsWhereTheShardDoes) {
  const Attributes attributes{
      {"shape", IntList{2, 6}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}};
  const std::vector<ir::TensorType> type{{ir::DType::kInt64, {2, 3}}};
  const at::Tensor part = find_kernel("iota")({{}, attributes, type, {{"b", 1, 3, 3, 6}}, {}})[0];
  EXPECT_EQ(part[1][0].item<std::int64_t>(), 3);
  EXPECT_EQ(part[0][2].item<std::int64_t>(), 5);
}

}  // namespace
}  // namespace shardplan::runtime
