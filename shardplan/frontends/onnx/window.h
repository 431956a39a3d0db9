#pragma once

#include <optional>
#include <string_view>

#include "shardplan/frontends/onnx/call.h"

/// What convolutions and pools share: where their kernels go.
namespace shardplan::frontends::onnx {

/// Where a kernel goes over the spatial dimensions.
struct Window {
  ir::IntList kernel;
  ir::IntList stride;
  ir::IntList dilation;
  ir::IntList before;
  ir::IntList after;
  std::size_t rank = 0;

  [[nodiscard]] bool symmetric() const { return before == after; }
  [[nodiscard]] std::int64_t reach(std::size_t d) const { return dilation[d] * (kernel[d] - 1); }
  /// Positions of the kernel along dimension d of `size` elements with its pads.
  [[nodiscard]] std::int64_t positions(std::size_t d, std::int64_t size) const {
    const std::int64_t room = size + before[d] + after[d] - reach(d) - 1;
    return room < 0 ? 0 : room / stride[d] + 1;
  }
};

/// Whether a list has `rank` numbers from `least` to 2^30.
[[nodiscard]] bool in_range(const ir::IntList& list, std::size_t rank, std::int64_t least);
/// An attribute, or `rank` times the fallback.
[[nodiscard]] ir::IntList list_or(Call& c,
                                  std::string_view name,
                                  std::size_t rank,
                                  std::int64_t fallback);
/// Kernel, strides, dilations and pads for x [n, c, ...]; nothing, and an error, when they do not
/// fit.
[[nodiscard]] std::optional<Window> window_of(Call& c,
                                              const ir::IntList& kernel,
                                              const ir::Shape& x);
/// x with pads of its spatial dimensions.
[[nodiscard]] ir::ValueId with_pads(
    Builder& b, ir::ValueId x, const ir::IntList& before, const ir::IntList& after, double value);

}  // namespace shardplan::frontends::onnx
