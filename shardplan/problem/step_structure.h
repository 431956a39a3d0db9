#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/problem/node_families.h"
#include "shardplan/problem/timeline.h"

namespace shardplan::problem {

/// The intra-operator problem of a training step apart from the mesh: nodes, edges, families of
/// nodes that look alike, meanings of axes. Made once and shared by the problems on all meshes; the
/// work of each of them is then that of its families. Immutable.
class StepStructure {
 public:
  /// `step` outlives it. Linear in the ops.
  explicit StepStructure(const ir::Graph& step);

  [[nodiscard]] const ir::Graph& step() const { return step_; }
  [[nodiscard]] const std::vector<IntraOpNode>& nodes() const { return nodes_; }  ///< without types
  [[nodiscard]] const std::vector<IntraOpEdge>& edges() const { return edges_; }
  [[nodiscard]] const std::vector<std::string>& blocks() const { return blocks_; }
  [[nodiscard]] const Timeline& timeline() const { return timeline_; }
  [[nodiscard]] const std::vector<NodeFamily>& families() const { return families_; }
  /// Index into families().
  [[nodiscard]] int family(std::size_t node) const { return family_[node]; }
  /// See axis_meanings().
  [[nodiscard]] const std::vector<std::vector<AxisMeaning>>& meanings() const { return meanings_; }
  /// The ops that play the part of `op` in their blocks, itself among them.
  [[nodiscard]] const std::vector<ir::OpId>& alike(ir::OpId op) const {
    return parts_[static_cast<std::size_t>(part_[op.index()])];
  }
  /// ir::structural_hash of the step.
  [[nodiscard]] const std::string& graph_hash() const { return graph_hash_; }

 private:
  friend class StepBuilder;
  const ir::Graph& step_;
  Timeline timeline_;
  std::vector<IntraOpNode> nodes_;
  std::vector<IntraOpEdge> edges_;
  std::vector<std::string> blocks_;
  std::vector<NodeFamily> families_;
  std::vector<int> family_;
  std::vector<std::vector<AxisMeaning>> meanings_;
  std::string graph_hash_;
  std::vector<int> part_;                     ///< by op
  std::vector<std::vector<ir::OpId>> parts_;  ///< ops of each part
};

}  // namespace shardplan::problem
