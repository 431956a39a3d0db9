#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/support/result.h"

namespace shardplan::rewrite {

/// One pass over a graph: copies it op by op into a new one, gives each op to the rules first, and
/// merges equal ops. Rules look at the new graph, whose ops are already rewritten.
class Rewriter {
 public:
  Rewriter(const ir::Graph& source, std::span<const Rule> rules);

  /// The rewritten graph without dead ops, and whether anything changed.
  struct Outcome {
    ir::Graph graph;
    bool changed = false;
  };
  Result<Outcome> run();

  // For rules.
  [[nodiscard]] const ir::Graph& graph() const { return graph_; }
  [[nodiscard]] const ir::TensorType& type(ir::ValueId value) const { return graph_.type(value); }
  [[nodiscard]] const ir::Shape& shape(ir::ValueId value) const { return graph_.type(value).shape; }
  /// The op that makes the value as its first result, if it has this name; else null. The pointer
  /// lives until the next `emit`: copy what is needed later.
  [[nodiscard]] const ir::Op* made_by(ir::ValueId value, std::string_view name) const;
  /// Whether a single operand in the whole graph reads the value.
  [[nodiscard]] bool read_once(ir::ValueId value) const;

  /// Appends an op, rules applied to it in turn, with the layer of the op that is being rewritten;
  /// its first result. If the operands do not fit, the whole rule is taken back.
  ir::ValueId emit(std::string name,
                   std::vector<ir::ValueId> inputs,
                   ir::Attributes attributes = {});
  std::vector<ir::ValueId> emit_all(std::string name,
                                    std::vector<ir::ValueId> inputs,
                                    ir::Attributes attributes = {});
  /// `value` in another shape with as many elements.
  ir::ValueId reshape(ir::ValueId value, const ir::Shape& shape);
  ir::ValueId transpose(ir::ValueId value, const ir::IntList& permutation);

 private:
  std::vector<ir::ValueId> rewrite(const ir::Op& op);
  std::optional<std::vector<ir::ValueId>> apply_rules(const ir::Op& op);
  std::vector<ir::ValueId> append(const ir::Op& op);
  void count_uses();
  void map_results(const ir::Op& old_op, const std::vector<ir::ValueId>& results);

  const ir::Graph& source_;
  std::span<const Rule> rules_;
  ir::Graph graph_;
  std::vector<ir::ValueId> new_id_;     // of each old value
  std::vector<std::int32_t> old_uses_;  // of each old value
  std::vector<std::int32_t> uses_;      // of each new value; 0 = not known
  std::unordered_multimap<std::size_t, ir::OpId> by_content_;
  std::string layer_;
  int depth_ = 0;
  bool failed_ = false;  // an op that the current rule emitted did not fit
  bool changed_ = false;
};

/// The graph without ops that no output or write needs, and without constants that nobody reads.
[[nodiscard]] ir::Graph drop_dead(const ir::Graph& graph);

// Rule families, one file each.
[[nodiscard]] std::vector<Rule> no_op_rules();        // rules_no_op.cc
[[nodiscard]] std::vector<Rule> elementwise_rules();  // rules_elementwise.cc
[[nodiscard]] std::vector<Rule> reshape_rules();      // rules_reshape.cc
[[nodiscard]] std::vector<Rule> transpose_rules();    // rules_transpose.cc
[[nodiscard]] std::vector<Rule> attention_rules();    // rules_attention.cc

/// Whether an op maps each element of its one operand by itself, whatever its place.
[[nodiscard]] bool is_unary_elementwise(const ir::Op& op);
/// Whether an op broadcasts its operands together and maps elements by themselves.
[[nodiscard]] bool is_broadcasting(const ir::Op& op);

}  // namespace shardplan::rewrite
