#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/ops/op.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// The error of an op that cannot work on a part of the batch.
[[nodiscard]] Error needs_whole_batch(const ir::Op& op, const std::string& why);

/// Finds the dimension of every value that carries the batch, from the user inputs on, along the
/// axis maps: if one operand or result of an op is cut along an axis, all places of that axis are.
/// Forward and backward, since a table made from nothing (full, broadcast) is cut because its
/// reader is.
class BatchCut {
 public:
  /// `graph` must outlive this.
  BatchCut(const ir::Graph& graph, std::int64_t count)
      : graph_(graph),
        count_(count),
        users_(graph.users()),
        cut_(graph.values().size(), -1),
        axis_(graph.ops().size(), -1),
        queued_(graph.ops().size(), false) {}

  /// Errors name the input whose rows do not fit, or the op that needs the whole batch.
  Status run();

  /// Dimension of a value that carries the batch, or -1.
  [[nodiscard]] int dim(ir::ValueId value) const { return cut_[value.index()]; }
  /// Axis of an op that carries the batch, or -1.
  [[nodiscard]] int axis(ir::OpId op) const { return axis_[op.index()]; }
  [[nodiscard]] ops::AxisMap map(ir::OpId op) const { return ops::axis_map(graph_, op); }

 private:
  Status cut_inputs();
  void mark(ir::ValueId value, int dim);
  void push(ir::OpId op);
  /// Finds the axis that carries the batch and cuts every place where it occurs.
  Status follow(ir::OpId id);
  [[nodiscard]] Status check_axis(const ir::Op& op, const ops::Axis& axis) const;
  Status cut_place(const ir::Op& op, ir::ValueId value, const ops::DimAxes& dims, int axis);

  const ir::Graph& graph_;
  std::int64_t count_;
  std::vector<std::vector<ir::OpId>> users_;
  std::vector<int> cut_;   ///< by value
  std::vector<int> axis_;  ///< by op
  std::vector<bool> queued_;
  std::vector<ir::OpId> queue_;
};

}  // namespace shardplan::training
