#include "shardplan/ops/convolution_workspace.h"

#include <algorithm>

#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

using ir::TensorType;

constexpr std::int64_t kBlock = 16;  ///< channels that oneDNN keeps side by side

/// The padding of the kernel: along a dimension that is cut, operands have all that is needed, and
/// what windows give beyond the own elements is left out.
ir::IntList kernel_padding(const OpView& op) {
  ir::IntList padding = op.attributes.ints("padding");
  for (const Halo& halo : op.cut) {
    padding[static_cast<std::size_t>(halo.dim) - 2] = halo.windows ? halo.reach() - 1 : 0;
  }
  return padding;
}

/// What the kernel makes of the windows, of which the result is a part.
TensorType made_of_windows(const OpView& op) {
  TensorType made = op.results[0];
  for (const Halo& halo : op.cut) {
    const auto dim = static_cast<std::size_t>(halo.dim);
    if (halo.windows) {
      made.shape[dim] = halo.made(op.inputs[0].shape[dim]);
    }
  }
  return made;
}

/// A convolution of x by a weight gives y, whichever of the three is computed.
struct Convolution {
  const ir::Attributes& attributes;
  const TensorType& x;
  const TensorType& weight;
  const TensorType& y;
  ir::IntList padding;  ///< of the kernel

  [[nodiscard]] bool transposed() const { return attributes.flag_or("transposed", false); }
  /// The side with the channels that a group's weight reads, which is y of a transposed one.
  [[nodiscard]] const TensorType& outer() const { return transposed() ? y : x; }
  [[nodiscard]] const TensorType& inner() const { return transposed() ? x : y; }
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

std::int64_t blocked(std::int64_t channels) {
  return (channels + kBlock - 1) / kBlock * kBlock;
}

/// Whether ATen gives the convolution to oneDNN.
bool on_onednn(const Convolution& c) {
  if (c.x.dtype == ir::DType::kFloat64) {
    return false;
  }
  constexpr std::int64_t kLargeBatch = 16;
  constexpr std::int64_t kLargeInput = 20480;
  constexpr std::int64_t kLargeKernel = 3;
  const ir::Shape& w = c.weight.shape;
  const std::int64_t height = w.size() == 3 ? 1 : w[w.size() - 2];
  const bool worth = !c.all("stride", 1) || !c.all("dilation", 1) || c.x.shape[0] >= kLargeBatch ||
                     w.back() != 1 || height != 1;
  const bool enough = c.groups() > 1 || (w.back() > kLargeKernel && height > kLargeKernel) ||
                      c.x.shape[0] > 1 || c.x.numel() > kLargeInput;
  return worth && enough;
}

/// Bytes of the copies of x, weight and y in blocks of channels. Few channels of x stay as they
/// are.
struct Blocks {
  Bytes x = 0;
  Bytes weight = 0;
  Bytes y = 0;
};

Bytes with_blocks(const TensorType& type, std::size_t channels_dim) {
  const std::int64_t channels = std::max<std::int64_t>(1, type.shape[channels_dim]);
  return type.bytes() / channels * blocked(channels);
}

Blocks blocks_of(const Convolution& c, bool few_stay) {
  constexpr std::int64_t kFew = 4;
  Blocks out;
  out.y = with_blocks(c.y, 1);
  out.x = with_blocks(c.x, 1);
  const Bytes element = ir::element_bytes(c.weight.dtype);
  const std::int64_t groups = c.groups();
  if (groups > 1) {
    const bool single = c.weight.shape[1] == 1 && c.weight.shape[0] == groups;
    out.weight = single ? blocked(groups) * c.kernel() * element : c.weight.bytes();
  } else if (few_stay && c.x.shape[1] < kFew) {
    out.x = 0;
    out.weight = blocked(c.weight.shape[0]) * c.weight.shape[1] * c.kernel() * element;
  } else {
    out.weight = blocked(c.weight.shape[0]) * blocked(c.weight.shape[1]) * c.kernel() * element;
  }
  return out;
}

/// Bytes of the columns of one sample and all its groups: every window written out.
Bytes columns_of_sample(const Convolution& c) {
  std::int64_t windows = 1;
  for (std::size_t d = 2; d < c.inner().shape.size(); ++d) {
    windows *= c.inner().shape[d];
  }
  return c.outer().shape[1] * c.kernel() * windows * ir::element_bytes(c.x.dtype);
}

bool is_product(const Convolution& c) {
  return c.kernel() == 1 && c.all("stride", 1) && c.pads_nothing() && !c.transposed();
}

/// Bytes of the columns that are held at a time in one group. `whole` says that this pass of plain
/// ones keeps those of all samples.
Bytes columns(const Convolution& c, bool whole_when_plain, bool whole_when_transposed) {
  const Bytes sample = columns_of_sample(c) / c.groups();
  if (is_product(c)) {
    return 0;
  }
  const bool deep = c.x.rank() == 5;
  if (c.transposed()) {
    return whole_when_transposed ? sample * c.x.shape[0] : sample;
  }
  if (!c.all("dilation", 1)) {
    return sample;
  }
  return deep || whole_when_plain ? sample * c.x.shape[0] : 0;
}

/// Groups are convolved one by one on copies of their parts, then joined.
Bytes with_groups(const Convolution& c, Bytes one_group, Bytes parts, Bytes joined) {
  return c.groups() == 1 ? one_group : std::max(joined, one_group + parts / c.groups());
}

/// Bytes of the points that a strided convolution by a kernel of one element reads, of one sample.
Bytes strided_points(const Convolution& c) {
  if (c.kernel() != 1 || c.all("stride", 1) || c.transposed()) {
    return 0;
  }
  return columns_of_sample(c);
}

Bytes workspace_of_convolution(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c, columns(c, true, true), c.x.bytes(), c.y.bytes());
  }
  const Blocks b = blocks_of(c, true);
  if (c.transposed()) {
    return 2 * b.y;
  }
  return std::max(b.x + b.weight + b.y - c.y.bytes() + strided_points(c), b.y);
}

Bytes workspace_of_backward_input(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c, columns(c, false, false), 0, c.x.bytes());
  }
  const Blocks b = blocks_of(c, false);
  const Bytes strided = strided_points(c) > 0 ? b.x : 0;
  return std::max(b.y + b.weight + b.x - c.x.bytes(), b.x) + strided;
}

}  // namespace

Bytes workspace_convolution(const OpView& op) {
  const TensorType made = made_of_windows(op);
  const Convolution c{op.attributes, op.inputs[0], op.inputs[1], made, kernel_padding(op)};
  return workspace_with_crop(made, op.results[0], workspace_of_convolution(c));
}

Bytes workspace_convolution_backward_input(const OpView& op) {
  const TensorType made = made_of_windows(op);
  const Convolution c{op.attributes, made, op.inputs[1], op.inputs[0], kernel_padding(op)};
  return workspace_with_crop(made, op.results[0], workspace_of_backward_input(c));
}

Bytes workspace_convolution_backward_weight(const OpView& op) {
  const Convolution c{op.attributes, op.inputs[1], op.results[0], op.inputs[0], kernel_padding(op)};
  if (!on_onednn(c)) {
    return with_groups(c, columns(c, true, false), c.x.bytes() + c.y.bytes(), c.weight.bytes());
  }
  const Blocks b = blocks_of(c, true);
  return std::max(b.x + b.weight + b.y - c.weight.bytes() + strided_points(c), b.weight);
}

}  // namespace shardplan::ops
