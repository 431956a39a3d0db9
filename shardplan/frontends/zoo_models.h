#pragma once

#include <cstdint>
#include <string_view>

#include "shardplan/frontends/builder.h"
#include "shardplan/support/result.h"

/// The models of the zoo, built directly in canonical form (see rewrite), with the structure, the
/// names and the order of parameters of the classes of `transformers` that they stand for.
namespace shardplan::frontends {

/// `layers` linear layers with ReLU between them, then cross-entropy with integer labels.
struct MlpConfig {
  std::int64_t layers = 4;
  std::int64_t hidden = 1024;
  std::int64_t input = 1024;
  std::int64_t classes = 1000;
  std::int64_t batch = 64;
};

/// transformers.GPT2LMHeadModel with its own loss.
struct GptConfig {
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t seq = 1024;
  std::int64_t batch = 8;
  std::int64_t vocab = 50257;
  double dropout = 0.0;
  bool tied = true;  ///< the head shares the token embedding
};

/// transformers.LlamaForCausalLM with its own loss.
struct LlamaConfig {
  std::int64_t layers = 32;
  std::int64_t hidden = 4096;
  std::int64_t ffn = 11008;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 32;
  std::int64_t seq = 2048;
  std::int64_t batch = 4;
  std::int64_t vocab = 32000;
  double rope_theta = 10000.0;
};

/// The sizes that a name of the zoo stands for, without building the model. Errors: those of
/// zoo_model, and names of another family.
[[nodiscard]] Result<GptConfig> zoo_gpt(std::string_view name);

/// Each sets graph.outputs; preconditions: sizes positive, heads divide as they must.
void build_mlp(Builder& b, ir::Graph& graph, const MlpConfig& config);
void build_gpt(Builder& b, ir::Graph& graph, const GptConfig& config);
void build_llama(Builder& b, ir::Graph& graph, const LlamaConfig& config);

/// Shared parts.
ir::ValueId add_parameter(Builder& b, std::string name, ir::Shape shape);
ir::ValueId add_input(Builder& b, std::string name, ir::TensorType type);
/// The loss of a causal language model of transformers: logits [b, s, v] against `labels` [b, s]
/// moved left by one, the last position ignored.
ir::ValueId next_token_loss(Builder& b, ir::ValueId logits, ir::ValueId labels);

}  // namespace shardplan::frontends
