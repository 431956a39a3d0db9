#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <tuple>

#include "shardplan/runtime/kernel.h"

// Convolutions and their gradients. The number of groups is that of this rank's shards.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Window {
  ir::IntList stride;
  ir::IntList padding;
  ir::IntList dilation;
  ir::IntList output_padding;
  bool transposed;

  explicit Window(const ir::Attributes& a)
      : stride(a.ints("stride")),
        padding(a.ints("padding")),
        dilation(a.ints("dilation")),
        output_padding(a.ints("output_padding")),
        transposed(a.flag_or("transposed", false)) {}
};

/// Groups of the shards: channels of x over those of x in a group; for a transposed convolution,
/// channels of the result over those in a group.
std::int64_t groups_of(const Window& window,
                       std::int64_t x_channels,
                       std::int64_t result_channels,
                       std::int64_t weight_channels) {
  return (window.transposed ? result_channels : x_channels) / weight_channels;
}

Tensors convolution(const KernelCall& call) {
  const Window window(call.attributes);
  const at::Tensor& x = call.input(0);
  const at::Tensor& weight = call.input(1);
  const std::int64_t groups =
      groups_of(window, x.size(1), call.results[0].shape[1], weight.size(1));
  return {at::convolution(x,
                          weight,
                          std::nullopt,
                          window.stride,
                          window.padding,
                          window.dilation,
                          window.transposed,
                          window.output_padding,
                          groups)
              .contiguous()};
}

/// ATen's backward of one operand, of which it reads the shape only.
at::Tensor backward(const KernelCall& call,
                    const at::Tensor& x,
                    const at::Tensor& weight,
                    bool of_weight) {
  const Window window(call.attributes);
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
  return (of_weight ? dweight : dx).contiguous();
}

/// A tensor of the result's shape for an argument of which only the shape is read: over memory that
/// may be too small for it, so that none is taken.
at::Tensor unread(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  return at::from_blob(g.data_ptr(), call.results[0].shape, g.options());
}

Tensors convolution_backward_input(const KernelCall& call) {
  return {backward(call, unread(call), call.input(1), false)};
}

Tensors convolution_backward_weight(const KernelCall& call) {
  return {backward(call, call.input(1), unread(call), true)};
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
