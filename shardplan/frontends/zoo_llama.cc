#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/zoo_models.h"

namespace shardplan::frontends {

using ir::DType;
using ir::IntList;
using ir::ValueId;

namespace {

constexpr double kNormEpsilon = 1e-6;

struct BlockParameters {
  ValueId q;
  ValueId k;
  ValueId v;
  ValueId o;
  ValueId gate;
  ValueId up;
  ValueId down;
  ValueId input_norm;
  ValueId post_norm;
};

class LlamaBuilder {
 public:
  LlamaBuilder(Builder& b, ir::Graph& graph, const LlamaConfig& config)
      : b_(b), graph_(graph), c_(config), head_dim_(config.hidden / config.heads) {}

  void build() {
    const ValueId tokens = add_parameter(b_, "model.embed_tokens.weight", {c_.vocab, c_.hidden});
    std::vector<BlockParameters> blocks;
    for (std::int64_t i = 0; i < c_.layers && b_.ok(); ++i) {
      blocks.push_back(block_parameters(fmt::format("model.layers.{}", i)));
    }
    const ValueId final_norm = add_parameter(b_, "model.norm.weight", {c_.hidden});
    const ValueId head = add_parameter(b_, "lm_head.weight", {c_.vocab, c_.hidden});
    const ValueId frequencies = inverse_frequencies();
    const ValueId ids = add_input(b_, "input_ids", {DType::kInt64, {c_.batch, c_.seq}});
    const ValueId labels = add_input(b_, "labels", {DType::kInt64, {c_.batch, c_.seq}});

    b_.set_layer("model.embed_tokens");
    ValueId x = b_.emit("embedding", {tokens, ids});
    rotary_tables(frequencies);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      x = block(fmt::format("model.layers.{}", i), blocks[i], x);
    }
    x = norm("model.norm", final_norm, x);
    const ValueId logits = linear("lm_head", x, head);
    b_.set_layer("");
    graph_.outputs = {next_token_loss(b_, logits, labels)};
  }

 private:
  BlockParameters block_parameters(const std::string& name) {
    const std::int64_t d = c_.hidden;
    const std::int64_t kv = c_.kv_heads * head_dim_;
    BlockParameters p;
    p.q = add_parameter(b_, name + ".self_attn.q_proj.weight", {d, d});
    p.k = add_parameter(b_, name + ".self_attn.k_proj.weight", {kv, d});
    p.v = add_parameter(b_, name + ".self_attn.v_proj.weight", {kv, d});
    p.o = add_parameter(b_, name + ".self_attn.o_proj.weight", {d, d});
    p.gate = add_parameter(b_, name + ".mlp.gate_proj.weight", {c_.ffn, d});
    p.up = add_parameter(b_, name + ".mlp.up_proj.weight", {c_.ffn, d});
    p.down = add_parameter(b_, name + ".mlp.down_proj.weight", {d, c_.ffn});
    p.input_norm = add_parameter(b_, name + ".input_layernorm.weight", {d});
    p.post_norm = add_parameter(b_, name + ".post_attention_layernorm.weight", {d});
    return p;
  }

  ValueId inverse_frequencies() {
    std::vector<std::byte> bytes(static_cast<std::size_t>(head_dim_ / 2) * sizeof(float));
    for (std::int64_t i = 0; i < head_dim_ / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
      const auto value = static_cast<float>(std::pow(c_.rope_theta, -exponent));
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
    }
    ir::Value buffer;
    buffer.kind = ir::ValueKind::kBuffer;
    buffer.name = "model.rotary_emb.inv_freq";
    buffer.type = {DType::kFloat32, {head_dim_ / 2}};
    buffer.data = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return b_.add_value(std::move(buffer));
  }

  /// cos and sin of position times frequency, [1, s, 1, head_dim].
  void rotary_tables(ValueId frequencies) {
    b_.set_layer("model.rotary_emb");
    const ValueId position = b_.emit("iota",
                                     {},
                                     {{"shape", IntList{1, c_.seq, 1}},
                                      {"dim", std::int64_t{1}},
                                      {"dtype", std::string("f32")}});
    const ValueId half = b_.emit("mul", {position, frequencies});
    const ValueId angle = b_.emit("concat", {half, half}, {{"dim", std::int64_t{2}}});
    const IntList shape{1, c_.seq, 1, head_dim_};
    cos_ = b_.emit("reshape", {b_.emit("cos", {angle})}, {{"shape", shape}});
    sin_ = b_.emit("reshape", {b_.emit("sin", {angle})}, {{"shape", shape}});
  }

  ValueId linear(const std::string& layer, ValueId x, ValueId weight) {
    b_.set_layer(layer);
    return b_.emit("einsum", {x, weight}, {{"equation", std::string("bsk,nk->bsn")}});
  }

  ValueId norm(const std::string& layer, ValueId weight, ValueId x) {
    b_.set_layer(layer);
    const ValueId square = b_.emit("pow_scalar", {x}, {{"exponent", 2.0}});
    const ValueId sum = b_.emit("sum", {square}, {{"dims", IntList{2}}, {"keepdim", true}});
    const ValueId mean =
        b_.emit("scale", {sum}, {{"factor", 1.0 / static_cast<double>(c_.hidden)}});
    const ValueId rstd =
        b_.emit("rsqrt", {b_.emit("add_scalar", {mean}, {{"value", kNormEpsilon}})});
    return b_.emit("mul", {weight, b_.emit("mul", {x, rstd})});
  }

  ValueId heads_of(ValueId x, std::int64_t heads) {
    return b_.emit("reshape", {x}, {{"shape", IntList{c_.batch, c_.seq, heads, head_dim_}}});
  }

  ValueId rotate(ValueId x) {
    const auto half = [&](std::int64_t start) {
      return b_.emit("slice",
                     {x},
                     {{"dim", std::int64_t{3}},
                      {"start", start},
                      {"end", start + head_dim_ / 2},
                      {"step", std::int64_t{1}}});
    };
    const ValueId straight = b_.emit("mul", {x, cos_});
    const ValueId first = half(0);
    const ValueId second = b_.emit("neg", {half(head_dim_ / 2)});
    const ValueId turned = b_.emit("concat", {second, first}, {{"dim", std::int64_t{3}}});
    return b_.emit("add", {straight, b_.emit("mul", {turned, sin_})});
  }

  ValueId attention(const std::string& layer, const BlockParameters& p, ValueId x) {
    const ValueId q = linear(layer + ".q_proj", x, p.q);
    const ValueId k = linear(layer + ".k_proj", x, p.k);
    const ValueId v = linear(layer + ".v_proj", x, p.v);
    b_.set_layer(layer);
    const ValueId q_heads = rotate(heads_of(q, c_.heads));
    const ValueId k_heads = rotate(heads_of(k, c_.kv_heads));
    const ValueId v_heads = heads_of(v, c_.kv_heads);
    const ValueId y = b_.emit("attention",
                              {q_heads, k_heads, v_heads},
                              {{"layout", std::string("bshd")},
                               {"causal", true},
                               {"scale", 1.0 / std::sqrt(static_cast<double>(head_dim_))},
                               {"mask", false}});
    const ValueId merged =
        b_.emit("reshape", {y}, {{"shape", IntList{c_.batch, c_.seq, c_.hidden}}});
    return linear(layer + ".o_proj", merged, p.o);
  }

  ValueId block(const std::string& layer, const BlockParameters& p, ValueId x) {
    const ValueId attended =
        attention(layer + ".self_attn", p, norm(layer + ".input_layernorm", p.input_norm, x));
    b_.set_layer(layer);
    x = b_.emit("add", {x, attended});
    const ValueId y = norm(layer + ".post_attention_layernorm", p.post_norm, x);
    const ValueId gate = linear(layer + ".mlp.gate_proj", y, p.gate);
    b_.set_layer(layer + ".mlp.act_fn");
    const ValueId active = b_.emit("silu", {gate});
    const ValueId up = linear(layer + ".mlp.up_proj", y, p.up);
    b_.set_layer(layer + ".mlp");
    const ValueId product = b_.emit("mul", {active, up});
    const ValueId down = linear(layer + ".mlp.down_proj", product, p.down);
    b_.set_layer(layer);
    return b_.emit("add", {x, down});
  }

  Builder& b_;
  ir::Graph& graph_;
  LlamaConfig c_;
  std::int64_t head_dim_;
  ValueId cos_;
  ValueId sin_;
};

}  // namespace

void build_llama(Builder& b, ir::Graph& graph, const LlamaConfig& config) {
  LlamaBuilder(b, graph, config).build();
}

}  // namespace shardplan::frontends
