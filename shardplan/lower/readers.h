#pragma once

#include <vector>

#include "shardplan/ir/graph.h"

namespace shardplan::lower {

/// Who shares a changed copy of a value: an op of the forward pass and its backward ops are one
/// reader (the forward op's number), all ops of the update are one, other ops each their own; what
/// is written back has a reader of its own.
inline constexpr int kNoReader = -1;
inline constexpr int kWritesReader = -2;
inline constexpr int kUpdateReader = -3;
[[nodiscard]] int reader_of(const ir::Graph& step, ir::OpId op);

/// Who reads a value besides the ops of its producer's own reader.
struct Readers {
  int first = kNoReader;  ///< the last one seen; the only one unless `several`
  bool several = false;
  bool own = false;  ///< other ops of the producer's reader read it too
};
/// By value. O(graph).
[[nodiscard]] std::vector<Readers> find_readers(const ir::Graph& step);

/// By write of the step, the op after which it happens: the value exists, and nothing reads the old
/// content any more. O(graph).
[[nodiscard]] std::vector<ir::OpId> write_points(const ir::Graph& step);

}  // namespace shardplan::lower
