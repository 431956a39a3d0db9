#include "shardplan/training/batch_sums.h"

#include <algorithm>

#include "shardplan/ops/op.h"

namespace shardplan::training {

BatchSums::BatchSums(const ir::Graph& graph, const BatchCut& cut)
    : graph_(graph),
      cut_(cut),
      batch_(graph.values().size(), Batch::kFree),
      trained_(graph.values().size(), false),
      of_each_(graph.values().size(), false),
      scaled_(graph.ops().size()),
      whole_(graph.ops().size()) {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    if (cut.dim(ir::ValueId{i}) >= 0) {
      batch_[i] = Batch::kCut;
    }
    trained_[i] = graph.values()[i].trainable;
  }
}

Status BatchSums::run() {
  for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
    const ir::OpId id{i};
    const ir::Op& op = graph_.op(id);
    const bool trained = std::any_of(
        op.inputs.begin(), op.inputs.end(), [&](ir::ValueId v) { return trained_[v.index()]; });
    const bool statistics = op.name == "batch_moments" && cut_.axis(id) >= 0;
    const bool of_each =
        statistics || std::any_of(op.inputs.begin(), op.inputs.end(), [&](ir::ValueId v) {
          return of_each_[v.index()];
        });
    Batch batch = Batch::kFree;
    if (!statistics) {
      SHARDPLAN_ASSIGN_OR_RETURN(batch, without_dimension(id, trained));
    }
    for (const ir::ValueId output : op.outputs) {
      of_each_[output.index()] = of_each;
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

BatchSums::Operands BatchSums::operands(const ir::Op& op) const {
  Operands found;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Batch batch = batch_[op.inputs[i].index()];
    const int operand = static_cast<int>(i);
    if (batch == Batch::kPart) {
      found.parts.push_back(operand);
    }
    if (batch == Batch::kMean) {
      found.means.push_back(operand);
    }
    if (batch == Batch::kOwn || (batch == Batch::kPart && !trained_[op.inputs[i].index()])) {
      found.untrained.push_back(operand);
    }
    found.own = found.own || batch == Batch::kOwn;
  }
  return found;
}

Result<Batch> BatchSums::without_dimension(ir::OpId id, bool trained) {
  const ir::Op& op = graph_.op(id);
  const Operands found = operands(op);
  const int axis = cut_.axis(id);
  if (axis >= 0) {
    whole_[id.index()] = found.untrained;
    if (!trained_parts(id).empty() || !found.means.empty()) {
      return needs_whole_batch(op, "it joins a sum over the batch with values of the batch");
    }
    const ops::AxisMap map = cut_.map(id);
    const bool summed = map.axes[static_cast<std::size_t>(axis)].role == ops::AxisRole::kSum;
    return summed ? Batch::kPart : Batch::kFree;
  }
  if (!found.own && found.means.empty() && !found.parts.empty() && passes_sums(id, found.parts)) {
    return Batch::kPart;
  }
  if (!trained) {
    return found.parts.empty() && !found.own ? Batch::kFree : Batch::kOwn;
  }
  return of_trained(id, found);
}

std::vector<int> BatchSums::trained_parts(ir::OpId id) const {
  std::vector<int> parts = operands(graph_.op(id)).parts;
  std::erase_if(parts, [&](int operand) {
    const std::vector<int>& whole = whole_[id.index()];
    return std::find(whole.begin(), whole.end(), operand) != whole.end();
  });
  return parts;
}

Result<Batch> BatchSums::of_trained(ir::OpId id, const Operands& found) {
  const ir::Op& op = graph_.op(id);
  whole_[id.index()] = found.untrained;
  const std::vector<int> parts = trained_parts(id);
  if (parts.empty() && found.means.empty()) {
    return Batch::kFree;
  }
  if (found.means.empty() && passes_sums(id, parts)) {
    return Batch::kPart;
  }
  if (op.name == "add" || op.name == "sub") {
    scaled_[id.index()] = parts;
    return Batch::kMean;
  }
  if (parts.empty() && passes_sums(id, found.means)) {
    return Batch::kMean;
  }
  return needs_whole_batch(op, "it is not linear in a sum over the batch");
}

bool BatchSums::passes_sums(ir::OpId id, const std::vector<int>& parts) const {
  const ops::AxisMap map = cut_.map(id);
  return std::any_of(map.partials.begin(), map.partials.end(), [&](const ops::PartialRule& r) {
    return r.inputs == parts && r.results.size() == graph_.op(id).outputs.size();
  });
}

}  // namespace shardplan::training
