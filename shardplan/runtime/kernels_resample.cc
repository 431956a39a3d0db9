#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward.h>
#include <ATen/ops/_upsample_nearest_exact3d.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward.h>
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
#include <string>
#include <utility>

#include "shardplan/runtime/kernel.h"

// Interpolation of [batch, channels, space...], and what is chosen by constant places.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

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

/// The shape of what is made of a part with its halos, which are one place of the smaller side
/// wide.
ir::Shape made_shape(const KernelCall& call) {
  ir::Shape shape = call.results[0].shape;
  for (const ops::CutWindow& cut : call.cut) {
    std::int64_t& size = shape[static_cast<std::size_t>(cut.halo.dim)];
    size += 2 * size / cut.own.size;
  }
  return shape;
}

/// The part without its halos. In the gradient, what a place beyond the edge got is the edge's.
at::Tensor own_part(const KernelCall& call, at::Tensor made, bool backward) {
  for (const ops::CutWindow& cut : call.cut) {
    const int dim = cut.halo.dim;
    const std::int64_t size = made.size(dim);
    if (backward && cut.own.start == 0) {
      made.narrow(dim, 1, 1).add_(made.narrow(dim, 0, 1));
    }
    if (backward && cut.own.end() == cut.halo.own_size) {
      made.narrow(dim, size - 2, 1).add_(made.narrow(dim, size - 1, 1));
    }
  }
  if (call.cut.empty()) {
    return made.contiguous();
  }
  for (const ops::CutWindow& cut : call.cut) {
    const int dim = cut.halo.dim;
    const std::int64_t own = call.results[0].shape[static_cast<std::size_t>(dim)];
    made = made.narrow(dim, (made.size(dim) - own) / 2, own);
  }
  return made.clone(at::MemoryFormat::Contiguous);
}

Tensors resample(const KernelCall& call) {
  const ir::Shape shape = made_shape(call);
  const ir::IntList size(shape.begin() + 2, shape.end());
  return {own_part(call, resampled(call.input(0), size, Resampling(call.attributes)), false)};
}

Tensors resample_backward(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  const ir::IntList size(g.sizes().begin() + 2, g.sizes().end());
  return {own_part(
      call, resampled_backward(g, size, made_shape(call), Resampling(call.attributes)), true)};
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

std::vector<KernelEntry> resample_kernels() {
  return {
      {"resample", resample},
      {"resample_backward", resample_backward},
      {"take", take},
      {"take_backward", take_backward},
  };
}

}  // namespace shardplan::runtime
