#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::rewrite {

/// The canonical form of a forward graph: the same results and gradients, up to rounding, from
/// fewer ops with more dimensions that can be sharded. In short: no op that does nothing, equal ops
/// once, products and what follows them on unmerged batch dimensions, transposes inside attention
/// and einsum, grouped attention without repeated heads, recognised GELUs, and linear layers whose
/// result is cut in equal parts with the parts as a dimension of their own (see rules()).
/// Deterministic. Names, kinds and order of parameters, buffers and inputs stay; a parameter's type
/// may become a contiguous reshape of its shape in the module (Value::module_shape). Ops that
/// nothing needs and constants without use are dropped. Precondition: every op is of the forward
/// phase (an error otherwise). Time: a few passes, each linear in the graph.
[[nodiscard]] Result<ir::Graph> canonicalize(const ir::Graph& graph);

class Rewriter;

/// One local rule. `apply` sees an op that is about to be appended, its operands already rewritten,
/// and either returns what to use in place of its results, or nothing: then the next rule is tried.
struct Rule {
  std::string_view name;
  std::string_view summary;
  std::optional<std::vector<ir::ValueId>> (*apply)(Rewriter&, const ir::Op&);
};

/// All local rules in the order in which they are tried.
[[nodiscard]] std::vector<Rule> rules();
/// Applies some local rules (with equal ops merged and dead ones dropped) until nothing changes:
/// for tests of single rules.
[[nodiscard]] Result<ir::Graph> apply_rules(const ir::Graph& graph, std::span<const Rule> rules);
/// The one rule that looks at whole parameters: linear layers cut in equal parts.
[[nodiscard]] Result<ir::Graph> separate_equal_parts(const ir::Graph& graph);

}  // namespace shardplan::rewrite
