#pragma once

#include <functional>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/plan/plan.h"

namespace shardplan::lower {

/// Which values the backward pass makes again, and when. Independent of layouts.
struct RerunSchedule {
  std::vector<bool> member;   ///< by op: a forward op whose results are not kept
  std::vector<bool> dropped;  ///< by value: not kept from the forward to the backward pass
  /// By backward op: the forward ops that run again just before it, in order. Each runs again at
  /// most once, as late as its first reader allows.
  std::vector<std::vector<ir::OpId>> before;
};

/// Results of the ops that a block's `how` names are dropped, but for what other blocks read and
/// what the step returns: those stay, so that running a block again never starts a chain through
/// the blocks before it. O(graph).
[[nodiscard]] RerunSchedule rerun_schedule(
    const ir::Graph& step, const std::function<plan::Recompute(std::string_view block)>& how);

}  // namespace shardplan::lower
