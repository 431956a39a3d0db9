#pragma once

#include <optional>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// Bytes that PyTorch's lstm, gru and plain rnn on padded sequences allocate on a CPU beyond their
/// results, with one thread; none for any other called operator. An LSTM in f32 runs on oneDNN,
/// layer by layer, everything else step by step.
[[nodiscard]] std::optional<Bytes> workspace_recurrent(const OpView& call);

/// The same of the call's gradient, which runs the operator again first: `call` has the operator's
/// operands, and its results are the gradients of some of them.
[[nodiscard]] std::optional<Bytes> workspace_recurrent_backward(const OpView& call);

}  // namespace shardplan::ops
