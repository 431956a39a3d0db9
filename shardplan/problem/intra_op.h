#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/ir/graph.h"
#include "shardplan/plan/plan.h"
#include "shardplan/problem/strategy_graph.h"
#include "shardplan/problem/timeline.h"
#include "shardplan/sharding/strategy.h"
#include "shardplan/solvers/class_network.h"
#include "shardplan/support/result.h"

namespace shardplan::problem {

using solvers::ChoiceClasses;
using solvers::ClassNetwork;

/// A value that crosses the boundary of a node: operand `slot` of member `op` (reads) or result
/// `slot` (writes).
struct Port {
  ir::ValueId value{};
  ir::OpId op{};
  int slot = 0;
};

/// One way to run a node: a strategy for each member op; for parameter nodes also the layouts of
/// the stored value, of the gradient sum over microbatches, and of the optimizer state.
struct NodeChoice {
  std::vector<sharding::Strategy> strategies{};  ///< by member
  std::vector<sharding::OpLayouts> layouts{};    ///< by member
  std::vector<sharding::ShardingSpec> reads{};   ///< by read port
  std::vector<sharding::ShardingSpec> writes{};  ///< by write port
  sharding::ShardingSpec stored{};               ///< parameter nodes
  sharding::ShardingSpec accumulated{};          ///< parameter nodes
  sharding::ShardingSpec state{};                ///< parameter nodes
  /// What each mesh axis does, for filters and explanations: an axis of the forward op (>= 0),
  /// kNone, or a partial rule; see sharding::Strategy.
  sharding::Strategy forward{};
  Seconds seconds = 0;               ///< all member ops in one step
  Seconds kernel_seconds = 0;        ///< of them the kernels, without collectives inside the node
  Seconds rerun_seconds = 0;         ///< the forward op once more for every microbatch
  Seconds rerun_kernel_seconds = 0;  ///< of them the kernel
};

/// The choices of all nodes that look alike (the same op in every layer) are built once.
struct NodeType {
  std::vector<NodeChoice> choices{};
};

/// An op of the forward pass with its backward ops; a parameter with its update ops; a user input
/// that several nodes read; or a single op outside all three.
struct IntraOpNode {
  enum class Kind { kOp, kParameter, kInput };
  Kind kind = Kind::kOp;
  std::vector<ir::OpId> members{};  ///< in graph order; for kOp the forward op is first
  ir::ValueId parameter{};          ///< or user input
  std::vector<Port> reads{};
  std::vector<Port> writes{};
  std::string block{};
  std::shared_ptr<const NodeType> type{};

  /// Whether it is a parameter that the step updates; false: frozen, or a copy of another stage's.
  [[nodiscard]] bool updates(const ir::Graph& step) const;
};

/// A value that flows from one node to another.
struct IntraOpEdge {
  int from = 0;
  int to = 0;
  int write = 0;             ///< index into writes of `from`
  std::vector<int> reads{};  ///< indices into reads of `to`
};

class GraphTables;
class StepStructure;

/// What a planner may forbid; empty functions allow everything.
struct ChoiceFilter {
  std::function<bool(const IntraOpNode& node, const NodeChoice& choice)> allow{};
  /// Nodes for which different filters may give different answers must differ in this tag.
  std::function<std::string(const IntraOpNode& node)> tag{};
};

/// The intra-operator problem on one mesh: one choice for every node of the training step. One
/// choice serves an op's forward and its backward ops: mesh axes keep their meaning, found through
/// the dimensions that the ops share (Architecture, "What exactly is optimised").
///
/// The additive time of an assignment is the sum of the nodes' seconds and of the changes of layout
/// on the edges, as lower() makes them. Building is linear in distinct node types and in edges;
/// exponential in mesh axes.
class IntraOpProblem {
 public:
  [[nodiscard]] static Result<IntraOpProblem> build(const ir::Graph& step,
                                                    const cost::CostModel& cost,
                                                    const ChoiceFilter& filter = {});
  /// The same with what is shared by all meshes: for planners that look at several.
  [[nodiscard]] static Result<IntraOpProblem> build(std::shared_ptr<const StepStructure> structure,
                                                    const cost::CostModel& cost,
                                                    const ChoiceFilter& filter = {});

  [[nodiscard]] const std::vector<IntraOpNode>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<IntraOpEdge>& edges() const { return edges_; }

  /// The moment of a program point in the order of every program of this step; how the point's
  /// block is recomputed is the plan's.
  [[nodiscard]] Moment moment_of(const lower::ProgramPoint& point, const plan::Plan& plan) const;
  /// The moments at which the same happens in all blocks, this one among them.
  [[nodiscard]] std::vector<Moment> alike_moments(const lower::ProgramPoint& point,
                                                  const plan::Plan& plan) const;

  /// The problem as numbers: a variable for each node and, with `recompute`, one for each block
  /// after them (an index into kRecomputes). One memory row for each moment: what is live then.
  /// Tables are kept for the next call (not thread-safe).
  [[nodiscard]] StrategyGraph strategy_graph(bool recompute,
                                             const std::vector<Moment>& moments) const;

  /// The objective of strategy_graph(recompute, {}) in classes of choices: what to solve on meshes
  /// of three and more axes, where tables over choices would fill the memory.
  /// `exposed` scales the changes of layout, inside nodes too, as if the rest hid behind compute.
  [[nodiscard]] ClassNetwork class_network(bool recompute, double exposed = 1) const;

  /// A relaxation of the problem at fixed prices of its rows, in classes, without variables for
  /// blocks: `weight` times the objective of strategy_graph(true, moments) plus, for each row, its
  /// multiplier (seconds a byte) times its bytes but for constant_bytes(). A node of a block has
  /// each choice c once for every way `how` of recomputing the block, as number how · choices + c;
  /// ops of a block that edges join agree on it.
  [[nodiscard]] ClassNetwork class_network(const std::vector<Moment>& moments,
                                           const std::vector<double>& multiplier,
                                           double weight = 1) const;
  /// Bytes of what is there always, whatever the plan: the constant of every row.
  [[nodiscard]] double constant_bytes() const;

  /// The problem in which nodes have only the choices that some of the assignments (also those of
  /// class_network(moments, ...)) give to a node of their type. Indices of choices are its own.
  [[nodiscard]] IntraOpProblem restricted(const std::vector<std::vector<int>>& assignments) const;
  /// Sum over the nodes of the least time of their kernels: no plan computes faster.
  [[nodiscard]] Seconds least_kernel_seconds() const;
  /// Entries of the largest table over the choices of two nodes.
  [[nodiscard]] std::size_t largest_edge() const;

  /// Drops the tables that are kept for the next call, and the prices that they were made from: on
  /// four mesh axes a few hundred MB. They are made again when they are asked for.
  void forget_tables();

  /// The plan of an assignment (indices as in strategy_graph).
  [[nodiscard]] plan::Plan to_plan(const std::vector<int>& choice, bool recompute) const;

  /// Blocks that can be recomputed, in order of the graph.
  [[nodiscard]] const std::vector<std::string>& blocks() const { return blocks_; }

 private:
  friend class GraphTables;
  [[nodiscard]] GraphTables& tables(bool recompute) const;
  std::shared_ptr<const StepStructure> structure_;
  const ir::Graph* step_ = nullptr;
  std::shared_ptr<const cost::CostModel> cost_;
  std::shared_ptr<sharding::Resharder> resharder_;
  std::vector<IntraOpNode> nodes_;
  std::vector<IntraOpEdge> edges_;
  std::vector<std::string> blocks_;
  /// Tables without and with recomputation, kept between calls of strategy_graph().
  mutable std::array<std::shared_ptr<GraphTables>, 2> tables_;
};

/// The classes of dimensions that ops tie together over the whole forward pass, and what they mean.
/// Expert plans are written in these terms.
enum class AxisMeaning { kOther, kBatch, kSequence, kTensor, kSpace, kExpert };
/// Meaning of every axis of every forward op, by op id and axis index (empty for other ops).
/// kBatch: tied to dimension 0 of a user input, or of what a pipeline stage receives. kSequence:
/// dimension 1 of a user input or of an attention query. kTensor: attention heads, and dimensions
/// that one weight matrix makes and the next contracts, found as in Megatron-LM: walking the weight
/// products in order, the output dimension of a product is kTensor when its contracted dimension is
/// not. kSpace: the first dimension of space of a convolution. kExpert: a dimension in which a
/// weight product goes side by side, a matrix for each index of it.
[[nodiscard]] std::vector<std::vector<AxisMeaning>> axis_meanings(const ir::Graph& step);

}  // namespace shardplan::problem
