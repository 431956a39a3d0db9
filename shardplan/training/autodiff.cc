// Reverse-mode differentiation over the graph. Every op result has one reader that matters to the
// gradient or is an `identity` (with_fan_out_points), so gradients meet only at identities and at
// parameters; there they are summed as soon as two are known. Slices of an identity that tile one
// of its dimensions (the split of a joint query, key and value projection) give one `concat`
// instead of a sum of padded tensors.

#include "shardplan/training/autodiff.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/training/graph_copy.h"

namespace shardplan::training {
namespace {

constexpr const char* kIdentity = "identity";

bool is_fan_out_candidate(const ir::Graph& graph, const ir::Value& value) {
  if (!ir::is_floating(value.type.dtype)) {
    return false;
  }
  if (value.kind == ir::ValueKind::kInput) {
    return true;
  }
  return value.kind == ir::ValueKind::kOpResult && graph.op(value.producer).name != kIdentity;
}

/// Slices of one value that lie side by side and cover a dimension.
struct Tiling {
  struct Tile {
    ir::OpId slice;
    ir::ValueId gradient{};  ///< of the slice's result
  };
  ir::ValueId value;
  std::int64_t dim = 0;
  std::vector<Tile> tiles{};  ///< by position along `dim`
  std::size_t remaining = 0;  ///< tiles that have not been differentiated
};

/// Finds the tilings of all identities, and the tiling of each slice that is in one.
class Tilings {
 public:
  explicit Tilings(const ir::Graph& graph) : of_op_(graph.ops().size(), -1) {
    std::vector<std::vector<ir::OpId>> slices(graph.values().size());
    for (std::size_t i = 0; i < graph.ops().size(); ++i) {
      const ir::Op& op = graph.ops()[i];
      if (op.name == "slice" && op.attributes.integer("step") == 1) {
        slices[op.inputs.front().index()].push_back(ir::OpId{i});
      }
    }
    for (std::size_t v = 0; v < slices.size(); ++v) {
      for (std::int64_t dim = 0; slices[v].size() > 1 && dim < graph.values()[v].type.rank();
           ++dim) {
        add(graph, ir::ValueId{v}, dim, slices[v]);
      }
    }
  }

  /// The tiling that a slice belongs to, or null.
  [[nodiscard]] Tiling* of(ir::OpId op) {
    const int index = of_op_[op.index()];
    return index < 0 ? nullptr : &tilings_[static_cast<std::size_t>(index)];
  }

 private:
  void add(const ir::Graph& graph,
           ir::ValueId value,
           std::int64_t dim,
           const std::vector<ir::OpId>& slices) {
    Tiling tiling{.value = value, .dim = dim};
    for (const ir::OpId slice : slices) {
      if (graph.op(slice).attributes.integer("dim") == dim) {
        tiling.tiles.push_back({slice});
      }
    }
    const auto start = [&](const Tiling::Tile& tile) {
      return graph.op(tile.slice).attributes.integer("start");
    };
    std::sort(tiling.tiles.begin(), tiling.tiles.end(), [&](const auto& a, const auto& b) {
      return start(a) < start(b);
    });
    std::int64_t covered = 0;
    for (const Tiling::Tile& tile : tiling.tiles) {
      if (start(tile) != covered) {
        return;
      }
      covered = graph.op(tile.slice).attributes.integer("end");
    }
    if (tiling.tiles.size() < 2 ||
        covered != graph.type(value).shape[static_cast<std::size_t>(dim)]) {
      return;
    }
    tiling.remaining = tiling.tiles.size();
    for (const Tiling::Tile& tile : tiling.tiles) {
      of_op_[tile.slice.index()] = static_cast<int>(tilings_.size());
    }
    tilings_.push_back(std::move(tiling));
  }

  std::vector<Tiling> tilings_;
  std::vector<int> of_op_;  ///< by op: index into tilings_, -1 when it is in none
};

class Differentiator {
 public:
  Differentiator(ir::Graph& graph, const GradientDone& done)
      : graph_(graph),
        done_(done),
        differentiable_(graph.values().size(), false),
        gradients_(graph.values().size()),
        forward_ops_(graph.ops().size()),
        tilings_(graph),
        first_readers_(forward_ops_) {
    find_differentiable();
  }

  Result<std::vector<ParameterGradient>> run(double seed) {
    const ir::ValueId loss = graph_.outputs.front();
    if (!differentiable_[loss.index()]) {
      return invalid_input("the loss does not depend on any trainable parameter", "graph");
    }
    gradients_[loss.index()] = seed_gradient(loss, seed);
    for (std::size_t i = forward_ops_; i-- > 0;) {
      SHARDPLAN_RETURN_IF_ERROR(differentiate(ir::OpId{i}));
      for (const ir::ValueId parameter : first_readers_[i]) {
        complete(parameter);
      }
    }
    if (complete_.empty()) {
      return invalid_input("no gradient reaches any trainable parameter", "graph");
    }
    record_gradients();
    return std::move(complete_);
  }

 private:
  /// Floating values that depend on a trainable parameter, and for each op the parameters of which
  /// it is the first reader.
  void find_differentiable() {
    for (std::size_t i = 0; i < differentiable_.size(); ++i) {
      differentiable_[i] = graph_.values()[i].trainable;
    }
    std::vector<bool> seen(graph_.values().size(), false);
    for (std::size_t i = 0; i < forward_ops_; ++i) {
      const ir::Op& op = graph_.ops()[i];
      bool depends = false;
      for (const ir::ValueId input : op.inputs) {
        depends = depends || differentiable_[input.index()];
        if (graph_.value(input).trainable && !seen[input.index()]) {
          seen[input.index()] = true;
          first_readers_[i].push_back(input);
        }
      }
      for (const ir::ValueId output : op.outputs) {
        differentiable_[output.index()] = depends && ir::is_floating(graph_.type(output).dtype) &&
                                          !ops::get(op.name).stops_gradient;
      }
    }
  }

  ir::ValueId seed_gradient(ir::ValueId loss, double seed) {
    ir::Op op;
    op.name = "full";
    op.phase = ir::Phase::kBackward;
    op.attributes = {{"shape", graph_.type(loss).shape},
                     {"value", seed},
                     {"dtype", std::string(ir::dtype_name(graph_.type(loss).dtype))}};
    return appended(std::move(op));
  }

  Status differentiate(ir::OpId id) {
    Tiling* const tiling = tilings_.of(id);
    return tiling == nullptr ? apply_rule(id) : differentiate_tile(id, *tiling);
  }

  /// Waits for the last tile; joins the gradients when every tile has one.
  Status differentiate_tile(ir::OpId id, Tiling& tiling) {
    std::vector<ir::ValueId> parts;
    for (Tiling::Tile& tile : tiling.tiles) {
      if (tile.slice == id) {
        tile.gradient = gradients_[graph_.op(id).outputs.front().index()];
      }
      if (tile.gradient.valid()) {
        parts.push_back(tile.gradient);
      }
    }
    if (--tiling.remaining > 0) {
      return {};
    }
    if (parts.size() < tiling.tiles.size()) {
      for (const Tiling::Tile& tile : tiling.tiles) {
        SHARDPLAN_RETURN_IF_ERROR(apply_rule(tile.slice));
      }
      return {};
    }
    ir::Op op = meeting_op("concat", tiling.value, id);
    op.inputs = std::move(parts);
    op.attributes = {{"dim", tiling.dim}};
    add_contribution(tiling.value, appended(std::move(op)), id);
    return {};
  }

  Status apply_rule(ir::OpId id) {
    const ir::Op& op = graph_.op(id);
    std::vector<ir::ValueId> output_gradients;
    bool reached = false;
    for (const ir::ValueId output : op.outputs) {
      output_gradients.push_back(gradients_[output.index()]);
      reached = reached || output_gradients.back().valid();
    }
    std::vector<bool> needed;
    needed.reserve(op.inputs.size());
    for (const ir::ValueId input : op.inputs) {
      needed.push_back(differentiable_[input.index()]);
    }
    if (!reached || std::find(needed.begin(), needed.end(), true) == needed.end()) {
      return {};
    }
    const std::string place = ops::describe(op);
    const auto gradient = ops::get(op.name).gradient;
    if (gradient == nullptr) {
      return unsupported(
          "this op has no gradient, but the loss depends on a trainable parameter "
          "through it",
          place);
    }
    ops::GradientBuilder builder(graph_, id, std::move(output_gradients), std::move(needed));
    gradient(builder);
    if (!builder.refusal().empty()) {
      return unsupported(builder.refusal() + " is not supported", place);
    }
    pass_through_once(builder);
    for (std::size_t i = 0; i < builder.input_gradients().size(); ++i) {
      if (builder.needed(i) && builder.input_gradients()[i].valid()) {
        add_contribution(graph_.op(id).inputs[i], builder.input_gradients()[i], id);
      }
    }
    return {};
  }

  /// A gradient that an op passes on unchanged to one of several inputs goes through an `identity`
  /// of that op (a view), so that each gradient is read by one forward op's backward ops only: one
  /// place where its layout is chosen, as the fan-out points are in the forward pass.
  static void pass_through_once(ops::GradientBuilder& builder) {
    std::size_t needed = 0;
    for (std::size_t i = 0; i < builder.input_count(); ++i) {
      needed += builder.needed(i) ? 1 : 0;
    }
    const ir::ValueId passed = builder.output_gradient(0);
    ir::ValueId copy;
    for (std::size_t i = 0; i < builder.input_count() && needed > 1; ++i) {
      if (builder.needed(i) && builder.input_gradients()[i] == passed && passed.valid()) {
        copy = copy.valid() ? copy : builder.emit("identity", {passed});
        builder.set_input_gradient(i, copy);
      }
    }
  }

  void add_contribution(ir::ValueId value, ir::ValueId gradient, ir::OpId reader) {
    ir::ValueId& total = gradients_[value.index()];
    if (!total.valid()) {
      total = gradient;
      return;
    }
    ir::Op op = meeting_op("add", value, reader);
    op.inputs = {total, gradient};
    total = appended(std::move(op));
  }

  /// An op that joins gradients of `value`: it belongs to the identity there, if there is one.
  [[nodiscard]] ir::Op meeting_op(const char* name, ir::ValueId value, ir::OpId reader) const {
    ir::Op op;
    op.name = name;
    op.phase = ir::Phase::kBackward;
    op.source = graph_.value(value).producer;
    op.layer = graph_.op(op.source.valid() ? op.source : reader).layer;
    return op;
  }

  ir::ValueId appended(ir::Op op) {
    const Result<ir::OpId> id = ops::append(graph_, std::move(op));
    SHARDPLAN_CHECK(id.has_value()) << id.error().text();
    return graph_.op(*id).outputs.front();
  }

  /// Graph::gradients: of the parameters as completed, of all other values as summed.
  void record_gradients() {
    for (const ParameterGradient& pair : complete_) {
      gradients_[pair.parameter.index()] = pair.gradient;
    }
    for (std::size_t v = 0; v < gradients_.size(); ++v) {
      if (gradients_[v].valid()) {
        graph_.gradients.push_back({ir::ValueId{v}, gradients_[v]});
      }
    }
  }

  /// All readers of the parameter are done.
  void complete(ir::ValueId parameter) {
    const ir::ValueId gradient = gradients_[parameter.index()];
    if (gradient.valid()) {
      const ParameterGradient found{parameter, gradient};
      complete_.push_back({parameter, done_ ? done_(graph_, found) : gradient});
    }
  }

  ir::Graph& graph_;
  const GradientDone& done_;
  std::vector<bool> differentiable_;    ///< by forward value
  std::vector<ir::ValueId> gradients_;  ///< by forward value, the sum so far
  std::size_t forward_ops_;
  Tilings tilings_;
  std::vector<std::vector<ir::ValueId>> first_readers_;  ///< by forward op
  std::vector<ParameterGradient> complete_;
};

}  // namespace

ir::Graph with_fan_out_points(const ir::Graph& forward) {
  std::vector<int> reads(forward.values().size(), 0);
  for (const ir::Op& op : forward.ops()) {
    for (const ir::ValueId input : op.inputs) {
      ++reads[input.index()];
    }
  }
  GraphCopy copy(forward);
  const auto fan_out = [&](ir::ValueId original, const std::string& layer) {
    if (reads[original.index()] < 2 || !is_fan_out_candidate(forward, forward.value(original))) {
      return;
    }
    ir::Op op;
    op.name = kIdentity;
    op.inputs = {copy.at(original)};
    op.layer = layer;
    const ir::OpId id = copy.to().add_op(std::move(op), {forward.type(original)});
    copy.set(original, copy.to().op(id).outputs.front());
  };
  for (std::size_t i = 0; i < forward.values().size(); ++i) {
    if (forward.values()[i].kind == ir::ValueKind::kInput) {
      fan_out(ir::ValueId{i}, "");
    }
  }
  for (std::size_t i = 0; i < forward.ops().size(); ++i) {
    const ir::OpId id{i};
    copy.keep(id);
    for (const ir::ValueId output : forward.op(id).outputs) {
      fan_out(output, forward.op(id).layer);
    }
  }
  return std::move(copy).finish();
}

Result<std::vector<ParameterGradient>> append_backward(ir::Graph& graph,
                                                       double seed,
                                                       const GradientDone& done) {
  return Differentiator(graph, done).run(seed);
}

}  // namespace shardplan::training
