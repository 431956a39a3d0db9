#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/problem/class_network.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::problem {

/// Ops that read a value or a view of it, as indices into the order of execution; -1 = none.
struct Span {
  int first_forward = -1;
  int last_forward = -1;
  int first_backward = -1;
  int last_backward = -1;
  int last_update = -1;

  void add(int op, ir::Phase phase);
  void merge(const Span& other);
  [[nodiscard]] int last() const;
};

/// Writes an IntraOpProblem as numbers. Equal tables are made once and shared.
class GraphTables {
 public:
  GraphTables(const IntraOpProblem& problem, bool recompute);
  [[nodiscard]] bool of(const IntraOpProblem& problem) const { return &problem == &problem_; }
  [[nodiscard]] StrategyGraph make(const std::vector<IntraOpProblem::ProgramPoint>& points);
  [[nodiscard]] ClassNetwork make_classes();

 private:
  /// What an edge's tables depend on besides the types of its nodes.
  struct EdgeFacts {
    bool parameter = false;       ///< the value is a parameter
    bool view = false;            ///< its storage belongs to another value
    bool backward_value = false;  ///< made by the backward pass
    bool sole_reader = false;     ///< the only node besides the producer that reads it
    bool own_reads = false;       ///< the producer's backward ops read it too
    bool recomputable = false;    ///< made again when the producer's block is recomputed
    bool reader_reruns = false;
    bool same_block = false;
    std::vector<ir::Phase> phases{};  ///< of each read
  };
  /// When the value of an edge is made and read.
  struct Times {
    int definition = 0;
    Span reads{};                ///< by the edge's reader, through views too
    Span own{};                  ///< by the producer's other ops
    bool forward_views = false;  ///< a forward reader is a view
    int from_restart =
        -1;               ///< where the producer's block runs again, if that makes the value again
    int to_restart = -1;  ///< where the reader's block runs again
  };

  [[nodiscard]] const IntraOpNode& node(int index) const;
  [[nodiscard]] const std::vector<NodeChoice>& choices(int node) const;
  /// The variable that says whether the node's block runs again; -1 = it cannot.
  [[nodiscard]] int block_variable(int node) const;

  void find_spans();
  [[nodiscard]] EdgeFacts facts(const IntraOpEdge& edge) const;
  [[nodiscard]] solvers::CostTable node_seconds(int node);
  [[nodiscard]] solvers::CostTable rerun_seconds(int node);
  /// In classes; the scope is left out.
  [[nodiscard]] const ClassNetwork::Factor& edge_seconds(const IntraOpEdge& edge,
                                                         const EdgeFacts& facts);
  [[nodiscard]] std::shared_ptr<const ChoiceClasses> every_choice(std::size_t count);
  /// The layouts of an edge as numbers: prices and bytes are looked up once for each.
  struct EdgeLayouts {
    std::vector<int> made{};           ///< by class of writes: number among the layouts read, -1
    std::vector<double> made_bytes{};  ///< by class of writes
    std::vector<std::vector<int>> reads{};  ///< by class of reads, and read: number
    std::vector<double> read_bytes{};       ///< by number
    std::vector<double> price{};            ///< by class of writes, and number
  };
  [[nodiscard]] EdgeLayouts edge_layouts(const IntraOpEdge& edge);
  [[nodiscard]] double change_seconds(const EdgeFacts& facts,
                                      const EdgeLayouts& layouts,
                                      std::size_t from,
                                      std::size_t to,
                                      bool producer_reruns,
                                      bool reader_reruns) const;
  [[nodiscard]] static bool settles(const EdgeFacts& facts,
                                    const EdgeLayouts& layouts,
                                    std::size_t from,
                                    std::size_t to);
  [[nodiscard]] bool settles(const IntraOpEdge& edge,
                             const EdgeFacts& facts,
                             const sharding::ShardingSpec& from,
                             const std::vector<sharding::ShardingSpec>& reads) const;
  [[nodiscard]] std::vector<sharding::ShardingSpec> edge_reads(const IntraOpEdge& edge,
                                                               int to_choice) const;
  /// Whether the two blocks' variables matter to an edge: the producer's, the reader's.
  [[nodiscard]] std::pair<bool, bool> block_matters(const IntraOpEdge& edge,
                                                    const EdgeFacts& facts) const;
  [[nodiscard]] std::vector<int> edge_scope(const IntraOpEdge& edge, const EdgeFacts& facts) const;
  /// What the blocks' variables that matter may be: the producer's block runs again, the reader's.
  [[nodiscard]] std::vector<std::pair<bool, bool>> block_states(const IntraOpEdge& edge,
                                                                const EdgeFacts& facts) const;
  /// One entry of an edge's table: classes of writes and of reads, and whether the blocks run
  /// again.
  using EdgeEntry = std::function<double(
      std::size_t from_class, std::size_t to_class, bool from_again, bool to_again)>;
  /// The table over edge_scope(), in classes; the scope is left out.
  [[nodiscard]] ClassNetwork::Factor edge_factor(const IntraOpEdge& edge,
                                                 const EdgeFacts& facts,
                                                 const EdgeEntry& entry);
  /// The same over choices, computed for one choice of each class.
  using ChoiceEntry =
      std::function<double(int from_choice, int to_choice, bool from_again, bool to_again)>;
  [[nodiscard]] solvers::CostTable edge_table(const IntraOpEdge& edge,
                                              const EdgeFacts& facts,
                                              const ChoiceEntry& entry);
  using Layouts = std::vector<sharding::ShardingSpec>;
  /// Classes of a node's choices by the layouts of some ports, with one choice of each class.
  struct PortClasses {
    std::shared_ptr<const ChoiceClasses> classes;
    std::vector<int> first;
  };
  [[nodiscard]] const PortClasses& write_classes(int node, int write);
  [[nodiscard]] const PortClasses& read_classes(int node, const std::vector<int>& reads);
  [[nodiscard]] std::string edge_key(const IntraOpEdge& edge, const EdgeFacts& facts) const;

  void add_row(StrategyGraph& graph, const IntraOpProblem::ProgramPoint& point);
  [[nodiscard]] solvers::CostTable node_bytes(int node, int at);
  [[nodiscard]] double own_bytes(int node, const NodeChoice& chosen, int at, bool rerun) const;
  [[nodiscard]] double parameter_bytes(const IntraOpNode& node,
                                       const NodeChoice& chosen,
                                       int at) const;
  [[nodiscard]] double workspace(const IntraOpNode& node,
                                 const NodeChoice& chosen,
                                 std::size_t member) const;
  [[nodiscard]] Times times(const IntraOpEdge& edge, const EdgeFacts& facts) const;
  [[nodiscard]] double value_bytes(const IntraOpEdge& edge,
                                   const EdgeFacts& facts,
                                   const Times& times,
                                   const sharding::ShardingSpec& made,
                                   const std::vector<sharding::ShardingSpec>& reads,
                                   bool from_again,
                                   bool to_again,
                                   int at) const;
  static bool changed_copy_is_live(const EdgeFacts& facts,
                                   const Times& times,
                                   const Span& part,
                                   bool from_again,
                                   bool to_again,
                                   int at,
                                   Span& original);
  [[nodiscard]] static Span reads_of(const EdgeFacts& facts,
                                     const Times& times,
                                     const std::vector<sharding::ShardingSpec>& reads,
                                     const sharding::ShardingSpec& layout);
  [[nodiscard]] solvers::CostTable edge_bytes(const IntraOpEdge& edge,
                                              const EdgeFacts& facts,
                                              int at);
  [[nodiscard]] bool live(int definition, const Span& span, int at, int rerun_start) const;
  [[nodiscard]] bool is_storage(ir::ValueId value) const;
  [[nodiscard]] double bytes(const sharding::ShardingSpec& spec, ir::ValueId value) const;

  const IntraOpProblem& problem_;
  const ir::Graph& step_;
  bool recompute_;
  std::vector<Span> span_;                 ///< by value: reads of it and of its views
  std::vector<std::vector<int>> readers_;  ///< by value: edges
  std::vector<Span> own_span_;             ///< by value: reads inside the producing node
  std::vector<int> block_variable_;        ///< by node
  std::vector<int> backward_start_;        ///< by node: first backward op of its block
  std::map<std::string, solvers::CostTable> known_;
  std::map<std::string, ClassNetwork::Factor> known_seconds_;
  std::map<std::size_t, std::shared_ptr<const ChoiceClasses>> every_choice_;
  /// By node type and ports: -1 and the write, or the reads.
  std::map<std::pair<const NodeType*, std::vector<int>>, PortClasses> port_classes_;
};

}  // namespace shardplan::problem
