#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward.h>
#include <ATen/ops/_upsample_nearest_exact3d.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/avg_pool3d_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bicubic2d_backward.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_linear1d_backward.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest1d_backward.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_nearest3d_backward.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/upsample_trilinear3d_backward.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>
#include <utility>

#include "shardplan/runtime/kernel.h"

// Pooling and interpolation of [batch, channels, space...]. One dimension of space is done as two,
// of which the first has size 1, where ATen has no more.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

// ---- pooling ----

/// A list for two dimensions of space where there is one.
ir::IntList at_least_two(const ir::IntList& list, std::int64_t filler) {
  return list.size() == 1 ? ir::IntList{filler, list[0]} : list;
}

at::Tensor at_least_two(const at::Tensor& x) {
  return x.dim() == 3 ? x.unsqueeze(2) : x;
}

struct Windows {
  ir::IntList kernel;
  ir::IntList stride;
  ir::IntList padding;
  bool ceil;

  explicit Windows(const ir::Attributes& a)
      : kernel(at_least_two(a.ints("kernel"), 1)),
        stride(at_least_two(a.ints("stride"), 1)),
        padding(at_least_two(a.ints("padding"), 0)),
        ceil(a.flag_or("ceil", false)) {}

  [[nodiscard]] bool is_flat() const { return kernel.size() == 2; }
};

Tensors in_result_shapes(const KernelCall& call, const Tensors& tensors) {
  Tensors out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.push_back(tensors[i].contiguous().view(call.results[i].shape));
  }
  return out;
}

Tensors max_pool(const KernelCall& call) {
  const Windows w(call.attributes);
  const ir::IntList dilation = at_least_two(call.attributes.ints("dilation"), 1);
  const at::Tensor x = at_least_two(call.input(0));
  auto [y, places] =
      w.is_flat() ? at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, dilation, w.ceil)
                  : at::max_pool3d_with_indices(x, w.kernel, w.stride, w.padding, dilation, w.ceil);
  return in_result_shapes(call, {y, places});
}

Tensors adaptive_max_pool(const KernelCall& call) {
  const ir::IntList size = at_least_two(call.attributes.ints("size"), 1);
  const at::Tensor x = at_least_two(call.input(0));
  auto [y, places] =
      size.size() == 2 ? at::adaptive_max_pool2d(x, size) : at::adaptive_max_pool3d(x, size);
  return in_result_shapes(call, {y, places});
}

std::optional<std::int64_t> divisor_of(const KernelCall& call) {
  return call.attributes.has("divisor") ? std::optional(call.attributes.integer("divisor"))
                                        : std::nullopt;
}

Tensors avg_pool(const KernelCall& call) {
  const Windows w(call.attributes);
  const bool counts = call.attributes.flag_or("count_padding", true);
  const at::Tensor x = at_least_two(call.input(0));
  const at::Tensor y =
      w.is_flat()
          ? at::avg_pool2d(x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor_of(call))
          : at::avg_pool3d(x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor_of(call));
  return in_result_shapes(call, {y});
}

Tensors avg_pool_backward(const KernelCall& call) {
  const Windows w(call.attributes);
  const bool counts = call.attributes.flag_or("count_padding", true);
  const at::Tensor g = at_least_two(call.input(0));
  // ATen reads the shape of x only: over memory that may be too small for it, so that none is
  // taken.
  const at::Tensor x =
      at_least_two(at::from_blob(g.data_ptr(), call.results[0].shape, g.options()));
  const std::optional<std::int64_t> divisor = divisor_of(call);
  const at::Tensor dx =
      w.is_flat()
          ? at::avg_pool2d_backward(g, x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor)
          : at::avg_pool3d_backward(g, x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor);
  return in_result_shapes(call, {dx});
}

// ---- interpolation ----

struct Resampling {
  std::string mode;
  bool align;
  std::vector<std::optional<double>> scale;  ///< of three dimensions

  explicit Resampling(const ir::Attributes& a)
      : mode(a.string("mode")), align(a.flag_or("align_corners", false)) {
    for (const char* const name : {"scale0", "scale1", "scale2"}) {
      scale.push_back(a.has(name) ? std::optional(a.number(name)) : std::nullopt);
    }
  }
};

at::Tensor resampled(const at::Tensor& x, const ir::IntList& size, const Resampling& r) {
  const auto& s = r.scale;
  const bool exact = r.mode == "nearest_exact";
  if (r.mode == "cubic") {
    return at::upsample_bicubic2d(x, size, r.align, s[0], s[1]);
  }
  const bool linear = r.mode == "linear";
  switch (size.size()) {
    case 1:
      return linear  ? at::upsample_linear1d(x, size, r.align, s[0])
             : exact ? at::_upsample_nearest_exact1d(x, size, s[0])
                     : at::upsample_nearest1d(x, size, s[0]);
    case 2:
      return linear  ? at::upsample_bilinear2d(x, size, r.align, s[0], s[1])
             : exact ? at::_upsample_nearest_exact2d(x, size, s[0], s[1])
                     : at::upsample_nearest2d(x, size, s[0], s[1]);
    default:
      return linear  ? at::upsample_trilinear3d(x, size, r.align, s[0], s[1], s[2])
             : exact ? at::_upsample_nearest_exact3d(x, size, s[0], s[1], s[2])
                     : at::upsample_nearest3d(x, size, s[0], s[1], s[2]);
  }
}

/// Of `g`, whose sizes of space are `size`, for an operand of the shape `x`.
at::Tensor resampled_backward(const at::Tensor& g,
                              const ir::IntList& size,
                              const ir::Shape& x,
                              const Resampling& r) {
  const auto& s = r.scale;
  const bool exact = r.mode == "nearest_exact";
  if (r.mode == "cubic") {
    return at::upsample_bicubic2d_backward(g, size, x, r.align, s[0], s[1]);
  }
  const bool linear = r.mode == "linear";
  switch (size.size()) {
    case 1:
      return linear  ? at::upsample_linear1d_backward(g, size, x, r.align, s[0])
             : exact ? at::_upsample_nearest_exact1d_backward(g, size, x, s[0])
                     : at::upsample_nearest1d_backward(g, size, x, s[0]);
    case 2:
      return linear  ? at::upsample_bilinear2d_backward(g, size, x, r.align, s[0], s[1])
             : exact ? at::_upsample_nearest_exact2d_backward(g, size, x, s[0], s[1])
                     : at::upsample_nearest2d_backward(g, size, x, s[0], s[1]);
    default:
      return linear  ? at::upsample_trilinear3d_backward(g, size, x, r.align, s[0], s[1], s[2])
             : exact ? at::_upsample_nearest_exact3d_backward(g, size, x, s[0], s[1], s[2])
                     : at::upsample_nearest3d_backward(g, size, x, s[0], s[1], s[2]);
  }
}

Tensors resample(const KernelCall& call) {
  const at::Tensor y =
      resampled(call.input(0), call.attributes.ints("size"), Resampling(call.attributes));
  return {y.contiguous()};
}

Tensors resample_backward(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  const ir::IntList size(g.sizes().begin() + 2, g.sizes().end());
  const at::Tensor dx =
      resampled_backward(g, size, call.results[0].shape, Resampling(call.attributes));
  return {dx.contiguous()};
}

// ---- elements at fixed places ----

at::Tensor places_of(const KernelCall& call) {
  const ir::IntList& places = call.attributes.ints("places");
  return at::tensor(places, at::TensorOptions(at::kLong)).to(call.input(0).device());
}

Tensors take(const KernelCall& call) {
  return {call.input(0).index_select(call.attributes.integer("dim"), places_of(call))};
}

Tensors take_backward(const KernelCall& call) {
  const at::Tensor result = at::zeros(call.results[0].shape, call.input(0).options());
  return {result.index_add_(call.attributes.integer("dim"), places_of(call), call.input(0))};
}

}  // namespace

std::vector<KernelEntry> pooling_kernels() {
  return {
      {"max_pool", max_pool},
      {"adaptive_max_pool", adaptive_max_pool},
      {"avg_pool", avg_pool},
      {"avg_pool_backward", avg_pool_backward},
      {"resample", resample},
      {"resample_backward", resample_backward},
      {"take", take},
      {"take_backward", take_backward},
  };
}

}  // namespace shardplan::runtime
