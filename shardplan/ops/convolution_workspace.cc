#include "shardplan/ops/convolution_workspace.h"

#include <algorithm>

#include "shardplan/ops/convolution_onednn.h"
#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

using ir::TensorType;

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

/// Whether ATen gives the convolution to oneDNN.
bool on_onednn(const Convolution& c) {
  if (c.x.dtype != ir::DType::kFloat32) {
    return c.x.dtype != ir::DType::kFloat64;
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

/// Bytes of the columns of one sample and all its groups: every window written out.
Bytes columns_of_sample(const Convolution& c) {
  std::int64_t windows = 1;
  for (std::size_t d = 2; d < c.inner().shape.size(); ++d) {
    windows *= c.inner().shape[d];
  }
  return c.outer().shape[1] * c.kernel() * windows * ir::element_bytes(c.x.dtype);
}

bool is_product(const Convolution& c) {
  return c.kernel() == 1 && c.all("stride", 1) && c.pads_nothing();
}

/// A pass of a convolution whose columns all samples have at once.
struct WholeColumns {
  bool when_plain;
  bool when_transposed;
  bool of_products;  ///< columns are written out even if they are the operand itself
};

/// Bytes of the columns that are held at a time in one group.
Bytes columns(const Convolution& c, const WholeColumns& whole) {
  const bool deep = c.x.rank() == 5;
  const Bytes sample = columns_of_sample(c) / c.groups();
  if (is_product(c) && !whole.of_products) {
    return 0;
  }
  if (c.transposed()) {
    return whole.when_transposed && !deep ? sample * c.x.shape[0] : sample;
  }
  if (!c.all("dilation", 1)) {
    return sample;
  }
  return deep || whole.when_plain ? sample * c.x.shape[0] : 0;
}

/// Groups are convolved one by one on copies of their parts, then joined; the parts of a single
/// sample lie side by side as they are.
Bytes with_groups(const Convolution& c, Bytes one_group, Bytes parts, Bytes joined) {
  if (c.x.rank() == 5 && !c.transposed() && c.all("dilation", 1)) {  // all groups at once
    return one_group * c.groups();
  }
  const Bytes copied = c.x.shape[0] == 1 ? 0 : parts / c.groups();
  return c.groups() == 1 ? one_group : std::max(joined, one_group + copied);
}

Bytes workspace_of_convolution(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c, columns(c, {true, true, c.transposed()}), c.x.bytes(), c.y.bytes());
  }
  return c.transposed() ? onednn_workspace_of_src(c) : onednn_workspace_of_dst(c);
}

Bytes workspace_of_backward_input(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c,
                       columns(c, {false, false, !c.transposed() && c.x.rank() == 5}),
                       c.x.bytes() + c.y.bytes(),
                       c.x.bytes());
  }
  return c.transposed() ? onednn_workspace_of_dst(c) : onednn_workspace_of_src(c);
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
    return with_groups(
        c, columns(c, {true, false, false}), c.x.bytes() + c.y.bytes(), c.weight.bytes());
  }
  return onednn_workspace_of_weight(c);
}

}  // namespace shardplan::ops
