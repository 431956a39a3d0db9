#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"

namespace shardplan::training {

/// Writes small forward graphs by hand.
class GraphBuilder {
 public:
  explicit GraphBuilder(ir::DType dtype = ir::DType::kFloat32) : dtype_(dtype) {}

  ir::ValueId parameter(std::string name, ir::Shape shape, bool trainable = true) {
    const ir::ValueId id =
        add(ir::ValueKind::kParameter, std::move(name), {dtype_, std::move(shape)});
    graph_.value(id).trainable = trainable;
    return id;
  }
  ir::ValueId buffer(std::string name, ir::Shape shape) {
    return add(ir::ValueKind::kBuffer, std::move(name), {dtype_, std::move(shape)});
  }
  void write(ir::ValueId target, ir::ValueId value) { graph_.writes.push_back({target, value}); }
  ir::ValueId input(std::string name, ir::Shape shape) {
    return add(ir::ValueKind::kInput, std::move(name), {dtype_, std::move(shape)});
  }
  ir::ValueId indices(std::string name, ir::Shape shape) {
    return add(ir::ValueKind::kInput, std::move(name), {ir::DType::kInt64, std::move(shape)});
  }
  ir::ValueId op(std::string name,
                 std::vector<ir::ValueId> inputs,
                 ir::Attributes attributes = {}) {
    return all(std::move(name), std::move(inputs), std::move(attributes)).front();
  }
  std::vector<ir::ValueId> all(std::string name,
                               std::vector<ir::ValueId> inputs,
                               ir::Attributes attributes = {}) {
    ir::Op op;
    op.name = std::move(name);
    op.inputs = std::move(inputs);
    op.attributes = std::move(attributes);
    op.layer = layer;
    const Result<ir::OpId> id = ops::append(graph_, std::move(op));
    EXPECT_TRUE(id.has_value()) << id.error().text();
    return graph_.op(*id).outputs;
  }
  ir::ValueId einsum(std::string equation, ir::ValueId a, ir::ValueId b) {
    return op("einsum", {a, b}, {{"equation", std::move(equation)}});
  }
  ir::ValueId sum(ir::ValueId x, ir::IntList dims, bool keepdim = false) {
    return op("sum", {x}, {{"dims", std::move(dims)}, {"keepdim", keepdim}});
  }
  ir::ValueId sum_all(ir::ValueId x) {
    ir::IntList dims;
    for (std::int64_t d = 0; d < graph_.type(x).rank(); ++d) {
      dims.push_back(d);
    }
    return sum(x, dims);
  }
  ir::ValueId scale(ir::ValueId x, double factor) { return op("scale", {x}, {{"factor", factor}}); }
  ir::ValueId full(ir::Shape shape, double value, const char* dtype) {
    return op(
        "full", {}, {{"shape", std::move(shape)}, {"value", value}, {"dtype", std::string(dtype)}});
  }
  [[nodiscard]] const ir::TensorType& type(ir::ValueId value) const { return graph_.type(value); }

  /// Σ -log softmax(logits)[target] / number of targets that are not -100.
  ir::ValueId cross_entropy(ir::ValueId logits, ir::ValueId target);

  ir::Graph loss(ir::ValueId value) {
    graph_.outputs = {value};
    return graph_;
  }

  std::string layer;

 private:
  ir::ValueId add(ir::ValueKind kind, std::string name, ir::TensorType type) {
    ir::Value value;
    value.kind = kind;
    value.name = std::move(name);
    value.type = std::move(type);
    return graph_.add_value(std::move(value));
  }

  ir::DType dtype_;
  ir::Graph graph_;
};

inline ir::ValueId GraphBuilder::cross_entropy(ir::ValueId logits, ir::ValueId target) {
  const ir::IntList last{type(logits).rank() - 1};
  const ir::ValueId m = op("max", {logits}, {{"dims", last}, {"keepdim", false}});
  const ir::ValueId lse = op("add", {op("log", {op("sum_exp", {logits, m})}), m});
  const ir::ValueId score =
      op("label_score", {logits, target, lse}, {{"ignore_index", std::int64_t{-100}}});
  const ir::ValueId counted = op("ne_scalar", {target}, {{"value", std::int64_t{-100}}});
  const std::string dtype(ir::dtype_name(type(lse).dtype));
  const ir::ValueId count = op("cast", {sum_all(counted)}, {{"dtype", dtype}});
  return op("div", {op("neg", {sum_all(score)}), count});
}

/// x [rows, 6] -> relu(x·w1 + b1)·w2, mean squared difference to y. `dtype` of everything.
inline ir::Graph mlp(std::int64_t rows, ir::DType dtype = ir::DType::kFloat32) {
  GraphBuilder b(dtype);
  const ir::ValueId w1 = b.parameter("up.weight", {4, 6});
  const ir::ValueId b1 = b.parameter("up.bias", {4});
  const ir::ValueId w2 = b.parameter("down.weight", {3, 4});
  const ir::ValueId x = b.input("x", {rows, 6});
  const ir::ValueId y = b.input("y", {rows, 3});
  b.layer = "up";
  const ir::ValueId h = b.op("relu", {b.op("add", {b.einsum("bk,nk->bn", x, w1), b1})});
  b.layer = "down";
  const ir::ValueId out = b.einsum("bk,nk->bn", h, w2);
  b.layer = "loss";
  const ir::ValueId difference = b.op("sub", {out, y});
  const ir::ValueId square = b.op("pow_scalar", {difference}, {{"exponent", 2.0}});
  return b.loss(b.scale(b.sum_all(square), 1.0 / static_cast<double>(3 * rows)));
}

struct GptSizes {
  std::int64_t layers = 2;
  std::int64_t batch = 4;
  std::int64_t positions = 8;
  std::int64_t heads = 2;
  std::int64_t head_size = 4;
  std::int64_t vocabulary = 10;
};

/// A GPT-2-like model with tied embedding: the shape of graphs that the front ends give.
inline ir::Graph gpt(const GptSizes& s) {
  const std::int64_t hidden = s.heads * s.head_size;
  GraphBuilder b;
  const ir::ValueId wte = b.parameter("wte.weight", {s.vocabulary, hidden});
  const ir::ValueId wpe = b.parameter("wpe.weight", {s.positions, hidden});
  const ir::ValueId ids = b.indices("input_ids", {s.batch, s.positions});
  const ir::ValueId labels = b.indices("labels", {s.batch, s.positions});
  const auto linear =
      [&](const std::string& name, ir::ValueId x, std::int64_t from, std::int64_t to) {
        const std::string outer = std::exchange(b.layer, name);
        const ir::ValueId w = b.parameter(name + ".weight", {from, to});
        const ir::ValueId bias = b.parameter(name + ".bias", {to});
        const ir::ValueId y = b.op("add", {b.einsum("bsk,kn->bsn", x, w), bias});
        b.layer = outer;
        return y;
      };
  const auto norm = [&](const std::string& name, ir::ValueId x) {
    const ir::ValueId w = b.parameter(name + ".weight", {hidden});
    const ir::ValueId bias = b.parameter(name + ".bias", {hidden});
    return b.op("layer_norm",
                {x, w, bias},
                {{"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", true}, {"bias", true}});
  };
  b.layer = "embed";
  const ir::ValueId positions = b.op("iota",
                                     {},
                                     {{"shape", ir::IntList{1, s.positions}},
                                      {"dim", std::int64_t{1}},
                                      {"dtype", std::string("i64")}});
  ir::ValueId x = b.op("add", {b.op("embedding", {wte, ids}), b.op("embedding", {wpe, positions})});
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string block = "h." + std::to_string(i);
    b.layer = block + ".attn";
    const ir::ValueId qkv =
        linear(block + ".attn.c_attn", norm(block + ".ln_1", x), hidden, 3 * hidden);
    std::vector<ir::ValueId> heads;
    for (std::int64_t k = 0; k < 3; ++k) {
      const ir::ValueId part = b.op("slice",
                                    {qkv},
                                    {{"dim", std::int64_t{2}},
                                     {"start", k * hidden},
                                     {"end", (k + 1) * hidden},
                                     {"step", std::int64_t{1}}});
      heads.push_back(b.op(
          "reshape", {part}, {{"shape", ir::IntList{s.batch, s.positions, s.heads, s.head_size}}}));
    }
    const ir::ValueId y =
        b.op("attention",
             heads,
             {{"layout", std::string("bshd")}, {"causal", true}, {"scale", 0.5}, {"mask", false}});
    const ir::ValueId joined =
        b.op("reshape", {y}, {{"shape", ir::IntList{s.batch, s.positions, hidden}}});
    x = b.op("add", {x, linear(block + ".attn.c_proj", joined, hidden, hidden)});
    b.layer = block + ".mlp";
    const ir::ValueId up =
        linear(block + ".mlp.c_fc", norm(block + ".ln_2", x), hidden, 4 * hidden);
    const ir::ValueId act = b.op("gelu", {up}, {{"approximate", std::string("tanh")}});
    x = b.op("add", {x, linear(block + ".mlp.c_proj", act, 4 * hidden, hidden)});
  }
  b.layer = "head";
  const ir::ValueId logits = b.einsum("bsk,vk->bsv", norm("ln_f", x), wte);
  const std::int64_t tokens = s.batch * s.positions;
  b.layer = "loss";
  return b.loss(
      b.cross_entropy(b.op("reshape", {logits}, {{"shape", ir::IntList{tokens, s.vocabulary}}}),
                      b.op("reshape", {labels}, {{"shape", ir::IntList{tokens}}})));
}

}  // namespace shardplan::training
