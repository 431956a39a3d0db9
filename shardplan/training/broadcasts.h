#pragma once

#include "shardplan/ir/graph.h"

namespace shardplan::training {

/// Lets elementwise ops work on small tensors: one that reads a `broadcast` works on the
/// broadcast's operand instead, where its other operands give the shape, or where it has no others
/// and the broadcast then follows it. What was broadcast for nothing is left without readers.
/// O(graph).
///
/// The gradient of a sum is a broadcast, so the backward pass of a mean over a row,
/// "broadcast(g) -> scale -> mul x", becomes "g -> scale -> mul x" with a scale of one number a
/// row.
void simplify_broadcasts(ir::Graph& graph);

}  // namespace shardplan::training
