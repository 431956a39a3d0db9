#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// Bytes that operators of PyTorch that are called by their names allocate on a CPU beyond their
/// results, with one thread; none for operators that are not known. Found by counting allocations
/// at several sizes (tests/runtime/workspace_test.cc) and by reading what the kernels of ATen keep.
[[nodiscard]] std::optional<Bytes> workspace_called(const OpView& call);

/// The same of the gradient of such a call, which runs the operator again first: `call` has the
/// operator's operands, its results are the gradients of some of them, and `given` are those of the
/// operator's results.
[[nodiscard]] std::optional<Bytes> workspace_called_backward(const OpView& call,
                                                             std::span<const ir::TensorType> given);

}  // namespace shardplan::ops
