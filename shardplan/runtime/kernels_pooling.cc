#include <ATen/Parallel.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/avg_pool3d_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/unread.h"

// Pooling of [batch, channels, space...]. One dimension of space is done as two, of which the first
// has size 1, where ATen has no more.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

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

  explicit Windows(const KernelCall& call)
      : kernel(at_least_two(call.attributes.ints("kernel"), 1)),
        stride(at_least_two(call.attributes.ints("stride"), 1)),
        padding(at_least_two(call.attributes.ints("padding"), 0)),
        ceil(call.attributes.flag_or("ceil", false)) {
    for (const ops::CutWindow& cut : call.cut) {
      padding[padding.size() - static_cast<std::size_t>(call.input(0).dim() - cut.halo.dim)] = 0;
    }
  }

  [[nodiscard]] bool is_flat() const { return kernel.size() == 2; }
};

Tensors in_result_shapes(const KernelCall& call, const Tensors& tensors) {
  Tensors out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.push_back(tensors[i].contiguous().view(call.results[i].shape));
  }
  return out;
}

/// Places in a part with its halo become places in the whole.
void count_over_all_of_space(const KernelCall& call, const at::Tensor& places) {
  struct Dim {
    ops::Rows here;     ///< of the whole, together with the halo
    std::int64_t size;  ///< of the whole
  };
  const at::Tensor& x = call.input(0);
  std::vector<Dim> dims;  // the last one first
  for (int d = static_cast<int>(x.dim()) - 1; d >= 2; --d) {
    const ops::CutWindow* const cut = call.cut_along(d);
    dims.push_back(cut == nullptr ? Dim{{0, x.size(d)}, x.size(d)}
                                  : Dim{{cut->needed.start, x.size(d)}, cut->halo.size});
  }
  auto* const data = places.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < places.numel(); ++i) {
    std::int64_t local = data[i];
    std::int64_t place = 0;
    std::int64_t line = 1;
    for (const Dim& dim : dims) {
      const std::int64_t at = dim.here.start + local % dim.here.size;
      local /= dim.here.size;
      // Where all that a window sees is minus infinity, it may have stopped outside.
      place += line * std::clamp<std::int64_t>(at, 0, dim.size - 1);
      line *= dim.size;
    }
    data[i] = place;
  }
}

Tensors max_pool(const KernelCall& call) {
  const Windows w(call);
  const ir::IntList dilation = at_least_two(call.attributes.ints("dilation"), 1);
  const at::Tensor x = at_least_two(call.input(0));
  auto [y, places] =
      w.is_flat() ? at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, dilation, w.ceil)
                  : at::max_pool3d_with_indices(x, w.kernel, w.stride, w.padding, dilation, w.ceil);
  Tensors results = in_result_shapes(call, {y, places});
  if (!call.cut.empty()) {
    count_over_all_of_space(call, results[1]);
  }
  return results;
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

// The means of a part are taken window by window: what they are divided by depends on the place in
// the whole.

/// One window along one dimension: elements [first, last) of the part, and its share of the
/// divisor.
struct Span {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t count = 1;
};

/// The windows of a part along dimension `dim`, over the elements of a part. `forward`: of operand
/// 0 are the elements, of result 0 the windows; or the other way round.
std::vector<Span> spans_along(const KernelCall& call, int dim, bool forward) {
  const auto d = static_cast<std::size_t>(dim);
  const std::int64_t x_size = forward ? call.input(0).size(dim) : call.results[0].shape[d];
  const std::int64_t y_size = forward ? call.results[0].shape[d] : call.input(0).size(dim);
  const std::int64_t kernel = call.attributes.ints("kernel")[d - 2];
  const std::int64_t stride = call.attributes.ints("stride")[d - 2];
  const std::int64_t padding = call.attributes.ints("padding")[d - 2];
  const bool counts = call.attributes.flag_or("count_padding", true);
  ops::Rows elements{0, x_size};
  ops::Rows windows{0, y_size};
  ops::Rows all_elements = elements;
  ops::Rows all_windows = windows;
  if (const ops::CutWindow* const cut = call.cut_along(dim); cut != nullptr) {
    elements = forward ? cut->needed : cut->own;
    windows = forward ? cut->own : cut->needed;
    all_elements = {0, forward ? cut->halo.size : cut->halo.own_size};
    all_windows = {0, forward ? cut->halo.own_size : cut->halo.size};
  }
  std::vector<Span> spans;
  for (std::int64_t w = windows.start; w < windows.end(); ++w) {
    Span& span = spans.emplace_back();
    if (w < 0 || w >= all_windows.size) {
      continue;
    }
    const ops::Rows padded =
        ops::Rows{w * stride - padding, kernel}.within({-padding, all_elements.size + 2 * padding});
    const ops::Rows inside = padded.within(all_elements);
    const ops::Rows here = inside.within(elements);
    span = {here.start - elements.start,
            here.end() - elements.start,
            std::max<std::int64_t>(1, counts ? padded.size : inside.size)};
  }
  return spans;
}

/// Of three dimensions of space, the first of which may be none.
std::array<std::vector<Span>, 3> spans_of(const KernelCall& call, bool forward) {
  std::array<std::vector<Span>, 3> spans;
  const std::int64_t missing = 5 - call.input(0).dim();
  for (std::int64_t d = 0; d < 3; ++d) {
    spans[static_cast<std::size_t>(d)] =
        d < missing ? std::vector<Span>{{0, 1, 1}}
                    : spans_along(call, static_cast<int>(d - missing) + 2, forward);
  }
  return spans;
}

/// Calls body(window, elements of a row: offset and number, divisor) for every window and every row
/// of elements in it. Offsets count from the start of the plane.
template <class Body>
void for_each_window(const KernelCall& call,
                     const std::array<std::vector<Span>, 3>& spans,
                     at::IntArrayRef elements,
                     const Body& body) {
  const std::int64_t width = elements.back();
  const std::int64_t height = elements.size() > 3 ? elements[elements.size() - 2] : 1;
  const std::optional<std::int64_t> divisor = divisor_of(call);
  std::int64_t window = 0;
  for (const Span& a : spans[0]) {
    for (const Span& b : spans[1]) {
      for (const Span& c : spans[2]) {
        const std::int64_t count = divisor.value_or(a.count * b.count * c.count);
        for (std::int64_t i = a.first; i < a.last; ++i) {
          for (std::int64_t j = b.first; j < b.last; ++j) {
            body(window, (i * height + j) * width + c.first, c.last - c.first, count);
          }
        }
        ++window;
      }
    }
  }
}

/// Calls body with a number of the element type of a floating tensor.
template <class Body>
void with_element_type(const at::Tensor& tensor, const Body& body) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return body(double{});
    case at::kFloat:
      return body(float{});
    case at::kBFloat16:
      return body(c10::BFloat16{});
    case at::kHalf:
      return body(c10::Half{});
    default:
      SHARDPLAN_CHECK(false) << "not a floating tensor";
  }
}

/// Planes of a tensor: [batch · channels, space].
std::int64_t plane_size(const at::Tensor& tensor) {
  return tensor.numel() / std::max<std::int64_t>(1, tensor.size(0) * tensor.size(1));
}

/// Calls body(plane) for all planes, on ATen's threads.
template <class Body>
void for_each_plane(const at::Tensor& tensor, const Body& body) {
  at::parallel_for(0,
                   tensor.size(0) * tensor.size(1),
                   /*grain_size=*/1,
                   [&](std::int64_t from, std::int64_t to) {
                     for (std::int64_t plane = from; plane < to; ++plane) {
                       body(plane);
                     }
                   });
}

Tensors means_of_part(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor y = at::zeros(call.results[0].shape, x.options());
  const auto spans = spans_of(call, true);
  with_element_type(x, [&](auto zero) {
    using T = decltype(zero);
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    for_each_plane(x, [&](std::int64_t plane) {
      const T* const from = x.const_data_ptr<T>() + plane * plane_size(x);
      T* const to = y.data_ptr<T>() + plane * plane_size(y);
      std::vector<C> sums(static_cast<std::size_t>(plane_size(y)), C{0});
      std::vector<std::int64_t> counts(sums.size(), 1);
      for_each_window(call, spans, x.sizes(), [&](auto window, auto first, auto size, auto count) {
        const auto w = static_cast<std::size_t>(window);
        counts[w] = count;
        for (std::int64_t i = first; i < first + size; ++i) {
          sums[w] += static_cast<C>(from[i]);
        }
      });
      for (std::size_t w = 0; w < sums.size(); ++w) {
        to[w] = static_cast<T>(sums[w] / static_cast<C>(counts[w]));
      }
    });
  });
  return {y};
}

Tensors gradient_of_means_of_part(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  at::Tensor dx = at::zeros(call.results[0].shape, g.options());
  const auto spans = spans_of(call, false);
  with_element_type(g, [&](auto zero) {
    using T = decltype(zero);
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    for_each_plane(g, [&](std::int64_t plane) {
      const T* const from = g.const_data_ptr<T>() + plane * plane_size(g);
      T* const to = dx.data_ptr<T>() + plane * plane_size(dx);
      for_each_window(call, spans, dx.sizes(), [&](auto window, auto first, auto size, auto count) {
        const C share = static_cast<C>(from[window]) / static_cast<C>(count);
        for (std::int64_t i = first; i < first + size; ++i) {
          to[i] = static_cast<T>(static_cast<C>(to[i]) + share);
        }
      });
    });
  });
  return {dx};
}

/// Where this rank has an element, given by its place in the whole; -1 where another one has it.
class OwnPlaces {
 public:
  explicit OwnPlaces(const KernelCall& call) {
    const ir::Shape& shape = call.results[0].shape;
    for (std::size_t d = 2; d < shape.size(); ++d) {
      const ops::CutWindow* const cut = call.cut_along(static_cast<int>(d));
      dims_.push_back(cut == nullptr ? Dim{shape[d], {0, shape[d]}}
                                     : Dim{cut->halo.own_size, cut->own});
    }
  }

  [[nodiscard]] std::int64_t operator()(std::int64_t place) const {
    if (place < 0) {
      return -1;
    }
    std::int64_t own = 0;
    std::int64_t line = 1;
    for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
      const std::int64_t at = place % dim->size - dim->own.start;
      if (at < 0 || at >= dim->own.size) {
        return -1;
      }
      place /= dim->size;
      own += line * at;
      line *= dim->own.size;
    }
    return own;
  }

 private:
  struct Dim {
    std::int64_t size;
    ops::Rows own;
  };
  std::vector<Dim> dims_;
};

Tensors max_pool_backward(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  at::Tensor dx = at::zeros(call.results[0].shape, g.options());
  const OwnPlaces own(call);
  with_element_type(g, [&](auto zero) {
    using T = decltype(zero);
    for_each_plane(g, [&](std::int64_t plane) {
      const std::int64_t windows = plane_size(g);
      const T* const from = g.const_data_ptr<T>() + plane * windows;
      const auto* const places = call.input(1).const_data_ptr<std::int64_t>() + plane * windows;
      T* const to = dx.data_ptr<T>() + plane * plane_size(dx);
      for (std::int64_t w = 0; w < windows; ++w) {
        if (const std::int64_t at = own(places[w]); at >= 0) {
          to[at] += from[w];
        }
      }
    });
  });
  return {dx};
}

Tensors avg_pool(const KernelCall& call) {
  if (!call.cut.empty()) {
    return means_of_part(call);
  }
  const Windows w(call);
  const bool counts = call.attributes.flag_or("count_padding", true);
  const at::Tensor x = at_least_two(call.input(0));
  const at::Tensor y =
      w.is_flat()
          ? at::avg_pool2d(x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor_of(call))
          : at::avg_pool3d(x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor_of(call));
  return in_result_shapes(call, {y});
}

Tensors avg_pool_backward(const KernelCall& call) {
  if (!call.cut.empty()) {
    return gradient_of_means_of_part(call);
  }
  const Windows w(call);
  const bool counts = call.attributes.flag_or("count_padding", true);
  const at::Tensor g = at_least_two(call.input(0));
  const at::Tensor x = at_least_two(unread(call.results[0].shape, g.options()));
  const std::optional<std::int64_t> divisor = divisor_of(call);
  const at::Tensor dx =
      w.is_flat()
          ? at::avg_pool2d_backward(g, x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor)
          : at::avg_pool3d_backward(g, x, w.kernel, w.stride, w.padding, w.ceil, counts, divisor);
  return in_result_shapes(call, {dx});
}

}  // namespace

std::vector<KernelEntry> pooling_kernels() {
  return {
      {"max_pool", max_pool},
      {"max_pool_backward", max_pool_backward},
      {"adaptive_max_pool", adaptive_max_pool},
      {"avg_pool", avg_pool},
      {"avg_pool_backward", avg_pool_backward},
  };
}

}  // namespace shardplan::runtime
