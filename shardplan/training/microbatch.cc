// Cutting the batch. Two passes over the forward graph, then a copy with smaller shapes:
//
// 1. BatchCut finds the dimension of every value that carries the batch, from the user inputs on,
//    along the axis maps: if one operand or result of an op is cut along an axis, all places of
//    that axis are. It runs forward and backward, since a table made from nothing (full, broadcast)
//    is cut because its reader is.
// 2. BatchSums finds how values without a batch dimension depend on the batch: not at all, as a sum
//    over it (linear: the parts add up to the whole), or in another way that only counts tokens. A
//    sum over the batch that is divided by such a count is divided by that of the whole batch,
//    which every microbatch computes from inputs that hold the whole batch (WholeBatch). Statistics
//    of batch normalisation are those of one microbatch, by definition.

#include "shardplan/training/microbatch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/ops/call.h"
#include "shardplan/ops/op.h"
#include "shardplan/training/batch_cut.h"
#include "shardplan/training/batch_sums.h"
#include "shardplan/training/graph_copy.h"

namespace shardplan::training {
namespace {

/// Computes values of the whole batch beside those of one microbatch, in the graph that is being
/// written: from inputs of their own, which hold the whole batch.
class WholeBatch {
 public:
  WholeBatch(const ir::Graph& graph, const BatchCut& cut, const BatchSums& sums, GraphCopy& copy)
      : graph_(graph), cut_(cut), sums_(sums), copy_(copy), whole_(graph.values().size()) {}

  /// The value as the whole batch has it. Preconditions: everything that it depends on has been
  /// copied, and no trained parameter is among that but by way of integers. Errors name the op that
  /// draws random numbers, or the parameter.
  Result<ir::ValueId> value(ir::ValueId wanted) {
    const std::vector<bool> needed = ancestors(wanted);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const ir::Value& value = graph_.values()[i];
      if (!needed[i] || whole_[i].valid() || value.kind == ir::ValueKind::kOpResult) {
        continue;
      }
      ir::Value whole = value;
      if (value.kind == ir::ValueKind::kInput) {
        whole.name = whole_batch_name(value.name);
      }
      whole_[i] = copy_.to().add_value(std::move(whole));
    }
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      const ir::Op& op = graph_.ops()[i];
      if (needed[op.outputs.front().index()] && !whole_[op.outputs.front().index()].valid()) {
        SHARDPLAN_RETURN_IF_ERROR(compute(op));
      }
    }
    return at(wanted);
  }

 private:
  [[nodiscard]] bool depends(ir::ValueId value) const {
    return cut_.dim(value) >= 0 || !sums_.is_free(value);
  }
  [[nodiscard]] ir::ValueId at(ir::ValueId value) const {
    return depends(value) ? whole_[value.index()] : copy_.at(value);
  }

  /// The value and what it depends on, as far as that depends on the batch; all results of an op
  /// where one is needed.
  [[nodiscard]] std::vector<bool> ancestors(ir::ValueId value) const {
    std::vector<bool> needed(graph_.values().size(), false);
    std::vector<ir::ValueId> queue{value};
    while (!queue.empty()) {
      const ir::ValueId next = queue.back();
      queue.pop_back();
      if (needed[next.index()] || !depends(next)) {
        continue;
      }
      needed[next.index()] = true;
      if (const ir::OpId producer = graph_.value(next).producer; producer.valid()) {
        const ir::Op& op = graph_.op(producer);
        queue.insert(queue.end(), op.inputs.begin(), op.inputs.end());
        for (const ir::ValueId output : op.outputs) {
          needed[output.index()] = true;
        }
      }
    }
    return needed;
  }

  Status compute(const ir::Op& original) {
    if (original.name == "dropout" ||
        (original.name == "call" && original.attributes.has("site"))) {
      return needs_whole_batch(original, "a count over the batch depends on its random numbers");
    }
    ir::Op op = original;
    op.outputs.clear();
    for (ir::ValueId& input : op.inputs) {
      if (graph_.value(input).trainable) {
        return needs_whole_batch(
            original, "a count over the batch depends on '" + graph_.value(input).name + "'");
      }
      if (sums_.is_of_each(input) && !depends(input)) {
        return needs_whole_batch(
            original,
            "a count over the batch depends on statistics, which every microbatch has of "
            "its own");
      }
      input = at(input);
    }
    std::vector<ir::TensorType> types;
    types.reserve(original.outputs.size());
    for (const ir::ValueId output : original.outputs) {
      types.push_back(graph_.type(output));
    }
    const ir::OpId made = copy_.to().add_op(std::move(op), types);
    for (std::size_t r = 0; r < original.outputs.size(); ++r) {
      whole_[original.outputs[r].index()] = copy_.to().op(made).outputs[r];
    }
    return {};
  }

  const ir::Graph& graph_;
  const BatchCut& cut_;
  const BatchSums& sums_;
  GraphCopy& copy_;
  std::vector<ir::ValueId> whole_;  ///< by value of the original
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
      : graph_(graph),
        count_(count),
        cut_(cut),
        sums_(sums),
        copy_(graph),
        whole_(graph, cut, sums, copy_) {}

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
    // What only counted the tokens of one microbatch is left over.
    return without_dead_ops(std::move(out));
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
    if (op.name == "batch_moments" && has_one_value(copy_.to().type(op.inputs[0]))) {
      return needs_whole_batch(op,
                               "a microbatch has one value of each channel, which has no variance");
    }
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
    for (const int scaled : sums_.scaled_operands(id)) {
      ir::ValueId& operand = op.inputs[static_cast<std::size_t>(scaled)];
      SHARDPLAN_ASSIGN_OR_RETURN(operand, times_count(copy_.to(), operand, op.layer));
    }
    for (const int operand : sums_.whole_operands(id)) {
      const auto i = static_cast<std::size_t>(operand);
      SHARDPLAN_ASSIGN_OR_RETURN(op.inputs[i], whole_.value(graph_.op(id).inputs[i]));
    }
    return copy_.append(id, std::move(op));
  }

  /// Of each channel, dimension 1.
  static bool has_one_value(const ir::TensorType& x) { return x.numel() == x.shape[1]; }

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
  WholeBatch whole_;
};

constexpr std::string_view kWholeBatch = ".whole_batch";

}  // namespace

std::string whole_batch_name(std::string_view input) {
  return std::string(input) += kWholeBatch;
}

std::optional<std::string> input_of_whole_batch(std::string_view name) {
  if (!name.ends_with(kWholeBatch)) {
    return std::nullopt;
  }
  return std::string(name.substr(0, name.size() - kWholeBatch.size()));
}

Result<ir::Graph> microbatch_graph(const ir::Graph& forward, std::int64_t count) {
  BatchCut cut(forward, count);
  SHARDPLAN_RETURN_IF_ERROR(cut.run());
  BatchSums sums(forward, cut);
  SHARDPLAN_RETURN_IF_ERROR(sums.run());
  return MicrobatchCopy(forward, count, cut, sums).run();
}

}  // namespace shardplan::training
