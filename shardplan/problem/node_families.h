#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/ops/axis_map.h"
#include "shardplan/ops/op.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::problem {

/// Nodes that look alike (the same op in every layer), and what their choices are made from on any
/// mesh.
struct NodeFamily {
  IntraOpNode node{};                 ///< one of them, members and ports complete
  bool fixed = false;                 ///< not worth cutting: runs whole on every device
  std::vector<ops::AxisMap> maps{};   ///< by member
  std::vector<ops::OpTypes> types{};  ///< by member, in global shapes
  /// By member and axis: the axis of the forward op that it is tied to; -1 = none. Ops only.
  std::vector<std::vector<int>> tied{};
  std::vector<std::vector<int>> gradient_operands{};  ///< by member: made from output gradients
};

class KnownDimensions;

/// Sorts nodes into families.
class NodeFamilies {
 public:
  explicit NodeFamilies(const ir::Graph& step);

  /// The family of a node whose members and ports are complete.
  int assign(const IntraOpNode& node);
  [[nodiscard]] std::vector<NodeFamily> take() { return std::move(families_); }

 private:
  [[nodiscard]] std::string signature(const IntraOpNode& node) const;
  [[nodiscard]] bool fixed(const IntraOpNode& node) const;
  [[nodiscard]] NodeFamily make(const IntraOpNode& node) const;
  void tie(NodeFamily& family) const;
  void add_by_results(const NodeFamily& family, KnownDimensions& known) const;
  void find_gradient_operands(NodeFamily& family) const;
  [[nodiscard]] bool is_backward_value(ir::ValueId value) const;

  const ir::Graph& step_;
  std::unordered_map<std::int32_t, ir::ValueId> gradient_of_;  ///< by forward value
  std::unordered_set<ir::ValueId> constant_;  ///< op results that depend on no input or parameter
  std::unordered_map<std::string, int> known_;
  std::vector<NodeFamily> families_;
};

}  // namespace shardplan::problem
