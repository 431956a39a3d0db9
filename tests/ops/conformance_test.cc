// What every op of the registry must satisfy, on sample instances of each.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops_testing.h"

namespace shardplan::ops {
namespace {

using ir::Attributes;
using ir::IntList;

void add_elementwise(std::vector<Sample>& out) {
  for (const char* const name : {"identity",
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

void add_broadcasting(std::vector<Sample>& out) {
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

Attributes cut(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  return {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}};
}

void add_shape(std::vector<Sample>& out) {
  out.push_back({"reshape", {f32({8, 4, 6})}, {{"shape", IntList{32, 2, 3}}}});
  out.push_back({"transpose", {f32({8, 4, 6})}, {{"permutation", IntList{2, 0, 1}}}});
  out.push_back({"broadcast", {f32({4, 1, 6})}, {{"shape", IntList{2, 4, 5, 6}}}});
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
       {{"shape", IntList{4, 6}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}}});
  out.push_back(
      {"full", {}, {{"shape", IntList{4, 6}}, {"value", 1.5}, {"dtype", std::string("f32")}}});
}

void add_reductions(std::vector<Sample>& out) {
  for (const char* const name : {"sum", "max"}) {
    out.push_back({name, {f32({4, 5, 6})}, {{"dims", IntList{0, 2}}, {"keepdim", false}}});
    out.push_back({name, {f32({4, 5, 6})}, {{"dims", IntList{1}}, {"keepdim", true}}});
  }
  out.push_back({"sum", {boolean({4, 5})}, {{"dims", IntList{0, 1}}}});
  out.push_back({"cumsum", {f32({4, 5})}, {{"dim", std::int64_t{1}}}});
  out.push_back({"sum_squares", {bf16({4, 5})}});
  out.push_back({"clip_scale", {f32({})}, {{"max_norm", 1.0}}});
}

void add_products(std::vector<Sample>& out) {
  const std::vector<std::pair<std::string, ir::Shape>> cases{{"bsk,nk->bsn", {10, 8}},
                                                             {"bsk,kn->nbs", {8, 10}},
                                                             {"bsk,bsk->", {4, 6, 8}},
                                                             {"bsk,bk->s", {4, 8}}};
  for (const auto& [equation, second] : cases) {
    out.push_back({"einsum", {f32({4, 6, 8}), f32(second)}, {{"equation", equation}}});
  }
}

void add_normalizations(std::vector<Sample>& out) {
  for (const bool weight : {false, true}) {
    const Attributes attributes{
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

void add_attention(std::vector<Sample>& out) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t key_heads : {1, 2, 6}) {
      const Attributes attributes{
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

void add_lookups(std::vector<Sample>& out) {
  const Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  out.push_back({"embedding", {f32({9, 4}), i64({2, 3})}});
  out.push_back({"embedding_backward", {f32({2, 3, 4}), i64({2, 3})}, {{"rows", std::int64_t{9}}}});
  out.push_back({"sum_exp", {bf16({2, 3, 9}), f32({2, 3})}});
  out.push_back({"label_score", {bf16({3, 9}), i64({3}), f32({3})}, ignore});
  out.push_back({"label_score_backward", {f32({3}), bf16({3, 9}), i64({3}), f32({3})}, ignore});
  out.push_back({"dropout", {f32({3, 9})}, {{"p", 0.1}, {"seed", std::int64_t{1}}}});
}

void add_updates(std::vector<Sample>& out) {
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

std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const auto add : {add_elementwise,
                         add_broadcasting,
                         add_shape,
                         add_reductions,
                         add_products,
                         add_normalizations,
                         add_attention,
                         add_lookups,
                         add_updates}) {
    add(out);
  }
  return out;
}

Types infer(const Sample& sample) {
  Result<Types> results = get(sample.op).infer(sample.inputs, sample.attributes);
  EXPECT_TRUE(results.has_value()) << sample.op << ": " << results.error().text();
  return *std::move(results);
}

TEST(EveryOp, HasASample) {
  std::set<std::string> seen;
  for (const Sample& sample : samples()) {
    seen.insert(sample.op);
  }
  for (const OpDef* const def : all()) {
    EXPECT_EQ(seen.count(std::string(def->name)), 1U) << def->name;
  }
}

/// Each dimension is the product of its axes, or has none.
void expect_fits(const AxisMap& map, const std::vector<DimAxes>& tensors, const Types& types) {
  ASSERT_EQ(tensors.size(), types.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(tensors[i].size(), types[i].shape.size());
    std::set<int> seen;
    for (std::size_t d = 0; d < tensors[i].size(); ++d) {
      std::int64_t product = 1;
      for (const int a : tensors[i][d]) {
        product *= map.axes[static_cast<std::size_t>(a)].size;
        EXPECT_TRUE(seen.insert(a).second) << "an axis twice in one tensor";
      }
      EXPECT_TRUE(tensors[i][d].empty() || product == types[i].shape[d]);
    }
  }
}

bool occurs(const std::vector<DimAxes>& tensors, int axis) {
  for (const DimAxes& dims : tensors) {
    for (const std::vector<int>& dim : dims) {
      if (std::find(dim.begin(), dim.end(), axis) != dim.end()) {
        return true;
      }
    }
  }
  return false;
}

TEST(EveryOp, HasAnAxisMapThatFitsItsTypes) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.op + " " + axes_of(sample));
    const Types results = infer(sample);
    const AxisMap map = get(sample.op).axes(OpView{sample.inputs, results, sample.attributes});
    expect_fits(map, map.inputs, sample.inputs);
    expect_fits(map, map.results, results);
    std::set<std::string> names;
    for (std::size_t a = 0; a < map.axes.size(); ++a) {
      const Axis& axis = map.axes[a];
      EXPECT_GT(axis.size, 1);
      EXPECT_TRUE(names.insert(axis.name).second);
      EXPECT_TRUE(occurs(map.inputs, static_cast<int>(a)) ||
                  occurs(map.results, static_cast<int>(a)));
      EXPECT_TRUE(axis.role != AxisRole::kFree || occurs(map.results, static_cast<int>(a)));
      EXPECT_TRUE(axis.role != AxisRole::kLookup || axis.positional);
    }
    for (const PartialRule& rule : map.partials) {
      for (const int i : rule.inputs) {
        EXPECT_LT(static_cast<std::size_t>(i), sample.inputs.size());
      }
      for (const int r : rule.results) {
        EXPECT_LT(static_cast<std::size_t>(r), results.size());
      }
    }
  }
}

TEST(EveryOp, OverwritesOperandsOfTheSameType) {
  for (const Sample& sample : samples()) {
    const OpDef& def = get(sample.op);
    const Types results = infer(sample);
    for (std::size_t r = 0; r < results.size() && r < def.in_place.size(); ++r) {
      EXPECT_EQ(sample.inputs[static_cast<std::size_t>(def.in_place[r])], results[r]) << sample.op;
    }
    EXPECT_GE(flops_of(sample), 0);
    if (def.workspace != nullptr) {
      EXPECT_GE(def.workspace(OpView{sample.inputs, results, sample.attributes}), 0) << sample.op;
    }
  }
}

/// The op on inputs, and gradients of all its floating operands for gradients of its first result.
TEST(EveryOp, GivesGradientsOfTheTypesOfItsOperands) {
  for (const Sample& sample : samples()) {
    const OpDef& def = get(sample.op);
    const bool from_floating =
        std::any_of(sample.inputs.begin(), sample.inputs.end(), [](const ir::TensorType& type) {
          return ir::is_floating(type.dtype);
        });
    if (def.gradient == nullptr || !from_floating || !ir::is_floating(infer(sample)[0].dtype)) {
      continue;
    }
    SCOPED_TRACE(sample.op + " " + axes_of(sample));
    ir::Graph graph;
    ir::Op op;
    op.name = sample.op;
    op.attributes = sample.attributes;
    std::vector<bool> needed;
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      op.inputs.push_back(graph.add_value({.type = sample.inputs[i],
                                           .name = "x" + std::to_string(i),
                                           .kind = ir::ValueKind::kInput}));
      const bool mask = sample.op == "attention" && i == 3;
      needed.push_back(ir::is_floating(sample.inputs[i].dtype) && !mask);
    }
    const ir::OpId id = append(graph, op).value();
    std::vector<ir::ValueId> gradients(graph.op(id).outputs.size());
    gradients[0] = graph.add_value(
        {.type = graph.type(graph.op(id).outputs[0]), .name = "g", .kind = ir::ValueKind::kInput});
    GradientBuilder builder(graph, id, gradients, needed);
    def.gradient(builder);
    EXPECT_EQ(builder.refusal(), "");
    const Status status = ops::verify(graph);
    EXPECT_TRUE(status.has_value()) << status.error().text();
    bool any = false;
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const ir::ValueId gradient = builder.input_gradients()[i];
      any = any || gradient.valid();
      if (gradient.valid()) {
        EXPECT_EQ(graph.type(gradient), sample.inputs[i]) << "operand " << i;
      }
    }
    const bool constant = sample.op == "pow_scalar" && sample.attributes.number("exponent") == 0.0;
    EXPECT_EQ(any, !constant);
    for (std::size_t i = 1; i < graph.ops().size(); ++i) {
      EXPECT_EQ(graph.ops()[i].source, id);
      EXPECT_EQ(graph.ops()[i].phase, ir::Phase::kBackward);
    }
  }
}

}  // namespace
}  // namespace shardplan::ops
