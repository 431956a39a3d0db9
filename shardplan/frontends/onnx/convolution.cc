// Convolutions. Their pads may differ at the two ends: what ours do not have is padded
// before.

#include <algorithm>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/window.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::IntList;
using ir::Shape;
using ir::ValueId;

/// The kernel's sizes from an attribute, or from the weight.
IntList kernel_of(Call& c, const Shape& weight) {
  IntList kernel(weight.begin() + std::min<std::ptrdiff_t>(2, std::ssize(weight)), weight.end());
  if (c.has("kernel_shape") && c.integers("kernel_shape") != kernel) {
    c.invalid("the attribute 'kernel_shape' does not fit the weight");
  }
  return kernel;
}

ValueId with_bias(Call& c, ValueId y, std::size_t rank) {
  const ValueId bias = c.tensor_if_given(2);
  if (!bias.valid() || !c.ok()) {
    return y;
  }
  Shape aligned(rank + 1, 1);
  aligned.front() = c.builder().type(bias).numel();
  return c.builder().emit("add", {y, reshape_to(c.builder(), bias, aligned)});
}

void map_convolution(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const ValueId weight = c.tensor(1);
  const IntList kernel = kernel_of(c, c.type(1).shape);
  const std::optional<Window> w = window_of(c, kernel, c.type(0).shape);
  if (!w.has_value()) {
    return;
  }
  if (!w->symmetric()) {
    x = with_pads(b, x, w->before, w->after, 0.0);
  }
  const ValueId y = b.emit("convolution",
                           {x, weight},
                           {{"stride", w->stride},
                            {"padding", w->symmetric() ? w->before : IntList(w->rank, 0)},
                            {"dilation", w->dilation},
                            {"output_padding", IntList(w->rank, 0)},
                            {"transposed", false},
                            {"groups", c.integer("group", 1)}});
  c.result(with_bias(c, y, w->rank));
}

/// Pads of a transposed convolution cut its whole result; `output_shape` tells what is left.
void set_transposed_pads(Call& c, Window& w, const Shape& x, const IntList& extra) {
  const IntList wanted = c.integers("output_shape");
  const std::string automatic = c.text("auto_pad", "NOTSET");
  const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
  if (!c.has("output_shape") && !same) {
    return;
  }
  for (std::size_t d = 0; d < w.rank; ++d) {
    const std::size_t skipped = wanted.size() > w.rank ? wanted.size() - w.rank : 0;
    const std::int64_t size =
        d + skipped < wanted.size() ? wanted[d + skipped] : x[d + 2] * w.stride[d];
    const std::int64_t total = w.stride[d] * (x[d + 2] - 1) + extra[d] + w.reach(d) + 1 - size;
    const std::int64_t half = total < 0 ? (total - 1) / 2 : total / 2;
    w.before[d] = automatic == "SAME_UPPER" ? half : total - half;
    w.after[d] = total - w.before[d];
  }
}

void map_transposed(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const ValueId weight = c.tensor(1);
  const Shape shape = c.type(0).shape;
  std::optional<Window> w = window_of(c, kernel_of(c, c.type(1).shape), shape);
  if (!w.has_value()) {
    return;
  }
  const IntList extra = list_or(c, "output_padding", w->rank, 0);
  if (!in_range(extra, w->rank, 0)) {
    c.invalid("the attribute 'output_padding' does not fit its operand");
    return;
  }
  set_transposed_pads(c, *w, shape, extra);
  // What is cut equally at both ends is the op's padding; the rest is cut or added afterwards.
  IntList padding(w->rank, 0);
  IntList output_padding(w->rank, 0);
  for (std::size_t d = 0; d < w->rank; ++d) {
    if (w->before[d] == w->after[d] && w->before[d] >= 0) {
      padding[d] = w->before[d];
      output_padding[d] = extra[d] < std::max(w->stride[d], w->dilation[d]) ? extra[d] : 0;
    }
  }
  ValueId y = b.emit("convolution",
                     {x, weight},
                     {{"stride", w->stride},
                      {"padding", padding},
                      {"dilation", w->dilation},
                      {"output_padding", output_padding},
                      {"transposed", true},
                      {"groups", c.integer("group", 1)}});
  for (std::size_t d = 0; d < w->rank && c.ok(); ++d) {
    const std::int64_t size = b.type(y).shape[d + 2];
    const std::int64_t start = w->before[d] - padding[d];
    const std::int64_t added = extra[d] - output_padding[d] - (w->after[d] - padding[d]);
    const std::int64_t end = size + std::min<std::int64_t>(added, 0);
    if (std::max<std::int64_t>(start, 0) >= end) {
      c.invalid("its pads leave nothing of its result");
      return;
    }
    y = sliced(b, y, d + 2, std::max<std::int64_t>(start, 0), end);
    IntList before(w->rank, 0);
    IntList after(w->rank, 0);
    before[d] = std::max<std::int64_t>(-start, 0);
    after[d] = std::max<std::int64_t>(added, 0);
    y = with_pads(b, y, before, after, 0.0);
  }
  c.result(with_bias(c, y, w->rank));
}

}  // namespace

std::vector<Row> convolution_rows() {
  return {{"Conv", map_convolution}, {"ConvTranspose", map_transposed}};
}

}  // namespace shardplan::frontends::onnx
