// Cutting, joining and padding.

#include <algorithm>
#include <limits>
#include <numeric>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// The elements of x at known indices along one dimension.
ValueId selected(Builder& b, ValueId x, std::size_t dim, const IntList& indices) {
  std::vector<Number> elements;
  elements.reserve(indices.size());
  for (const std::int64_t index : indices) {
    elements.push_back(Number::of(index));
  }
  const Shape line{static_cast<std::int64_t>(indices.size())};
  const std::optional<ConstTensor> known =
      from_compact({ir::DType::kInt64, line}, line, std::move(elements));
  TensorType type = b.type(x);
  if (!b.ok()) {
    return x;
  }
  type.shape[dim] = line[0];
  return OperatorCall(b, "aten.index_select.default")
      .tensor("self", x)
      .integer("dim", static_cast<std::int64_t>(dim))
      .tensor("index", materialize(b, known.value_or(ConstTensor())))
      .result(type);
}

constexpr std::int64_t kMostSelected = std::int64_t{1} << 23;

// Slice -------------------------------------------------------------------------------------------

struct Cut {
  std::size_t dim = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

/// Starts, ends, axes and steps as lists of equal length.
std::vector<Cut> cuts_of(Call& c) {
  const bool attributes = c.opset() < 10;
  const IntList starts = attributes ? c.integers("starts") : c.known_integers(1, "starts");
  const IntList ends = attributes ? c.integers("ends") : c.known_integers(2, "ends");
  IntList axes(starts.size());
  std::iota(axes.begin(), axes.end(), 0);
  axes = attributes ? (c.has("axes") ? c.integers("axes") : axes)
                    : (c.given(3) ? c.known_integers(3, "axes") : axes);
  const IntList steps =
      !attributes && c.given(4) ? c.known_integers(4, "steps") : IntList(starts.size(), 1);
  const Shape shape = c.type(0).shape;
  if (!c.ok() || ends.size() != starts.size() || axes.size() != starts.size() ||
      steps.size() != starts.size()) {
    c.invalid("its starts, ends, axes and steps differ in length");
    return {};
  }
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Cut cut{c.dim(axes[i], c.rank(0)), starts[i], ends[i], steps[i]};
    if (!c.ok()) {
      return {};
    }
    const std::int64_t size = shape[cut.dim];
    const auto position = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
      return std::clamp(at < 0 ? at + size : at, low, high);
    };
    const bool backwards = cut.step < 0;
    cut.start = backwards ? position(cut.start, 0, size - 1) : position(cut.start, 0, size);
    cut.end = backwards ? position(cut.end, -1, size - 1) : position(cut.end, 0, size);
    cuts.push_back(cut);
  }
  return cuts;
}

void map_slice(Call& c) {
  const std::vector<Cut> cuts = cuts_of(c);
  ValueId x = c.tensor(0);
  for (const Cut& cut : cuts) {
    const std::int64_t length = cut.step > 0 ? cut.end - cut.start : cut.start - cut.end;
    if (cut.step == 0 || length <= 0) {
      c.unsupported("leaves nothing of its operand, which is not supported");
    }
    if (!c.ok()) {
      return;
    }
    if (cut.step > 0) {
      x = sliced(c.builder(), x, cut.dim, cut.start, cut.end, cut.step);
      continue;
    }
    IntList indices;
    for (std::int64_t at = cut.start; at > cut.end; at += std::max(cut.step, -length)) {
      indices.push_back(at);
      if (std::ssize(indices) > kMostSelected) {
        c.unsupported("backwards over so many elements is not supported");
        return;
      }
    }
    x = selected(c.builder(), x, cut.dim, indices);
  }
  c.result(x);
}

bool fold_slice(Call& c) {
  const ConstTensor* const known = c.constant(0);
  if (known == nullptr) {
    return false;
  }
  std::optional<ConstTensor> x = *known;
  for (const Cut& cut : cuts_of(c)) {
    if (cut.step == 0) {
      c.invalid("has a step of 0");
      return true;
    }
    const std::int64_t length = cut.step > 0 ? cut.end - cut.start : cut.start - cut.end;
    const std::int64_t step =
        cut.step > 0 ? cut.step : -std::max(cut.step, -(std::int64_t{1} << 60));
    const std::int64_t size = length <= 0 ? 0 : (length - 1) / step + 1;
    x = x->slice(cut.dim, size == 0 ? 0 : cut.start, size, size <= 1 ? 1 : cut.step);
    if (!x.has_value()) {
      return false;
    }
  }
  c.constant_result(std::move(*x));
  return true;
}

// Split -------------------------------------------------------------------------------------------

/// Sizes of the parts: given, or as equal as can be, the last one smaller.
IntList parts_of(Call& c, std::int64_t size) {
  if (c.has("split")) {
    return c.integers("split");
  }
  if (c.given(1)) {
    return c.known_integers(1, "split");
  }
  const auto results = static_cast<std::int64_t>(c.result_count());
  const std::int64_t count = c.integer("num_outputs", results);
  if (count < 1 || count != results) {
    c.invalid("the attribute 'num_outputs' is not the number of its results");
    return {};
  }
  IntList sizes(static_cast<std::size_t>(count), (size + count - 1) / count);
  sizes.back() = size - (count - 1) * sizes.front();
  return sizes;
}

void map_split(Call& c) {
  const Shape shape = c.type(0).shape;
  const std::size_t dim = c.dim(c.integer("axis", 0), c.rank(0));
  if (!c.ok()) {
    return;
  }
  const IntList sizes = parts_of(c, shape[dim]);
  const bool positive = std::all_of(
      sizes.begin(), sizes.end(), [&](std::int64_t s) { return s > 0 && s <= shape[dim]; });
  if (!c.ok() || !positive || sizes.size() != c.result_count() || sizes.size() > 100'000 ||
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != shape[dim]) {
    c.invalid("its parts do not fit its operand");
    return;
  }
  const ConstTensor* const known = c.constant(0);
  std::int64_t start = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::optional<ConstTensor> part =
        known == nullptr ? std::nullopt : known->slice(dim, start, sizes[i], 1);
    if (part.has_value()) {
      c.constant_result(std::move(*part), i);
    } else {
      c.result(sliced(c.builder(), c.tensor(0), dim, start, start + sizes[i]), i);
    }
    start += sizes[i];
  }
}

// Concat ------------------------------------------------------------------------------------------

void map_concat(Call& c) {
  const std::vector<ValueId> parts = c.tensors();
  const std::size_t dim = c.dim(c.integer("axis", 0), parts.empty() ? 0 : c.rank(0));
  if (c.ok()) {
    c.result(parts.size() == 1
                 ? parts.front()
                 : c.builder().emit("concat", parts, {{"dim", static_cast<std::int64_t>(dim)}}));
  }
}

bool fold_concat(Call& c) {
  const std::optional<std::vector<ConstTensor>> parts = c.constants();
  if (!parts.has_value() || parts->empty()) {
    return false;
  }
  const std::size_t dim = c.dim(c.integer("axis", 0), c.rank(0));
  TensorType type = parts->front().type();
  if (!c.ok()) {
    return true;
  }
  type.shape[dim] = 0;
  for (const ConstTensor& part : *parts) {
    Shape rest = part.shape();
    if (rest.size() == type.shape.size()) {
      type.shape[dim] += rest[dim];
      rest[dim] = type.shape[dim];
    }
    if (rest != type.shape || part.type().dtype != type.dtype) {
      c.invalid("its operands differ in shape or type");
      return true;
    }
  }
  std::optional<ConstTensor> whole = concatenate(type, *parts, dim);
  if (!whole.has_value()) {
    return false;
  }
  c.constant_result(std::move(*whole));
  return true;
}

// Pad ---------------------------------------------------------------------------------------------

struct Padding {
  std::size_t dim = 0;
  std::int64_t before = 0;
  std::int64_t after = 0;
};

std::vector<Padding> paddings_of(Call& c) {
  const IntList pads = c.has("pads") ? c.integers("pads") : c.known_integers(1, "pads");
  IntList axes(static_cast<std::size_t>(c.rank(0)));
  std::iota(axes.begin(), axes.end(), 0);
  if (c.given(3)) {
    axes = c.known_integers(3, "axes");
  }
  if (!c.ok() || pads.size() != 2 * axes.size()) {
    c.invalid("its pads do not fit its operand");
    return {};
  }
  std::vector<Padding> out;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    out.push_back({c.dim(axes[i], c.rank(0)), pads[i], pads[i + axes.size()]});
  }
  return out;
}

/// Repeats the first or last element `count` times.
ValueId edge(Builder& b, ValueId x, std::size_t dim, bool first, std::int64_t count) {
  Shape shape = b.type(x).shape;
  const std::int64_t at = first ? 0 : shape[dim] - 1;
  const ValueId one = sliced(b, x, dim, at, at + 1);
  shape[dim] = count;
  return broadcast_to(b, one, shape);
}

ValueId padded(Call& c, ValueId x, const Padding& padding, const std::string& mode, double value) {
  Builder& b = c.builder();
  const auto dim = static_cast<std::int64_t>(padding.dim);
  if (mode == "constant") {
    return b.emit(
        "pad",
        {x},
        {{"dim", dim}, {"before", padding.before}, {"after", padding.after}, {"value", value}});
  }
  if (mode == "reflect" || mode == "wrap") {
    const std::int64_t size = b.type(x).shape[padding.dim];
    const std::int64_t period = mode == "wrap" ? size : std::max<std::int64_t>(2 * size - 2, 1);
    if (padding.before + size + padding.after > kMostSelected) {
      c.unsupported("of so many elements is not supported");
      return x;
    }
    IntList indices;
    for (std::int64_t at = -padding.before; at < size + padding.after; ++at) {
      const std::int64_t turned = ((at % period) + period) % period;
      indices.push_back(turned < size ? turned : period - turned);
    }
    return selected(b, x, padding.dim, indices);
  }
  std::vector<ValueId> parts{x};
  if (padding.before > 0) {
    parts.insert(parts.begin(), edge(b, x, padding.dim, true, padding.before));
  }
  if (padding.after > 0) {
    parts.push_back(edge(b, x, padding.dim, false, padding.after));
  }
  return b.emit("concat", parts, {{"dim", dim}});
}

/// Negative pads cut.
void map_pad(Call& c) {
  const std::string mode = c.text("mode", "constant");
  const std::vector<Padding> paddings = paddings_of(c);
  const double value =
      c.has("value") ? c.real("value", 0.0) : c.known_number(2, "constant_value", 0.0);
  ValueId x = c.tensor(0);
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap") {
    c.invalid("the attribute 'mode' is none of constant, edge, reflect and wrap");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const Padding& padding : paddings) {
    if (!c.ok()) {
      return;
    }
    const std::int64_t size = c.builder().type(x).shape[padding.dim];
    if (std::max(padding.before, padding.after) > kMost ||
        std::min(padding.before, padding.after) <= -size ||
        padding.before + padding.after <= -size) {
      c.invalid("its pads leave nothing, or far too much, of its operand");
      return;
    }
    x = sliced(c.builder(),
               x,
               padding.dim,
               std::max<std::int64_t>(-padding.before, 0),
               size + std::min<std::int64_t>(padding.after, 0));
    const Padding wider{padding.dim,
                        std::max<std::int64_t>(padding.before, 0),
                        std::max<std::int64_t>(padding.after, 0)};
    if (wider.before > 0 || wider.after > 0) {
      x = padded(c, x, wider, mode, value);
    }
  }
  c.result(x);
}

}  // namespace

std::vector<Row> cutting_rows() {
  return {{"Slice", map_slice, "slice", fold_slice},
          {"Split", map_split},
          {"Concat", map_concat, "concat", fold_concat},
          {"Pad", map_pad}};
}

}  // namespace shardplan::frontends::onnx
