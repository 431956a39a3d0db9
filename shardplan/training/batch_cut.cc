#include "shardplan/training/batch_cut.h"

#include <algorithm>

namespace shardplan::training {

Error needs_whole_batch(const ir::Op& op, const std::string& why) {
  Error error = unsupported("needs the whole batch: " + why, ops::describe(op));
  error.notes.emplace_back("use one microbatch");
  return error;
}

namespace {

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

}  // namespace

Status BatchCut::run() {
  SHARDPLAN_RETURN_IF_ERROR(cut_inputs());
  while (!queue_.empty()) {
    const ir::OpId id = queue_.back();
    queue_.pop_back();
    queued_[id.index()] = false;
    SHARDPLAN_RETURN_IF_ERROR(follow(id));
  }
  return {};
}

Status BatchCut::cut_inputs() {
  std::int64_t rows = 1;
  std::string first;
  for (std::size_t i = 0; i < graph_.values().size(); ++i) {
    const ir::Value& value = graph_.values()[i];
    if (value.kind != ir::ValueKind::kInput || value.type.rank() == 0 || value.type.shape[0] == 1) {
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

void BatchCut::mark(ir::ValueId value, int dim) {
  cut_[value.index()] = dim;
  if (graph_.value(value).producer.valid()) {
    push(graph_.value(value).producer);
  }
  for (const ir::OpId user : users_[value.index()]) {
    push(user);
  }
}

void BatchCut::push(ir::OpId op) {
  if (!queued_[op.index()]) {
    queued_[op.index()] = true;
    queue_.push_back(op);
  }
}

Status BatchCut::follow(ir::OpId id) {
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
  for (const ops::Halo& halo : map.halos) {
    if (halo.axis == axis) {
      return needs_whole_batch(op, "it slides a window along the batch");
    }
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

Status BatchCut::check_axis(const ir::Op& op, const ops::Axis& axis) const {
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

Status BatchCut::cut_place(const ir::Op& op,
                           ir::ValueId value,
                           const ops::DimAxes& dims,
                           int axis) {
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
    return needs_whole_batch(
        op,
        "dimension " + std::to_string(place.dim) + " of '" + found.name + "' goes with the batch");
  }
  mark(value, place.dim);
  return {};
}

}  // namespace shardplan::training
