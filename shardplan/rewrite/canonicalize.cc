#include "shardplan/rewrite/canonicalize.h"

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

/// Each pass moves reshapes and transposes as far as they go; later ones clean up what met. Far
/// fewer are needed; a limit keeps a pair of rules that undo each other from running for ever.
constexpr int kMaxPasses = 12;

}  // namespace

std::vector<Rule> rules() {
  std::vector<Rule> all;
  for (const auto family :
       {no_op_rules, elementwise_rules, attention_rules, reshape_rules, transpose_rules}) {
    const std::vector<Rule> rows = family();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

Result<ir::Graph> apply_rules(const ir::Graph& graph, std::span<const Rule> rules) {
  ir::Graph current = graph;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    SHARDPLAN_ASSIGN_OR_RETURN(Rewriter::Outcome outcome, Rewriter(current, rules).run());
    current = std::move(outcome.graph);
    if (!outcome.changed) {
      break;
    }
  }
  return current;
}

Result<ir::Graph> canonicalize(const ir::Graph& graph) {
  const std::vector<Rule> all = rules();
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph plain, apply_rules(graph, all));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph separated, separate_equal_parts(plain));
  return apply_rules(separated, all);
}

}  // namespace shardplan::rewrite
