#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/ops/axis_map.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::problem {

/// Makes the choices of nodes, once for all nodes that look alike.
class NodeTypes {
 public:
  NodeTypes(const ir::Graph& step, const cost::CostModel& cost, sharding::Resharder& resharder);

  /// Sets node.type. Preconditions: members and ports are complete.
  void assign(IntraOpNode& node, const ChoiceFilter& filter);

 private:
  /// Axis maps of the members, and for each axis of a backward member the axis of the forward op
  /// that it is tied to (-1: none).
  struct Members {
    std::vector<ops::AxisMap> maps;
    std::vector<std::vector<int>> tied;
    std::vector<std::vector<int>> gradient_operands;  ///< operands made from output gradients
  };

  [[nodiscard]] std::string signature(const IntraOpNode& node) const;
  [[nodiscard]] Members tie(const IntraOpNode& node) const;
  void find_gradient_operands(const IntraOpNode& node, Members& members) const;
  [[nodiscard]] std::vector<NodeChoice> op_choices(const IntraOpNode& node) const;
  [[nodiscard]] std::vector<NodeChoice> parameter_choices(const IntraOpNode& node) const;
  [[nodiscard]] bool fixed(const IntraOpNode& node) const;
  bool parameter_choice(const IntraOpNode& node,
                        const std::vector<ops::AxisMap>& maps,
                        NodeChoice& choice) const;
  [[nodiscard]] bool is_backward_value(ir::ValueId value) const;
  [[nodiscard]] bool partial_allowed(const IntraOpNode& node, const ops::PartialRule& rule) const;
  [[nodiscard]] std::vector<sharding::Strategy> gradient_variants(const IntraOpNode& node,
                                                                  const sharding::Strategy& forward,
                                                                  const Members& members) const;
  [[nodiscard]] std::optional<sharding::Strategy> member_strategy(const sharding::Strategy& forward,
                                                                  const sharding::Strategy& variant,
                                                                  const Members& members,
                                                                  std::size_t member) const;
  /// Fills layouts, port layouts and seconds from the strategies; false when not possible.
  bool complete(const IntraOpNode& node,
                const std::vector<ops::AxisMap>& maps,
                NodeChoice& choice) const;
  bool change(ir::ValueId value,
              const sharding::ShardingSpec& to,
              ir::OpId reader,
              std::vector<sharding::ShardingSpec>& there,
              NodeChoice& choice) const;
  [[nodiscard]] Seconds kernel_seconds(ir::OpId op,
                                       const ops::AxisMap& map,
                                       const sharding::OpLayouts& layouts) const;
  [[nodiscard]] double repeats(ir::OpId op) const;
  void keep_cheapest_of_each_class(std::vector<NodeChoice>& choices) const;

  const ir::Graph& step_;
  const cost::CostModel& cost_;
  sharding::Resharder& resharder_;
  std::unordered_map<std::int32_t, ir::ValueId> gradient_of_;  ///< by forward value
  std::unordered_set<ir::ValueId> constant_;  ///< op results that depend on no input or parameter
  std::map<std::string, std::shared_ptr<const NodeType>> known_;
};

}  // namespace shardplan::problem
