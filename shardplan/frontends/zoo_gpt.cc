#include <fmt/format.h>

#include <cmath>
#include <string>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/zoo_models.h"

namespace shardplan::frontends {

using ir::DType;
using ir::IntList;
using ir::ValueId;

namespace {

struct LayerNormParameters {
  ValueId weight;
  ValueId bias;
};

struct BlockParameters {
  LayerNormParameters ln_1;
  ValueId attention_weight;  // [k, 3, n]: query, key and value side by side
  ValueId attention_bias;
  ValueId projection_weight;
  ValueId projection_bias;
  LayerNormParameters ln_2;
  ValueId up_weight;
  ValueId up_bias;
  ValueId down_weight;
  ValueId down_bias;
};

class GptBuilder {
 public:
  GptBuilder(Builder& b, ir::Graph& graph, const GptConfig& config)
      : b_(b), graph_(graph), c_(config) {}

  void build() {
    const ValueId tokens = add_parameter(b_, "transformer.wte.weight", {c_.vocab, c_.hidden});
    const ValueId positions = add_parameter(b_, "transformer.wpe.weight", {c_.seq, c_.hidden});
    std::vector<BlockParameters> blocks;
    for (std::int64_t i = 0; i < c_.layers && b_.ok(); ++i) {
      blocks.push_back(block_parameters(fmt::format("transformer.h.{}", i)));
    }
    const LayerNormParameters final_norm = norm_parameters("transformer.ln_f");
    ValueId head = tokens;
    if (c_.tied) {
      graph_.value(tokens).aliases = {"lm_head.weight"};
    } else {
      head = add_parameter(b_, "lm_head.weight", {c_.vocab, c_.hidden});
    }
    const ValueId ids = add_input(b_, "input_ids", {DType::kInt64, {c_.batch, c_.seq}});
    const ValueId labels = add_input(b_, "labels", {DType::kInt64, {c_.batch, c_.seq}});

    ValueId x = embed(tokens, positions, ids);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      x = block(fmt::format("transformer.h.{}", i), blocks[i], x);
    }
    x = norm("transformer.ln_f", final_norm, x);
    b_.set_layer("lm_head");
    const ValueId logits = b_.emit("einsum", {x, head}, {{"equation", std::string("bsk,nk->bsn")}});
    b_.set_layer("");
    graph_.outputs = {next_token_loss(b_, logits, labels)};
  }

 private:
  LayerNormParameters norm_parameters(const std::string& name) {
    const ValueId weight = add_parameter(b_, name + ".weight", {c_.hidden});
    return {weight, add_parameter(b_, name + ".bias", {c_.hidden})};
  }

  BlockParameters block_parameters(const std::string& name) {
    const std::int64_t d = c_.hidden;
    BlockParameters p;
    p.ln_1 = norm_parameters(name + ".ln_1");
    p.attention_weight = add_parameter(b_, name + ".attn.c_attn.weight", {d, 3, d});
    graph_.value(p.attention_weight).module_shape = {d, 3 * d};
    p.attention_bias = add_parameter(b_, name + ".attn.c_attn.bias", {3, d});
    graph_.value(p.attention_bias).module_shape = {3 * d};
    p.projection_weight = add_parameter(b_, name + ".attn.c_proj.weight", {d, d});
    p.projection_bias = add_parameter(b_, name + ".attn.c_proj.bias", {d});
    p.ln_2 = norm_parameters(name + ".ln_2");
    p.up_weight = add_parameter(b_, name + ".mlp.c_fc.weight", {d, 4 * d});
    p.up_bias = add_parameter(b_, name + ".mlp.c_fc.bias", {4 * d});
    p.down_weight = add_parameter(b_, name + ".mlp.c_proj.weight", {4 * d, d});
    p.down_bias = add_parameter(b_, name + ".mlp.c_proj.bias", {d});
    return p;
  }

  ValueId embed(ValueId tokens, ValueId positions, ValueId ids) {
    b_.set_layer("transformer.wte");
    const ValueId token = b_.emit("embedding", {tokens, ids});
    b_.set_layer("transformer.wpe");
    const ValueId index = b_.emit(
        "iota",
        {},
        {{"shape", IntList{1, c_.seq}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}});
    b_.set_layer("transformer.wpe");
    const ValueId position = b_.emit("embedding", {positions, index});
    b_.set_layer("transformer");
    return dropout("transformer.drop", b_.emit("add", {token, position}));
  }

  ValueId dropout(const std::string& layer, ValueId x) {
    if (c_.dropout == 0) {
      return x;
    }
    b_.set_layer(layer);
    return b_.emit("dropout", {x}, {{"p", c_.dropout}, {"seed", ++sites_}});
  }

  ValueId norm(const std::string& layer, const LayerNormParameters& p, ValueId x) {
    b_.set_layer(layer);
    return b_.emit("layer_norm",
                   {x, p.weight, p.bias},
                   {{"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", true}, {"bias", true}});
  }

  ValueId linear(const std::string& layer, ValueId x, ValueId weight, ValueId bias) {
    b_.set_layer(layer);
    return b_.emit(
        "add", {b_.emit("einsum", {x, weight}, {{"equation", std::string("bsk,kn->bsn")}}), bias});
  }

  ValueId attention(const std::string& layer, const BlockParameters& p, ValueId x) {
    b_.set_layer(layer + ".c_attn");
    const ValueId qkv = b_.emit(
        "add",
        {b_.emit("einsum", {x, p.attention_weight}, {{"equation", std::string("bsk,kcn->bscn")}}),
         p.attention_bias});
    b_.set_layer(layer);
    std::vector<ValueId> parts;
    for (std::int64_t i = 0; i < 3; ++i) {
      const ValueId part = b_.emit(
          "slice",
          {qkv},
          {{"dim", std::int64_t{2}}, {"start", i}, {"end", i + 1}, {"step", std::int64_t{1}}});
      parts.push_back(
          b_.emit("reshape",
                  {part},
                  {{"shape", IntList{c_.batch, c_.seq, c_.heads, c_.hidden / c_.heads}}}));
    }
    const std::int64_t head_size = c_.hidden / c_.heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_size));
    ValueId y;
    if (c_.dropout > 0) {
      DropoutAttention options;
      options.heads_inner = true;
      options.scale = scale;
      options.causal = true;
      options.p = c_.dropout;
      options.seed = ++sites_;
      y = dropout_attention(b_, parts[0], parts[1], parts[2], options);
    } else {
      y = b_.emit(
          "attention",
          parts,
          {{"layout", std::string("bshd")}, {"causal", true}, {"scale", scale}, {"mask", false}});
    }
    y = b_.emit("reshape", {y}, {{"shape", IntList{c_.batch, c_.seq, c_.hidden}}});
    y = linear(layer + ".c_proj", y, p.projection_weight, p.projection_bias);
    return dropout(layer + ".resid_dropout", y);
  }

  ValueId block(const std::string& layer, const BlockParameters& p, ValueId x) {
    const ValueId attended = attention(layer + ".attn", p, norm(layer + ".ln_1", p.ln_1, x));
    b_.set_layer(layer);
    x = b_.emit("add", {attended, x});
    ValueId y = norm(layer + ".ln_2", p.ln_2, x);
    y = linear(layer + ".mlp.c_fc", y, p.up_weight, p.up_bias);
    b_.set_layer(layer + ".mlp.act");
    y = b_.emit("gelu", {y}, {{"approximate", std::string("tanh")}});
    y = linear(layer + ".mlp.c_proj", y, p.down_weight, p.down_bias);
    y = dropout(layer + ".mlp.dropout", y);
    b_.set_layer(layer);
    return b_.emit("add", {x, y});
  }

  Builder& b_;
  ir::Graph& graph_;
  GptConfig c_;
  std::int64_t sites_ = 0;
};

}  // namespace

void build_gpt(Builder& b, ir::Graph& graph, const GptConfig& config) {
  GptBuilder(b, graph, config).build();
}

}  // namespace shardplan::frontends
