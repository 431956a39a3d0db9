#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/lower/readers.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/problem/step_structure.h"
#include "shardplan/problem/value_life.h"
#include "shardplan/solvers/class_network.h"

namespace shardplan::problem {

/// Writes an IntraOpProblem as numbers. Equal tables are made once and shared.
class GraphTables {
 public:
  GraphTables(const IntraOpProblem& problem, bool recompute);
  [[nodiscard]] bool of(const IntraOpProblem& problem) const { return &problem == &problem_; }
  [[nodiscard]] StrategyGraph make(const std::vector<Moment>& moments);
  [[nodiscard]] ClassNetwork make_classes(double exposed);
  /// See IntraOpProblem::class_network(moments, multiplier).
  [[nodiscard]] ClassNetwork make_classes(const std::vector<Moment>& moments,
                                          const std::vector<double>& multiplier,
                                          double weight);

 private:
  class WeightedNetwork;
  /// A use of a value with what tells equal ones apart.
  struct KnownUse {
    ValueUse use{};
    std::vector<Moment> moments{};
    std::string key{};  ///< flags and the order of the moments, not the moments
  };
  /// The value of an edge, and the ways of recomputing that its tables depend on.
  struct EdgeFacts {
    KnownUse known{};
    std::vector<int> scope{};                 ///< of its tables
    std::vector<std::pair<int, int>> hows{};  ///< of the producer's and reader's block, in the
                                              ///< order of the tables
    std::string key{};
  };
  /// A value that a node makes or owns, with the reads inside the node.
  struct InnerValue {
    KnownUse known{};
    std::vector<std::pair<int, int>> reads{};  ///< member and operand; -1, -1: written back
    int member = -1;                           ///< that makes it; -1: the node's parameter
    /// Storage whose bytes are counted on the node from `made` (again) to these moments.
    bool counted = false;
    std::array<Moment, kHows> first_end{-1, -1, -1};
    std::array<Moment, kHows> second_end{-1, -1, -1};
    bool rerun_is_brief = false;  ///< made again beside the kept one, and dropped at once
  };
  struct NodeFacts {
    std::vector<InnerValue> values{};
    std::vector<Moment> moments{};
    std::string key{};
  };
  [[nodiscard]] const IntraOpNode& node(int index) const;
  [[nodiscard]] const std::vector<NodeChoice>& choices(int node) const;
  [[nodiscard]] const NodeFamily& family_of(int node) const;
  /// The variable that says how the node's block is recomputed; -1 = it is not.
  [[nodiscard]] int block_variable(int node) const;

  void find_writes();
  void find_ends();
  void find_inner();
  void find_residents();
  [[nodiscard]] bool shares_storage(ir::ValueId value) const;
  [[nodiscard]] ValueUse use_of(ir::ValueId value) const;
  [[nodiscard]] ValueRead read_by(ir::OpId op, int operand) const;
  [[nodiscard]] static KnownUse known(ValueUse use);
  [[nodiscard]] Moment own_end(const IntraOpNode& node, const ValueUse& use) const;
  [[nodiscard]] EdgeFacts edge_facts(const IntraOpEdge& edge) const;
  [[nodiscard]] NodeFacts node_facts(int node) const;
  [[nodiscard]] InnerValue inner_value(int node, int member, ir::ValueId value) const;

  [[nodiscard]] solvers::CostTable node_seconds(int node, double exposed);
  [[nodiscard]] solvers::CostTable again_seconds(int node, double exposed);
  /// In classes; the scope is left out.
  [[nodiscard]] const ClassNetwork::Factor& edge_seconds(std::size_t edge, double exposed);
  /// The layouts of a value as it may be made and read, by class, and what they cost.
  struct EdgeLayouts {
    std::vector<sharding::ShardingSpec> made_spec{};  ///< by class of writes
    std::vector<int> made{};           ///< by class of writes: number among the layouts read, -1
    std::vector<double> made_bytes{};  ///< by class of writes
    std::vector<std::vector<int>> reads{};            ///< by class of reads, and read: number
    std::vector<sharding::ShardingSpec> read_spec{};  ///< by number
    std::vector<double> read_bytes{};                 ///< by number
    std::vector<double> price{};                      ///< by class of writes, and number
  };
  [[nodiscard]] EdgeLayouts edge_layouts(const IntraOpEdge& edge, bool priced);
  /// What lower() does with the value of an edge, found once for each pattern of equal layouts.
  class EdgeLives {
   public:
    EdgeLives(const EdgeFacts& facts, const EdgeLayouts& layouts);
    /// Classes of what is made and read, and an index into facts.hows.
    [[nodiscard]] const ValueLife& of(std::size_t from, std::size_t to, std::size_t hows);

   private:
    const EdgeFacts& facts_;
    const EdgeLayouts& layouts_;
    std::size_t matches_ = 0;
    std::vector<std::size_t> pattern_{};  ///< by class of reads
    std::vector<std::optional<ValueLife>> lives_{};
  };
  /// One entry of an edge's table: classes of what is made and read, and how the blocks of both
  /// ends are recomputed, as an index into facts.hows.
  using EdgeEntry = std::function<double(std::size_t from, std::size_t to, std::size_t hows)>;
  /// The table over the edge's scope, in classes of distinct layouts; the scope is left out.
  [[nodiscard]] ClassNetwork::Factor edge_classes(const IntraOpEdge& edge,
                                                  const EdgeFacts& facts,
                                                  const EdgeEntry& entry);
  [[nodiscard]] std::shared_ptr<const ChoiceClasses> every_choice(std::size_t count);
  /// Classes of a node's choices by the layouts of some ports, with one choice of each class.
  struct PortClasses {
    std::shared_ptr<const ChoiceClasses> classes;
    std::vector<int> first;
  };
  [[nodiscard]] const PortClasses& write_classes(int node, int write);
  [[nodiscard]] const PortClasses& read_classes(int node, const std::vector<int>& reads);

  void add_row(StrategyGraph& graph, Moment at);
  /// In classes; the scope is left out. Null where nothing is there.
  [[nodiscard]] const ClassNetwork::Factor* edge_byte_classes(std::size_t edge, Moment at);
  [[nodiscard]] solvers::CostTable edge_bytes(std::size_t edge, Moment at);
  [[nodiscard]] solvers::CostTable node_bytes(int node, Moment at);
  [[nodiscard]] double own_bytes(int node, const NodeChoice& chosen, Moment at, int how);
  [[nodiscard]] double inner_bytes(
      int node, const InnerValue& inner, const NodeChoice& chosen, Moment at, int how);
  [[nodiscard]] EdgeLayouts inner_layouts(int node,
                                          const InnerValue& inner,
                                          const NodeChoice& chosen,
                                          const sharding::ShardingSpec& made) const;
  [[nodiscard]] double resident_bytes(int node, const NodeChoice& chosen) const;
  /// What member `member` takes at a moment of one of its runs beside operands and results.
  [[nodiscard]] double run_bytes(
      int node, const NodeChoice& chosen, std::size_t member, Moment run, Moment at) const;
  [[nodiscard]] double value_bytes(const ValueUse& use,
                                   const EdgeLayouts& layouts,
                                   std::size_t from,
                                   std::size_t to,
                                   const ValueLife& life,
                                   Moment at);
  [[nodiscard]] double change_bytes(const ValueUse& use,
                                    const sharding::ShardingSpec& made,
                                    const sharding::ShardingSpec& to,
                                    bool last_use_of_made);
  [[nodiscard]] static ValueLife life(const ValueUse& use,
                                      const EdgeLayouts& layouts,
                                      std::size_t from,
                                      std::size_t to,
                                      std::pair<int, int> hows);
  [[nodiscard]] double bytes(const sharding::ShardingSpec& spec, ir::ValueId value) const;

  const IntraOpProblem& problem_;
  const ir::Graph& step_;
  bool recompute_;
  const Timeline& timeline_;
  std::vector<lower::Readers> readers_;  ///< by value
  std::vector<bool> inner_;              ///< by value: the only reader is in the producer's node
  std::vector<Moment> forward_end_;      ///< by value: last forward read, through views too
  std::array<std::vector<Moment>, kHows>
      backward_end_;  ///< second runs in the producer's block too
  std::vector<Moment> update_end_;
  std::vector<Moment> written_;      ///< by value: when it is written back; -1 = never
  std::vector<ir::ValueId> target_;  ///< by value: to what
  std::vector<int> node_of_op_;
  /// By op: operands that are user inputs, states or accumulators and lie as this op reads them.
  std::vector<std::vector<int>> lies_here_;
  std::vector<int> block_variable_;  ///< by node
  std::vector<EdgeFacts> edges_;
  std::vector<NodeFacts> nodes_;
  std::map<std::string, solvers::CostTable> known_;
  std::map<std::string, ClassNetwork::Factor> known_seconds_;
  std::map<std::string, ClassNetwork::Factor> known_bytes_;  ///< without cost: nothing there
  std::map<std::size_t, std::shared_ptr<const ChoiceClasses>> every_choice_;
  /// By node type and ports: -1 and the write, or the reads.
  std::map<std::pair<const NodeType*, std::vector<int>>, PortClasses> port_classes_;
};

}  // namespace shardplan::problem
