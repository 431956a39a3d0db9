#include <fmt/format.h>

#include <string>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/zoo_models.h"

namespace shardplan::frontends {

using ir::DType;
using ir::IntList;
using ir::ValueId;

ValueId add_parameter(Builder& b, std::string name, ir::Shape shape) {
  ir::Value value;
  value.kind = ir::ValueKind::kParameter;
  value.trainable = true;
  value.name = std::move(name);
  value.type = {DType::kFloat32, std::move(shape)};
  return b.add_value(std::move(value));
}

ValueId add_input(Builder& b, std::string name, ir::TensorType type) {
  ir::Value value;
  value.kind = ir::ValueKind::kInput;
  value.name = std::move(name);
  value.type = std::move(type);
  return b.add_value(std::move(value));
}

ValueId next_token_loss(Builder& b, ValueId logits, ValueId labels) {
  constexpr std::int64_t kIgnored = -100;
  const std::int64_t seq = b.type(labels).rank() == 2 ? b.type(labels).shape[1] : 0;
  const ValueId padded = b.emit("pad",
                                {labels},
                                {{"dim", std::int64_t{1}},
                                 {"before", std::int64_t{0}},
                                 {"after", std::int64_t{1}},
                                 {"value", static_cast<double>(kIgnored)}});
  const ValueId target = b.emit("slice",
                                {padded},
                                {{"dim", std::int64_t{1}},
                                 {"start", std::int64_t{1}},
                                 {"end", seq + 1},
                                 {"step", std::int64_t{1}}});
  return cross_entropy(b, logits, target, {.ignore_index = kIgnored});
}

void build_mlp(Builder& b, ir::Graph& graph, const MlpConfig& config) {
  struct Layer {
    ValueId weight;
    ValueId bias;
  };
  std::vector<Layer> layers;
  std::int64_t width = config.input;
  for (std::int64_t i = 0; i < config.layers && b.ok(); ++i) {
    const std::int64_t out = i + 1 == config.layers ? config.classes : config.hidden;
    const ValueId weight = add_parameter(b, fmt::format("layers.{}.weight", 2 * i), {out, width});
    layers.push_back({weight, add_parameter(b, fmt::format("layers.{}.bias", 2 * i), {out})});
    width = out;
  }
  ValueId x = add_input(b, "x", {DType::kFloat32, {config.batch, config.input}});
  const ValueId target = add_input(b, "target", {DType::kInt64, {config.batch}});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i > 0) {
      b.set_layer(fmt::format("layers.{}", 2 * i - 1));
      x = b.emit("relu", {x});
    }
    b.set_layer(fmt::format("layers.{}", 2 * i));
    x = b.emit("einsum", {x, layers[i].weight}, {{"equation", std::string("bk,nk->bn")}});
    x = b.emit("add", {x, layers[i].bias});
  }
  b.set_layer("");
  graph.outputs = {cross_entropy(b, x, target, {})};
}

}  // namespace shardplan::frontends
