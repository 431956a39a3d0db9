// Pooling. Pads that ATen's pools do not take are added before.

#include <algorithm>
#include <limits>
#include <numeric>

#include "shardplan/frontends/index_space.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/window.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// Pads at the end so that rounding down gives as many positions as the node asks for.
void apply_ceil(Window& w, const Shape& x) {
  for (std::size_t d = 0; d < w.rank; ++d) {
    const std::int64_t size = x[d + 2];
    const std::int64_t room = size + w.before[d] + w.after[d] - w.reach(d) - 1;
    std::int64_t count = room < 0 ? 0 : (room + w.stride[d] - 1) / w.stride[d] + 1;
    // A window that would start in the pads at the end is left out.
    if (count > 0 && (count - 1) * w.stride[d] >= size + w.before[d]) {
      --count;
    }
    const std::int64_t needed = (count - 1) * w.stride[d] + w.reach(d) + 1 - size - w.before[d];
    w.after[d] = std::max(needed, w.after[d]);
  }
}

Shape pooled_shape(const Window& w, const Shape& x) {
  Shape out{x[0], x[1]};
  for (std::size_t d = 0; d < w.rank; ++d) {
    out.push_back(w.positions(d, x[d + 2]));
  }
  return out;
}

std::optional<Window> pool_window(Call& c) {
  const Shape x = c.type(0).shape;
  std::optional<Window> w = window_of(c, c.integers("kernel_shape"), x);
  if (!w.has_value()) {
    return w;
  }
  if (c.flag("ceil_mode", false) && c.text("auto_pad", "NOTSET") == "NOTSET") {
    apply_ceil(*w, x);
  }
  const Shape shape = pooled_shape(*w, x);
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t d) { return d < 1; })) {
    c.invalid("its kernel is larger than its operand");
    return std::nullopt;
  }
  return w;
}

/// Whether ATen's pools take the pads themselves.
bool takes_pads(const Window& w) {
  for (std::size_t d = 0; d < w.rank; ++d) {
    if (2 * w.before[d] > w.kernel[d]) {
      return false;
    }
  }
  return w.symmetric();
}

/// Indices into one plane become indices into the whole tensor.
ValueId whole_indices(Builder& b, ValueId indices, const Shape& x) {
  const std::int64_t plane =
      std::accumulate(x.begin() + 2, x.end(), std::int64_t{1}, std::multiplies<>());
  Shape line(x.size(), 1);
  const auto counted = [&](std::size_t dim, std::int64_t factor) {
    Shape shape = line;
    shape[dim] = x[dim];
    const ValueId iota = b.emit(
        "iota",
        {},
        {{"shape", shape}, {"dim", static_cast<std::int64_t>(dim)}, {"dtype", std::string("i64")}});
    return b.emit("scale", {iota}, {{"factor", static_cast<double>(factor)}});
  };
  const ValueId planes = b.emit("add", {counted(0, plane * x[1]), counted(1, plane)});
  return b.emit("add", {indices, planes});
}

void map_max_pool(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  std::optional<Window> w = pool_window(c);
  if (!w.has_value()) {
    return;
  }
  const bool padded = !takes_pads(*w);
  if (c.wants(1) && (c.flag("storage_order", false) || padded)) {
    c.unsupported("with indices is supported in row-major order and with equal pads only");
    return;
  }
  const bool floating = ir::is_floating(type.dtype);
  if (!floating) {
    x = cast_to(b, x, DType::kFloat32);
  }
  if (padded) {
    x = with_pads(b, x, w->before, w->after, -std::numeric_limits<double>::infinity());
    w->before.assign(w->rank, 0);
  }
  if (!c.ok()) {
    return;
  }
  const std::vector<ValueId> made = b.emit_all("max_pool",
                                               {x},
                                               {{"kernel", w->kernel},
                                                {"stride", w->stride},
                                                {"padding", w->before},
                                                {"dilation", w->dilation},
                                                {"ceil", false}});
  if (!c.ok()) {
    return;
  }
  c.result(cast_to(b, made[0], type.dtype));
  if (c.wants(1)) {
    c.result(whole_indices(b, made[1], type.shape), 1);
  }
}

/// How many elements of x, pads of the node left out or counted, each position sees.
std::optional<ConstTensor> counts(
    const Window& w, const Shape& x, DType dtype, bool with_padding, const IntList& own_after) {
  Shape shape{1, 1};
  for (std::size_t d = 0; d < w.rank; ++d) {
    shape.push_back(w.positions(d, x[d + 2]));
  }
  const auto seen = [&](std::size_t d, std::int64_t position) {
    std::int64_t count = 0;
    for (std::int64_t k = 0; k < w.kernel[d]; ++k) {
      const std::int64_t at = position * w.stride[d] + k * w.dilation[d];
      const std::int64_t low = with_padding ? 0 : w.before[d];
      const std::int64_t high = w.before[d] + x[d + 2] + (with_padding ? own_after[d] : 0);
      count += at >= low && at < high ? 1 : 0;
    }
    return count;
  };
  if (!element_count(shape, ConstTensor::kMaxElements).has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  for_each_index(shape, [&](const Shape& index) {
    double count = 1;
    for (std::size_t d = 0; d < w.rank; ++d) {
      count *= static_cast<double>(seen(d, index[d + 2]));
    }
    elements.push_back(Number::of(1.0 / std::max(count, 1.0)));
  });
  return from_compact({dtype, shape}, shape, std::move(elements));
}

/// Sums under the kernel: a convolution of each channel with ones.
ValueId window_sums(Builder& b, ValueId x, const Window& w) {
  const TensorType type = b.type(x);
  Shape kernel{type.shape[1], 1};
  kernel.insert(kernel.end(), w.kernel.begin(), w.kernel.end());
  const ValueId ones = b.emit(
      "full",
      {},
      {{"shape", kernel}, {"value", 1.0}, {"dtype", std::string(ir::dtype_name(type.dtype))}});
  const ValueId wide = w.symmetric() ? x : with_pads(b, x, w.before, w.after, 0.0);
  return b.emit("convolution",
                {wide, ones},
                {{"stride", w.stride},
                 {"padding", w.symmetric() ? w.before : IntList(w.rank, 0)},
                 {"dilation", w.dilation},
                 {"output_padding", IntList(w.rank, 0)},
                 {"transposed", false},
                 {"groups", type.shape[1]}});
}

void map_average_pool(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const std::optional<Window> w = pool_window(c);
  if (!w.has_value()) {
    return;
  }
  const bool with_padding = c.flag("count_include_pad", false);
  const bool dilated =
      std::any_of(w->dilation.begin(), w->dilation.end(), [](std::int64_t d) { return d != 1; });
  if (takes_pads(*w) && !dilated) {
    c.result(b.emit("avg_pool",
                    {x},
                    {{"kernel", w->kernel},
                     {"stride", w->stride},
                     {"padding", w->before},
                     {"ceil", false},
                     {"count_padding", with_padding}}));
    return;
  }
  // Pads that only rounding up added are never counted.
  IntList own_after(w->rank, 0);
  const IntList pads = list_or(c, "pads", 2 * w->rank, 0);
  const bool automatic = c.text("auto_pad", "NOTSET") != "NOTSET";
  for (std::size_t d = 0; d < w->rank; ++d) {
    own_after[d] = automatic ? w->after[d] : pads[d + w->rank];
  }
  const std::optional<ConstTensor> factors =
      is_narrow(type.dtype) ? std::nullopt
                            : counts(*w, type.shape, type.dtype, with_padding, own_after);
  if (!factors.has_value()) {
    c.unsupported("of this type and size is not supported with uneven pads");
    return;
  }
  const ValueId sums = window_sums(b, x, *w);
  c.result(b.emit("mul", {sums, materialize_compact(b, *factors)}));
}

/// (Σ |x|^p)^(1/p) under the kernel, or over the plane.
void map_lp_pool(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const auto p = static_cast<double>(c.integer("p", 2));
  const bool global = c.ours() == "global";
  const std::int64_t rank = c.rank(0);
  const std::optional<Window> w = global ? std::nullopt : pool_window(c);
  if (!c.ok() || p < 1 || rank < 3 || (!global && !w.has_value())) {
    c.invalid("its operand has no plane, or p is below 1");
    return;
  }
  const ValueId powers = b.emit("pow_scalar", {b.emit("abs", {x})}, {{"exponent", p}});
  ValueId sums;
  if (global) {
    IntList dims(static_cast<std::size_t>(rank - 2));
    std::iota(dims.begin(), dims.end(), 2);
    sums = b.emit("sum", {powers}, {{"dims", dims}, {"keepdim", true}});
  } else if (w.has_value()) {
    sums = window_sums(b, powers, *w);
  }
  c.result(b.emit("pow_scalar", {sums}, {{"exponent", 1.0 / p}}));
}

}  // namespace

std::vector<Row> pooling_rows() {
  return {{"MaxPool", map_max_pool},
          {"AveragePool", map_average_pool},
          {"LpPool", map_lp_pool, "windows"},
          {"GlobalLpPool", map_lp_pool, "global"}};
}

}  // namespace shardplan::frontends::onnx
