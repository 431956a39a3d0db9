// A linear layer whose result is cut into equal parts along its features, as GPT-2 does for query,
// key and value: y [b, s, 3 n] -> three [b, s, n]. The cut needs the 3 n features whole, so they
// could not be sharded. With the parts as a dimension of their own (weight [k, 3, n], result [b, s,
// 3, n]) each cut is along that dimension, and n can be sharded. The weight's bytes stay as they
// are: only its type changes, and Value::module_shape keeps the user's shape.

#include <algorithm>
#include <string>
#include <unordered_map>

#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::Op;
using ir::OpId;
using ir::Shape;
using ir::ValueId;

/// One such layer: einsum, perhaps an added bias, and slices.
struct CutLayer {
  OpId product;
  std::size_t weight_operand = 0;
  OpId bias_add{};  // invalid without a bias
  std::size_t bias_operand = 0;
  std::vector<OpId> cuts;
  std::int64_t part = 0;  // features of one part
};

class EqualParts {
 public:
  explicit EqualParts(const ir::Graph& graph) : graph_(graph), users_(graph.users()) {}

  Result<ir::Graph> run() {
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      if (std::optional<CutLayer> layer = match(OpId{i})) {
        role_[layer->product.value] = layers_.size();
        if (layer->bias_add.valid()) {
          role_[layer->bias_add.value] = layers_.size();
        }
        for (const OpId cut : layer->cuts) {
          role_[cut.value] = layers_.size();
        }
        layers_.push_back(std::move(*layer));
      }
    }
    return layers_.empty() ? graph_ : rebuild();
  }

 private:
  // Matching
  // ----------------------------------------------------------------------------------------

  /// A parameter with one reader, in its module's shape, that no write changes.
  [[nodiscard]] bool is_own_parameter(ValueId id) const {
    const ir::Value& value = graph_.value(id);
    return value.kind == ir::ValueKind::kParameter && value.module_shape.empty() &&
           users_[id.index()].size() == 1 && !is_visible(id) &&
           std::none_of(graph_.writes.begin(), graph_.writes.end(), [&](const ir::Write& write) {
             return write.target == id;
           });
  }

  /// Whether the value leaves the graph.
  [[nodiscard]] bool is_visible(ValueId id) const {
    return std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end() ||
           std::any_of(graph_.writes.begin(), graph_.writes.end(), [&](const ir::Write& write) {
             return write.value == id;
           });
  }

  [[nodiscard]] std::optional<CutLayer> match(OpId id) const {
    const Op& op = graph_.op(id);
    if (op.name != "einsum" || op.inputs[0] == op.inputs[1]) {
      return std::nullopt;
    }
    CutLayer layer;
    layer.product = id;
    const std::string& equation = op.attributes.string("equation");
    const std::size_t comma = equation.find(',');
    const std::size_t arrow = equation.find("->");
    const std::string terms[2] = {equation.substr(0, comma),
                                  equation.substr(comma + 1, arrow - comma - 1)};
    const char feature = equation.back();
    layer.weight_operand = terms[1].find(feature) != std::string::npos ? 1 : 0;
    const bool own = terms[layer.weight_operand].find(feature) != std::string::npos &&
                     terms[1 - layer.weight_operand].find(feature) == std::string::npos;
    if (!own || !is_own_parameter(op.inputs[layer.weight_operand]) || is_visible(op.outputs[0])) {
      return std::nullopt;
    }
    ValueId result = op.outputs[0];
    match_bias(layer, result);
    if (is_visible(result) || !match_cuts(layer, result)) {
      return std::nullopt;
    }
    return layer;
  }

  /// If the only reader adds a bias parameter [n], moves `result` to the sum.
  void match_bias(CutLayer& layer, ValueId& result) const {
    const std::vector<OpId>& readers = users_[result.index()];
    if (readers.size() != 1 || graph_.op(readers[0]).name != "add") {
      return;
    }
    const Op& add = graph_.op(readers[0]);
    const std::size_t operand = add.inputs[0] == result ? 1 : 0;
    const ValueId bias = add.inputs[operand];
    if (bias != result && is_own_parameter(bias) && graph_.type(bias).rank() == 1 &&
        graph_.type(bias).shape[0] == graph_.type(result).shape.back()) {
      layer.bias_add = readers[0];
      layer.bias_operand = operand;
      result = add.outputs[0];
    }
  }

  /// Whether all readers cut out whole parts of equal size.
  bool match_cuts(CutLayer& layer, ValueId result) const {
    const Shape& shape = graph_.type(result).shape;
    layer.cuts = users_[result.index()];
    for (const OpId id : layer.cuts) {
      const Op& cut = graph_.op(id);
      if (cut.name != "slice" ||
          cut.attributes.integer("dim") != static_cast<std::int64_t>(shape.size()) - 1 ||
          cut.attributes.integer("step") != 1) {
        return false;
      }
      const std::int64_t start = cut.attributes.integer("start");
      const std::int64_t size = cut.attributes.integer("end") - start;
      layer.part = layer.part == 0 ? size : layer.part;
      if (size != layer.part || start % size != 0) {
        return false;
      }
    }
    return !layer.cuts.empty() && shape.back() % layer.part == 0 && shape.back() > layer.part;
  }

  // Rebuilding
  // --------------------------------------------------------------------------------------

  Result<ir::Graph> rebuild() {
    out_.name = graph_.name;
    out_.microbatches = graph_.microbatches;
    new_id_.resize(graph_.values().size());
    const std::vector<ir::Value> inputs = retyped_inputs();
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      if (graph_.values()[i].kind != ir::ValueKind::kOpResult) {
        new_id_[i] = out_.add_value(inputs[i]);
      }
    }
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(add(OpId{i}));
    }
    for (const ValueId output : graph_.outputs) {
      out_.outputs.push_back(new_id_[output.index()]);
    }
    for (const ir::Write& write : graph_.writes) {
      out_.writes.push_back({new_id_[write.target.index()], new_id_[write.value.index()]});
    }
    return std::move(out_);
  }

  /// The values with the new types of weights and biases.
  [[nodiscard]] std::vector<ir::Value> retyped_inputs() const {
    std::vector<ir::Value> values = graph_.values();
    for (const CutLayer& layer : layers_) {
      const Op& product = graph_.op(layer.product);
      const std::string& equation = product.attributes.string("equation");
      const std::size_t start = layer.weight_operand == 0 ? 0 : equation.find(',') + 1;
      const std::size_t dim = equation.find(equation.back(), start) - start;
      retype(values[product.inputs[layer.weight_operand].index()], dim, layer.part);
      if (layer.bias_add.valid()) {
        const Op& add = graph_.op(layer.bias_add);
        retype(values[add.inputs[layer.bias_operand].index()], 0, layer.part);
      }
    }
    return values;
  }

  static void retype(ir::Value& value, std::size_t dim, std::int64_t part) {
    value.module_shape = value.type.shape;
    const std::int64_t parts = value.type.shape[dim] / part;
    value.type.shape[dim] = part;
    value.type.shape.insert(value.type.shape.begin() + static_cast<std::ptrdiff_t>(dim), parts);
  }

  Status add(OpId id) {
    Op op = graph_.op(id);
    const std::vector<ValueId> old_outputs = op.outputs;
    for (ValueId& input : op.inputs) {
      input = new_id_[input.index()];
    }
    const auto role = role_.find(id.value);
    const CutLayer* const layer = role == role_.end() ? nullptr : &layers_[role->second];
    if (layer != nullptr && id == layer->product) {
      op.attributes.set("equation", with_parts(op.attributes.string("equation")));
    }
    const bool cut = layer != nullptr && id != layer->product && id != layer->bias_add;
    if (cut) {
      const std::int64_t first = op.attributes.integer("start") / layer->part;
      op.attributes.set("start", first);
      op.attributes.set("end", first + 1);
    }
    const std::string layer_name = op.layer;
    SHARDPLAN_ASSIGN_OR_RETURN(OpId added, ops::append(out_, std::move(op)));
    if (cut) {
      Op reshape;
      reshape.name = "reshape";
      reshape.inputs = {out_.op(added).outputs[0]};
      reshape.attributes = {{"shape", ir::IntList(graph_.type(old_outputs[0]).shape)}};
      reshape.layer = layer_name;
      SHARDPLAN_ASSIGN_OR_RETURN(added, ops::append(out_, std::move(reshape)));
    }
    for (std::size_t r = 0; r < old_outputs.size(); ++r) {
      new_id_[old_outputs[r].index()] = out_.op(added).outputs[r];
      out_.value(out_.op(added).outputs[r]).name = graph_.value(old_outputs[r]).name;
    }
    return {};
  }

  /// "bsk,kn->bsn" -> "bsk,kcn->bscn".
  static std::string with_parts(const std::string& equation) {
    constexpr std::string_view kLetters = "cpjitxyzabdefghklmnoqrsuvw";
    const char feature = equation.back();
    const auto fresh = std::find_if(kLetters.begin(), kLetters.end(), [&](char letter) {
      return equation.find(letter) == std::string::npos;
    });
    std::string out;
    for (const char letter : equation) {
      if (letter == feature) {
        out += fresh == kLetters.end() ? 'A' : *fresh;
      }
      out += letter;
    }
    return out;
  }

  const ir::Graph& graph_;
  std::vector<std::vector<OpId>> users_;
  std::vector<CutLayer> layers_;
  std::unordered_map<std::int32_t, std::size_t> role_;  // op -> layer it belongs to
  ir::Graph out_;
  std::vector<ValueId> new_id_;
};

}  // namespace

Result<ir::Graph> separate_equal_parts(const ir::Graph& graph) {
  return EqualParts(graph).run();
}

}  // namespace shardplan::rewrite
