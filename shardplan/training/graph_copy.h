#pragma once

#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// A graph that is written from another one, op by op, with changes on the way: the skeleton of the
/// passes of this room. Values that are no op results are copied first, in order; then a pass
/// copies, changes or leaves out each op and says what stands for its results.
class GraphCopy {
 public:
  /// Copies the name and the values that are no op results, all or those of `wanted` (by value).
  /// `from` must outlive the copy.
  explicit GraphCopy(const ir::Graph& from, const std::vector<bool>* wanted = nullptr);

  [[nodiscard]] const ir::Graph& from() const { return from_; }
  [[nodiscard]] ir::Graph& to() { return to_; }

  /// What stands in the copy for a value of the original. Precondition: it has been copied.
  [[nodiscard]] ir::ValueId at(ir::ValueId original) const;
  /// Whether something does.
  [[nodiscard]] bool has(ir::ValueId original) const { return values_[original.index()].valid(); }
  void set(ir::ValueId original, ir::ValueId copy) { values_[original.index()] = copy; }

  /// An op with the name, attributes, layer, phase and source of the original on mapped operands.
  [[nodiscard]] ir::Op op_like(ir::OpId original) const;
  /// Appends `op` as the copy of `original`, with inferred result types.
  Status append(ir::OpId original, ir::Op op);
  /// Appends an exact copy, with the original's result types.
  void keep(ir::OpId original);

  /// By value of the copy: the value of the original that it stands for; invalid: none.
  [[nodiscard]] std::vector<ir::ValueId> originals() const;

  /// Maps outputs and writes, and hands the graph over.
  [[nodiscard]] ir::Graph finish() &&;

 private:
  void record(ir::OpId original, ir::OpId copy);

  const ir::Graph& from_;
  ir::Graph to_;
  std::vector<ir::ValueId> values_;
  std::vector<ir::OpId> ops_;
};

/// The graph without ops that neither outputs nor writes need, and without constants, states and
/// accumulators that are left over. Parameters, buffers and inputs stay.
[[nodiscard]] ir::Graph without_dead_ops(ir::Graph graph);

}  // namespace shardplan::training
