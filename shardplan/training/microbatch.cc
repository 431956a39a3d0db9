// Cutting the batch. Two passes over the forward graph, then a copy with smaller shapes:
//
// 1. BatchCut finds the dimension of every value that carries the batch, from the user inputs on,
//    along the axis maps: if one operand or result of an op is cut along an axis, all places of
//    that axis are. It runs forward and backward, since a table made from nothing (full, broadcast)
//    is cut because its reader is.
// 2. BatchSums finds how values without a batch dimension depend on the batch: not at all, as a sum
//    over it (linear: the parts add up to the whole), or in another way that only counts tokens.

#include "shardplan/training/microbatch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/call.h"
#include "shardplan/ops/op.h"
#include "shardplan/training/graph_copy.h"

namespace shardplan::training {
namespace {

Error needs_whole_batch(const ir::Op& op, const std::string& why) {
  Error error = unsupported("needs the whole batch: " + why, ops::describe(op));
  error.notes.emplace_back("use one microbatch");
  return error;
}

/// The dimension whose axes contain `axis`, and whether the axis is its most major one.
struct Place {
  int dim = -1;
  bool major = false;
};

Place place_in(const ops::DimAxes& dims, int axis) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto at = std::find(dims[d].begin(), dims[d].end(), axis);
    if (at != dims[d].end()) {
      return Place{static_cast<int>(d), at == dims[d].begin()};
    }
  }
  return {};
}

class BatchCut {
 public:
  BatchCut(const ir::Graph& graph, std::int64_t count)
      : graph_(graph),
        count_(count),
        users_(graph.users()),
        cut_(graph.values().size(), -1),
        axis_(graph.ops().size(), -1),
        queued_(graph.ops().size(), false) {}

  Status run() {
    SHARDPLAN_RETURN_IF_ERROR(cut_inputs());
    while (!queue_.empty()) {
      const ir::OpId id = queue_.back();
      queue_.pop_back();
      queued_[id.index()] = false;
      SHARDPLAN_RETURN_IF_ERROR(follow(id));
    }
    return {};
  }

  /// Dimension of a value that carries the batch, or -1.
  [[nodiscard]] int dim(ir::ValueId value) const { return cut_[value.index()]; }
  /// Axis of an op that carries the batch, or -1.
  [[nodiscard]] int axis(ir::OpId op) const { return axis_[op.index()]; }
  [[nodiscard]] ops::AxisMap map(ir::OpId op) const { return ops::axis_map(graph_, op); }

 private:
  Status cut_inputs() {
    std::int64_t rows = 1;
    std::string first;
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      const ir::Value& value = graph_.values()[i];
      if (value.kind != ir::ValueKind::kInput || value.type.rank() == 0 ||
          value.type.shape[0] == 1) {
        continue;
      }
      const std::int64_t found = value.type.shape[0];
      if (found % count_ != 0) {
        return invalid_input("input '" + value.name + "' is " + ir::to_string(value.type) + ": " +
                                 std::to_string(found) + " rows cannot be cut into " +
                                 std::to_string(count_) + " microbatches",
                             "microbatches");
      }
      if (rows != 1 && found != rows) {
        return invalid_input("input '" + value.name + "' has " + std::to_string(found) +
                                 " rows, input '" + first + "' has " + std::to_string(rows) +
                                 ": the batch must be dimension 0 of all inputs",
                             "microbatches");
      }
      if (rows == 1) {
        rows = found;
        first = value.name;
      }
      mark(ir::ValueId{i}, 0);
    }
    if (rows == 1) {
      return invalid_input(
          "no input has a batch that could be cut into " + std::to_string(count_) + " microbatches",
          "microbatches");
    }
    return {};
  }

  void mark(ir::ValueId value, int dim) {
    cut_[value.index()] = dim;
    if (graph_.value(value).producer.valid()) {
      push(graph_.value(value).producer);
    }
    for (const ir::OpId user : users_[value.index()]) {
      push(user);
    }
  }

  void push(ir::OpId op) {
    if (!queued_[op.index()]) {
      queued_[op.index()] = true;
      queue_.push_back(op);
    }
  }

  /// Finds the axis that carries the batch and cuts every place where it occurs.
  Status follow(ir::OpId id) {
    const ir::Op& op = graph_.op(id);
    const ops::AxisMap map = ops::axis_map(graph_, id);
    int axis = -1;
    const auto look = [&](ir::ValueId value, const ops::DimAxes& dims) -> Status {
      const int dim = cut_[value.index()];
      if (dim < 0) {
        return {};
      }
      const std::vector<int>& axes = dims[static_cast<std::size_t>(dim)];
      if (axes.empty() || (axis >= 0 && axes.front() != axis)) {
        return needs_whole_batch(op,
                                 "dimension " + std::to_string(dim) + " of " +
                                     ir::to_string(graph_.type(value)) + " carries the batch");
      }
      axis = axes.front();
      return {};
    };
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(look(op.inputs[i], map.inputs[i]));
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      SHARDPLAN_RETURN_IF_ERROR(look(op.outputs[r], map.results[r]));
    }
    SHARDPLAN_RETURN_IF_ERROR(check_axis(op, map.axes[static_cast<std::size_t>(axis)]));
    axis_[id.index()] = axis;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(cut_place(op, op.inputs[i], map.inputs[i], axis));
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      SHARDPLAN_RETURN_IF_ERROR(cut_place(op, op.outputs[r], map.results[r], axis));
    }
    return {};
  }

  [[nodiscard]] Status check_axis(const ir::Op& op, const ops::Axis& axis) const {
    if (axis.role == ops::AxisRole::kMax) {
      return needs_whole_batch(op, "it takes a maximum over the batch");
    }
    // Dropout counts microbatches in its generator; an index along the batch would start again.
    if (axis.role == ops::AxisRole::kLookup || (axis.positional && op.inputs.empty())) {
      return needs_whole_batch(op, "it indexes the batch");
    }
    if (axis.size % count_ != 0) {
      return needs_whole_batch(op,
                               "the batch is the major part of a merged dimension, with size " +
                                   std::to_string(axis.size) + ", not divisible by " +
                                   std::to_string(count_));
    }
    return {};
  }

  Status cut_place(const ir::Op& op, ir::ValueId value, const ops::DimAxes& dims, int axis) {
    const Place place = place_in(dims, axis);
    const int known = cut_[value.index()];
    if (place.dim < 0 || known == place.dim) {
      return {};
    }
    const ir::Value& found = graph_.value(value);
    if (!place.major || known >= 0) {
      return needs_whole_batch(op,
                               "the batch is not the major part of dimension " +
                                   std::to_string(place.dim) + " of " + ir::to_string(found.type));
    }
    if (found.kind != ir::ValueKind::kOpResult && found.kind != ir::ValueKind::kConstant) {
      return needs_whole_batch(op,
                               "dimension " + std::to_string(place.dim) + " of '" + found.name +
                                   "' goes with the batch");
    }
    mark(value, place.dim);
    return {};
  }

  const ir::Graph& graph_;
  std::int64_t count_;
  std::vector<std::vector<ir::OpId>> users_;
  std::vector<int> cut_;   ///< by value
  std::vector<int> axis_;  ///< by op
  std::vector<bool> queued_;
  std::vector<ir::OpId> queue_;
};

/// How a value without a batch dimension depends on the batch.
enum class Batch : std::uint8_t {
  kFree,  ///< not at all
  kCut,   ///< it has a batch dimension
  kPart,  ///< the values of all microbatches add up to the value of the whole batch
  kOwn,   ///< each microbatch has its own: a ratio of sums, or a count of its tokens
};

class BatchSums {
 public:
  BatchSums(const ir::Graph& graph, const BatchCut& cut)
      : graph_(graph),
        cut_(cut),
        batch_(graph.values().size(), Batch::kFree),
        trained_(graph.values().size(), false),
        scaled_operands_(graph.ops().size(), -1) {
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      if (cut.dim(ir::ValueId{i}) >= 0) {
        batch_[i] = Batch::kCut;
      }
      trained_[i] = graph.values()[i].trainable;
    }
  }

  Status run() {
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      const ir::OpId id{i};
      const ir::Op& op = graph_.op(id);
      const bool trained = std::any_of(
          op.inputs.begin(), op.inputs.end(), [&](ir::ValueId v) { return trained_[v.index()]; });
      SHARDPLAN_ASSIGN_OR_RETURN(const Batch batch, without_dimension(id, trained));
      for (const ir::ValueId output : op.outputs) {
        trained_[output.index()] = trained && ir::is_floating(graph_.type(output).dtype);
        if (batch_[output.index()] != Batch::kCut) {
          batch_[output.index()] = batch;
        }
      }
    }
    for (const ir::Write& write : graph_.writes) {
      if (batch_[write.value.index()] != Batch::kFree) {
        return unsupported("'" + graph_.value(write.target).name +
                               "' is written from the whole batch; use one microbatch",
                           "microbatches");
      }
    }
    return {};
  }

  [[nodiscard]] bool is_part(ir::ValueId value) const {
    return batch_[value.index()] == Batch::kPart;
  }
  /// An operand of the op that must be multiplied by the number of microbatches first, or -1: a sum
  /// that is added to something that is none.
  [[nodiscard]] int scaled_operand(ir::OpId op) const { return scaled_operands_[op.index()]; }

 private:
  /// How results of the op that have no batch dimension depend on the batch.
  Result<Batch> without_dimension(ir::OpId id, bool trained) {
    const ir::Op& op = graph_.op(id);
    std::vector<int> parts;
    bool own = false;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const Batch batch = batch_[op.inputs[i].index()];
      if (batch == Batch::kPart) {
        parts.push_back(static_cast<int>(i));
      }
      own = own || batch == Batch::kOwn;
    }
    const int axis = cut_.axis(id);
    if (axis >= 0) {
      if (!parts.empty() || own) {
        return needs_whole_batch(op, "it joins a sum over the batch with values of the batch");
      }
      const ops::AxisMap map = cut_.map(id);
      const bool summed = map.axes[static_cast<std::size_t>(axis)].role == ops::AxisRole::kSum;
      return summed ? Batch::kPart : Batch::kFree;
    }
    if (parts.empty()) {
      return own ? Batch::kOwn : Batch::kFree;
    }
    return of_sums(id, parts, own, trained);
  }

  Result<Batch> of_sums(ir::OpId id, const std::vector<int>& parts, bool own, bool trained) {
    const ir::Op& op = graph_.op(id);
    if (!own && passes_sums(id, parts)) {
      return Batch::kPart;
    }
    const bool numerator = parts.front() == 0;
    if (op.name == "div" && numerator && (own || parts.size() == 2)) {
      return Batch::kOwn;
    }
    if ((op.name == "add" || op.name == "sub") && parts.size() == 1) {
      scaled_operands_[id.index()] = parts.front();
      return Batch::kOwn;
    }
    if (!trained) {
      return Batch::kOwn;
    }
    return needs_whole_batch(op, "it is not linear in a sum over the batch");
  }

  [[nodiscard]] bool passes_sums(ir::OpId id, const std::vector<int>& parts) const {
    const ops::AxisMap map = cut_.map(id);
    return std::any_of(map.partials.begin(), map.partials.end(), [&](const ops::PartialRule& r) {
      return r.inputs == parts && r.results.size() == graph_.op(id).outputs.size();
    });
  }

  const ir::Graph& graph_;
  const BatchCut& cut_;
  std::vector<Batch> batch_;          ///< by value
  std::vector<bool> trained_;         ///< by value: depends on a trainable parameter
  std::vector<int> scaled_operands_;  ///< by op
};

/// The first of `count` equal blocks along `dim`, or nothing when the blocks differ.
ir::Data first_block(const ir::Value& value, std::size_t dim, std::int64_t count) {
  std::size_t outer = 1;
  for (std::size_t d = 0; d < dim; ++d) {
    outer *= static_cast<std::size_t>(value.type.shape[d]);
  }
  const std::size_t row = value.data->size() / outer;
  const std::size_t block = row / static_cast<std::size_t>(count);
  std::vector<std::byte> out(outer * block);
  for (std::size_t o = 0; o < outer; ++o) {
    const std::byte* const start = value.data->data() + o * row;
    for (std::size_t at = block; at < row; at += block) {
      if (std::memcmp(start, start + at, block) != 0) {
        return nullptr;
      }
    }
    std::memcpy(out.data() + o * block, start, block);
  }
  return std::make_shared<const std::vector<std::byte>>(std::move(out));
}

/// Writes the graph of one microbatch.
class MicrobatchCopy {
 public:
  MicrobatchCopy(const ir::Graph& graph,
                 std::int64_t count,
                 const BatchCut& cut,
                 const BatchSums& sums)
      : graph_(graph), count_(count), cut_(cut), sums_(sums), copy_(graph) {}

  Result<ir::Graph> run() {
    SHARDPLAN_RETURN_IF_ERROR(cut_values());
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(copy_op(ir::OpId{i}));
    }
    const bool part = sums_.is_part(graph_.outputs.front());
    ir::Graph out = std::move(copy_).finish();
    out.microbatches = count_;
    if (part) {
      SHARDPLAN_ASSIGN_OR_RETURN(out.outputs.front(), times_count(out, out.outputs.front(), ""));
    }
    return out;
  }

 private:
  Status cut_values() {
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      const ir::ValueId id{i};
      const int dim = cut_.dim(id);
      if (dim < 0 || graph_.value(id).kind == ir::ValueKind::kOpResult) {
        continue;
      }
      ir::Value& value = copy_.to().value(copy_.at(id));
      if (value.data != nullptr) {
        value.data = first_block(graph_.value(id), static_cast<std::size_t>(dim), count_);
        if (value.data == nullptr) {
          return unsupported("the constant '" + value.name + "' of type " +
                                 ir::to_string(value.type) + " differs between microbatches",
                             "microbatches");
        }
      }
      value.type.shape[static_cast<std::size_t>(dim)] /= count_;
    }
    return {};
  }

  Status copy_op(ir::OpId id) {
    ir::Op op = copy_.op_like(id);
    const ir::ValueId result = graph_.op(id).outputs.front();
    const int dim = cut_.dim(result);
    if (dim >= 0 && op.attributes.has("shape")) {
      ir::IntList shape = graph_.type(result).shape;
      shape[static_cast<std::size_t>(dim)] /= count_;
      op.attributes.set("shape", std::move(shape));
    }
    if (op.attributes.has("results")) {
      op.attributes.set("results", results_text(id, op));
    }
    const int scaled = sums_.scaled_operand(id);
    if (scaled >= 0) {
      ir::ValueId& operand = op.inputs[static_cast<std::size_t>(scaled)];
      SHARDPLAN_ASSIGN_OR_RETURN(operand, times_count(copy_.to(), operand, op.layer));
    }
    return copy_.append(id, std::move(op));
  }

  /// The result types of a call, cut.
  [[nodiscard]] std::string results_text(ir::OpId id, const ir::Op& copied) {
    const std::vector<std::size_t> kept =
        ops::call_kept_results(copied.attributes.string("results"));
    std::vector<std::optional<ir::TensorType>> results(kept.back() + 1);
    for (std::size_t r = 0; r < kept.size(); ++r) {
      const ir::ValueId output = graph_.op(id).outputs[r];
      ir::TensorType type = graph_.type(output);
      if (const int dim = cut_.dim(output); dim >= 0) {
        type.shape[static_cast<std::size_t>(dim)] /= count_;
      }
      results[kept[r]] = std::move(type);
    }
    ops::Types inputs;
    inputs.reserve(copied.inputs.size());
    for (const ir::ValueId input : copied.inputs) {
      inputs.push_back(copy_.to().type(input));
    }
    return ops::call_results_text(results, inputs);
  }

  /// A part of a sum over the batch, as large as the whole on average.
  Result<ir::ValueId> times_count(ir::Graph& graph, ir::ValueId value, const std::string& layer) {
    ir::Op op;
    op.name = "scale";
    op.inputs = {value};
    op.attributes = {{"factor", static_cast<double>(count_)}};
    op.layer = layer;
    SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId id, ops::append(graph, std::move(op)));
    return graph.op(id).outputs.front();
  }

  const ir::Graph& graph_;
  std::int64_t count_;
  const BatchCut& cut_;
  const BatchSums& sums_;
  GraphCopy copy_;
};

}  // namespace

Result<ir::Graph> microbatch_graph(const ir::Graph& forward, std::int64_t count) {
  BatchCut cut(forward, count);
  SHARDPLAN_RETURN_IF_ERROR(cut.run());
  BatchSums sums(forward, cut);
  SHARDPLAN_RETURN_IF_ERROR(sums.run());
  return MicrobatchCopy(forward, count, cut, sums).run();
}

}  // namespace shardplan::training
