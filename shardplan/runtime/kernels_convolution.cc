#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <array>
#include <tuple>

#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/unread.h"

// Convolutions and their gradients. The number of groups is that of this rank's shards. Along a
// dimension of space that is cut, nothing is padded where the operand has its halo; windows on own
// elements are laid out as far as they reach (ops/halo.h) and the own part is taken of that.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Window {
  ir::IntList stride;
  ir::IntList padding;
  ir::IntList dilation;
  ir::IntList output_padding;
  bool transposed;

  explicit Window(const KernelCall& call)
      : stride(call.attributes.ints("stride")),
        padding(call.attributes.ints("padding")),
        dilation(call.attributes.ints("dilation")),
        output_padding(call.attributes.ints("output_padding")),
        transposed(call.attributes.flag_or("transposed", false)) {
    for (const ops::CutWindow& cut : call.cut) {
      const auto d = static_cast<std::size_t>(cut.halo.dim) - 2;
      padding[d] = cut.halo.windows ? cut.halo.reach() - 1 : 0;
      output_padding[d] = 0;
    }
  }
};

/// The shape of what the windows make, of which the result is a part.
ir::Shape made_shape(const KernelCall& call) {
  ir::Shape shape = call.results[0].shape;
  for (const ops::CutWindow& cut : call.cut) {
    if (cut.halo.windows) {
      shape[static_cast<std::size_t>(cut.halo.dim)] = cut.halo.made(cut.needed.size);
    }
  }
  return shape;
}

at::Tensor own_part(const KernelCall& call, const at::Tensor& made) {
  if (made.sizes() == at::IntArrayRef(call.results[0].shape)) {
    return made.contiguous();
  }
  at::Tensor part = made;
  for (const ops::CutWindow& cut : call.cut) {
    if (cut.halo.windows) {
      part =
          part.narrow(cut.halo.dim, cut.halo.crop(cut.own) - (cut.halo.reach() - 1), cut.own.size);
    }
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

/// Groups of the shards: channels of x over those of x in a group; for a transposed convolution,
/// channels of the result over those in a group.
std::int64_t groups_of(const Window& window,
                       std::int64_t x_channels,
                       std::int64_t result_channels,
                       std::int64_t weight_channels) {
  return (window.transposed ? result_channels : x_channels) / weight_channels;
}

Tensors convolution(const KernelCall& call) {
  const Window window(call);
  const at::Tensor& x = call.input(0);
  const at::Tensor& weight = call.input(1);
  const std::int64_t groups =
      groups_of(window, x.size(1), call.results[0].shape[1], weight.size(1));
  return {own_part(call,
                   at::convolution(x,
                                   weight,
                                   std::nullopt,
                                   window.stride,
                                   window.padding,
                                   window.dilation,
                                   window.transposed,
                                   window.output_padding,
                                   groups))};
}

/// ATen's backward of one operand, of which it reads the shape only.
at::Tensor backward(const KernelCall& call,
                    const at::Tensor& x,
                    const at::Tensor& weight,
                    bool of_weight) {
  const Window window(call);
  const std::int64_t groups = groups_of(window, x.size(1), call.input(0).size(1), weight.size(1));
  const auto [dx, dweight, dbias] = at::convolution_backward(call.input(0),
                                                             x,
                                                             weight,
                                                             std::nullopt,
                                                             window.stride,
                                                             window.padding,
                                                             window.dilation,
                                                             window.transposed,
                                                             window.output_padding,
                                                             groups,
                                                             {!of_weight, of_weight, false});
  return of_weight ? dweight.contiguous() : own_part(call, dx);
}

Tensors convolution_backward_input(const KernelCall& call) {
  return {backward(call, unread(made_shape(call), call.input(0).options()), call.input(1), false)};
}

Tensors convolution_backward_weight(const KernelCall& call) {
  return {
      backward(call, call.input(1), unread(call.results[0].shape, call.input(0).options()), true)};
}

}  // namespace

std::vector<KernelEntry> convolution_kernels() {
  return {
      {"convolution", convolution},
      {"convolution_backward_input", convolution_backward_input},
      {"convolution_backward_weight", convolution_backward_weight},
  };
}

}  // namespace shardplan::runtime
