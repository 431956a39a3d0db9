#pragma once

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// Bytes that ATen's convolutions on a CPU allocate beyond their results, with one thread. f32 and
/// narrower types run on oneDNN, which works on copies of its operands with channels in blocks;
/// f64, and samples too small for oneDNN, on products with columns, in which each window is written
/// out.
[[nodiscard]] Bytes workspace_convolution(const OpView& op);
[[nodiscard]] Bytes workspace_convolution_backward_input(const OpView& op);
[[nodiscard]] Bytes workspace_convolution_backward_weight(const OpView& op);

}  // namespace shardplan::ops
