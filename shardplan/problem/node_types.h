#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/ops/axis_map.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/problem/step_structure.h"

namespace shardplan::problem {

/// Makes the choices of nodes, once for all nodes that look alike.
class NodeTypes {
 public:
  NodeTypes(const StepStructure& structure,
            const cost::CostModel& cost,
            sharding::Resharder& resharder)
      : structure_(structure), step_(structure.step()), cost_(cost), resharder_(resharder) {}

  /// Sets node.type. `family` is the node's in the structure.
  void assign(IntraOpNode& node, int family, const ChoiceFilter& filter);

 private:
  [[nodiscard]] std::shared_ptr<const NodeType> make(const IntraOpNode& node,
                                                     const NodeFamily& family,
                                                     const ChoiceFilter& filter) const;
  [[nodiscard]] std::vector<NodeChoice> op_choices(const IntraOpNode& node,
                                                   const NodeFamily& family) const;
  [[nodiscard]] std::vector<NodeChoice> parameter_choices(const IntraOpNode& node,
                                                          const NodeFamily& family) const;
  bool parameter_choice(const IntraOpNode& node,
                        const NodeFamily& family,
                        NodeChoice& choice) const;
  [[nodiscard]] bool partial_allowed(const IntraOpNode& node, const ops::PartialRule& rule) const;
  [[nodiscard]] std::vector<sharding::Strategy> gradient_variants(const IntraOpNode& node,
                                                                  const sharding::Strategy& forward,
                                                                  const NodeFamily& family) const;
  [[nodiscard]] std::optional<sharding::Strategy> member_strategy(const sharding::Strategy& forward,
                                                                  const sharding::Strategy& variant,
                                                                  const NodeFamily& family,
                                                                  std::size_t member) const;
  /// Fills layouts, port layouts and seconds from the strategies; false when not possible.
  bool complete(const IntraOpNode& node, const NodeFamily& family, NodeChoice& choice) const;
  bool change(ir::ValueId value,
              const sharding::ShardingSpec& to,
              ir::OpId reader,
              std::vector<sharding::ShardingSpec>& there,
              NodeChoice& choice) const;
  /// Seconds of one run of a member.
  struct Run {
    Seconds kernel = 0;
    Seconds halos = 0;  ///< the exchanges before it
  };
  [[nodiscard]] Run run_of(const NodeFamily& family,
                           std::size_t member,
                           const sharding::OpLayouts& layouts) const;
  [[nodiscard]] double repeats(ir::OpId op) const;
  void keep_cheapest_of_each_class(std::vector<NodeChoice>& choices) const;

  const StepStructure& structure_;
  const ir::Graph& step_;
  const cost::CostModel& cost_;
  sharding::Resharder& resharder_;
  std::map<std::pair<int, std::string>, std::shared_ptr<const NodeType>> known_;  ///< family, tag
};

}  // namespace shardplan::problem
