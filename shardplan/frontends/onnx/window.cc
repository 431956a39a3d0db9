#include "shardplan/frontends/onnx/window.h"

#include <algorithm>

namespace shardplan::frontends::onnx {

using ir::IntList;
using ir::Shape;
using ir::ValueId;

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;

/// SAME pads so that there are size / stride positions, rounded up.
void pad_same(Window& w, const Shape& x, bool upper) {
  for (std::size_t d = 0; d < w.rank; ++d) {
    const std::int64_t size = x[d + 2];
    const std::int64_t wanted = (size + w.stride[d] - 1) / w.stride[d];
    const std::int64_t total =
        std::max<std::int64_t>((wanted - 1) * w.stride[d] + w.reach(d) + 1 - size, 0);
    w.before[d] = upper ? total / 2 : total - total / 2;
    w.after[d] = total - w.before[d];
  }
}

}  // namespace

bool in_range(const IntList& list, std::size_t rank, std::int64_t least) {
  return list.size() == rank && std::all_of(list.begin(), list.end(), [&](std::int64_t x) {
           return x >= least && x <= kMost;
         });
}

IntList list_or(Call& c, std::string_view name, std::size_t rank, std::int64_t fallback) {
  return c.has(name) ? c.integers(name) : IntList(rank, fallback);
}

std::optional<Window> window_of(Call& c, const IntList& kernel, const Shape& x) {
  Window w;
  w.rank = kernel.size();
  w.kernel = kernel;
  w.stride = list_or(c, "strides", w.rank, 1);
  w.dilation = list_or(c, "dilations", w.rank, 1);
  const IntList pads = list_or(c, "pads", 2 * w.rank, 0);
  const bool small = std::all_of(x.begin(), x.end(), [](std::int64_t d) { return d <= kMost; });
  if (!c.ok() || w.rank < 1 || w.rank > 3 || x.size() != w.rank + 2 || !small ||
      !in_range(w.kernel, w.rank, 1) || !in_range(w.stride, w.rank, 1) ||
      !in_range(w.dilation, w.rank, 1) || !in_range(pads, 2 * w.rank, 0)) {
    c.invalid(
        "its kernel, strides, dilations and pads do not fit an operand with 1 to 3 spatial "
        "dimensions");
    return std::nullopt;
  }
  const auto half = pads.begin() + static_cast<std::ptrdiff_t>(w.rank);
  w.before.assign(pads.begin(), half);
  w.after.assign(half, pads.end());
  const std::string automatic = c.text("auto_pad", "NOTSET");
  if (automatic == "VALID") {
    w.before.assign(w.rank, 0);
    w.after.assign(w.rank, 0);
  } else if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    pad_same(w, x, automatic == "SAME_UPPER");
  } else if (automatic != "NOTSET") {
    c.invalid("the attribute 'auto_pad' is " + automatic);
    return std::nullopt;
  }
  return w;
}

ValueId with_pads(
    Builder& b, ValueId x, const IntList& before, const IntList& after, double value) {
  for (std::size_t d = 0; d < before.size(); ++d) {
    if (before[d] > 0 || after[d] > 0) {
      x = b.emit("pad",
                 {x},
                 {{"dim", static_cast<std::int64_t>(d + 2)},
                  {"before", before[d]},
                  {"after", after[d]},
                  {"value", value}});
    }
  }
  return x;
}

}  // namespace shardplan::frontends::onnx
