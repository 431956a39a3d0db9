#pragma once

#include <algorithm>
#include <cstdint>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// A convolution of x by a weight gives y, whichever of the three is computed.
struct Convolution {
  const ir::Attributes& attributes;
  const ir::TensorType& x;
  const ir::TensorType& weight;
  const ir::TensorType& y;
  ir::IntList padding;  ///< of the kernel

  [[nodiscard]] bool transposed() const { return attributes.flag_or("transposed", false); }
  /// The side with the channels that a group's weight reads, which is y of a transposed one.
  [[nodiscard]] const ir::TensorType& outer() const { return transposed() ? y : x; }
  [[nodiscard]] const ir::TensorType& inner() const { return transposed() ? x : y; }
  [[nodiscard]] std::int64_t groups() const {
    return std::max<std::int64_t>(1, outer().shape[1] / std::max<std::int64_t>(1, weight.shape[1]));
  }
  [[nodiscard]] bool all(const char* name, std::int64_t value) const {
    const ir::IntList& list = attributes.ints(name);
    return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
  }
  [[nodiscard]] bool pads_nothing() const {
    return std::all_of(padding.begin(), padding.end(), [](std::int64_t p) { return p == 0; });
  }
  [[nodiscard]] std::int64_t kernel() const {
    std::int64_t size = 1;
    for (std::size_t d = 2; d < weight.shape.size(); ++d) {
      size *= weight.shape[d];
    }
    return size;
  }
};

/// Bytes that oneDNN takes beside its result on a CPU with AVX-512 and one thread, by which of the
/// three it computes; a transposed convolution is that of its result, turned around. Known to the
/// byte for f32 and bf16 where windows are not apart; what a strided kernel keeps for itself was
/// fitted to sizes of 1 to 64 of each dimension.
[[nodiscard]] Bytes onednn_workspace_of_dst(const Convolution& c);
[[nodiscard]] Bytes onednn_workspace_of_src(const Convolution& c);
[[nodiscard]] Bytes onednn_workspace_of_weight(const Convolution& c);

}  // namespace shardplan::ops
