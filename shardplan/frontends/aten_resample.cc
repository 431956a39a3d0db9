// Interpolation, padding by what is there, flips, rolls and overlapping windows.

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

// Interpolation -----------------------------------------------------------------------------------

/// The scales that are given; without them the sizes tell.
void set_scales(AtenCall& c, Attributes& attributes, std::size_t space) {
  constexpr std::array<std::string_view, 3> kNames{"scale0", "scale1", "scale2"};
  constexpr std::array<std::string_view, 3> kArguments{"scales_d", "scales_h", "scales_w"};
  const std::vector<double> scales = c.reals("scale_factors");
  for (std::size_t d = 0; d < space; ++d) {
    const std::string_view argument = space == 1 ? "scales" : kArguments[3 - space + d];
    if (d < scales.size()) {
      attributes.set(std::string(kNames[d]), scales[d]);
    } else if (c.given(argument)) {
      attributes.set(std::string(kNames[d]), c.real(argument, 1.0));
    }
  }
}

void map_upsample(AtenCall& c) {
  const std::string_view x_name = c.given("input") ? "input" : "self";
  const ValueId x = c.tensor(x_name);
  const TensorType type = c.result_type();
  if (!c.ok() || type.rank() < 3) {
    c.invalid("its operand has no space");
    return;
  }
  Attributes attributes{{"mode", std::string(c.ours())},
                        {"size", IntList(type.shape.begin() + 2, type.shape.end())},
                        {"align_corners", c.flag("align_corners", false)}};
  set_scales(c, attributes, type.shape.size() - 2);
  c.result(c.builder().emit("resample", {x}, std::move(attributes)));
}

// Rearrangement of channels and space -------------------------------------------------------------

/// [..., c r r, h, w] -> [..., c, h r, w r], and back.
void map_pixel_shuffle(AtenCall& c) {
  const bool shuffle = c.ours() == "shuffle";
  const std::int64_t r = c.integer(shuffle ? "upscale_factor" : "downscale_factor", 1);
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  if (!c.ok() || type.rank() < 3 || r < 1) {
    c.invalid("its operand has no channels and space");
    return;
  }
  const Shape& s = type.shape;
  const std::size_t leading = s.size() - 3;
  Shape apart(s.begin(), s.end() - 3);
  IntList order(leading + 5);
  std::iota(order.begin(), order.end(), 0);
  const auto at = static_cast<std::int64_t>(leading);
  const auto first = order.begin() + at;
  if (shuffle) {
    apart.insert(apart.end(), {s[leading] / (r * r), r, r, s[leading + 1], s[leading + 2]});
    const IntList moved{at, at + 3, at + 1, at + 4, at + 2};
    std::copy(moved.begin(), moved.end(), first);
  } else {
    apart.insert(apart.end(), {s[leading], s[leading + 1] / r, r, s[leading + 2] / r, r});
    const IntList moved{at, at + 2, at + 4, at + 1, at + 3};
    std::copy(moved.begin(), moved.end(), first);
  }
  c.result(c.reshape(c.permute(c.reshape(x, apart), order), c.result_type().shape));
}

void map_channel_shuffle(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const std::int64_t groups = c.integer("groups", 1);
  const Shape shape = c.type_of("self").shape;
  if (!c.ok() || shape.size() < 2 || groups < 1 || shape[1] % groups != 0) {
    c.invalid("its groups do not fit its operand");
    return;
  }
  Shape apart = shape;
  apart[1] = groups;
  apart.insert(apart.begin() + 2, shape[1] / groups);
  IntList order(apart.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[1], order[2]);
  c.result(c.reshape(c.permute(c.reshape(x, apart), order), shape));
}

// Elements at fixed places ------------------------------------------------------------------------

ValueId taken(AtenCall& c, ValueId x, std::size_t dim, IntList places) {
  constexpr std::size_t kMost = std::size_t{1} << 16;
  if (places.size() > kMost) {
    c.unsupported("is supported along dimensions of up to 65536 elements");
    return {};
  }
  return c.builder().emit(
      "take", {x}, {{"dim", static_cast<std::int64_t>(dim)}, {"places", std::move(places)}});
}

void map_flip(AtenCall& c) {
  ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  if (c.integers("dims").empty()) {
    c.result(x);
    return;
  }
  for (const std::int64_t dim : c.dims("dims", type.rank())) {
    IntList places(static_cast<std::size_t>(type.shape[static_cast<std::size_t>(dim)]));
    std::iota(places.rbegin(), places.rend(), 0);
    x = taken(c, x, static_cast<std::size_t>(dim), std::move(places));
  }
  c.result(x);
}

/// x with its first `shift` elements of a dimension last.
ValueId rotated(AtenCall& c, ValueId x, std::size_t dim, std::int64_t shift) {
  Builder& b = c.builder();
  const std::int64_t size = b.type(x).shape[dim];
  if (!c.ok() || shift == 0) {
    return x;
  }
  const ValueId head = sliced(b, x, dim, 0, shift);
  const ValueId tail = sliced(b, x, dim, shift, size);
  return b.emit("concat", {tail, head}, {{"dim", static_cast<std::int64_t>(dim)}});
}

void map_roll(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const std::vector<std::int64_t> shifts = c.integers("shifts");
  const std::vector<std::int64_t> dims = c.integers("dims");
  const auto start = [](std::int64_t shift, std::int64_t size) {
    return ((-shift) % size + size) % size;
  };
  if (!c.ok() || (dims.empty() ? shifts.size() != 1 : shifts.size() != dims.size())) {
    c.invalid("has another number of shifts than dimensions");
    return;
  }
  if (dims.empty()) {
    const ValueId flat = c.reshape(x, {type.numel()});
    c.result(c.reshape(rotated(c, flat, 0, start(shifts[0], type.numel())), type.shape));
    return;
  }
  ValueId y = x;
  for (std::size_t i = 0; i < dims.size() && c.ok(); ++i) {
    const std::int64_t dim = dims[i] < 0 ? dims[i] + type.rank() : dims[i];
    if (dim < 0 || dim >= type.rank()) {
      c.invalid("the argument 'dims' names a dimension that does not exist");
      return;
    }
    const auto at = static_cast<std::size_t>(dim);
    y = rotated(c, y, at, start(shifts[i], type.shape[at]));
  }
  c.result(y);
}

/// Windows of `size` elements, every `step`-th, as a last dimension.
void map_unfold(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dimension", 0, type.rank());
  const std::int64_t size = c.integer("size", 1);
  const std::int64_t step = c.integer("step", 1);
  if (!c.ok() || size < 1 || step < 1 || size > type.shape[dim]) {
    c.invalid("its windows do not fit its operand");
    return;
  }
  const std::int64_t count = (type.shape[dim] - size) / step + 1;
  IntList places;
  for (std::int64_t window = 0; window < count; ++window) {
    for (std::int64_t i = 0; i < size; ++i) {
      places.push_back(window * step + i);
    }
  }
  Shape apart = type.shape;
  apart[dim] = count;
  apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(dim) + 1, size);
  IntList order(apart.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
              order.begin() + static_cast<std::ptrdiff_t>(dim) + 2,
              order.end());
  c.result(c.permute(c.reshape(taken(c, x, dim, std::move(places)), apart), order));
}

// im2col, col2im: convolutions by a weight that has one 1 a channel
// ---------------------------------

/// [channels · k, 1, kernel...] with a 1 at another place of the kernel in each of its k channels.
ValueId one_hot_weight(AtenCall& c, std::int64_t channels, const IntList& kernel, ir::DType dtype) {
  const std::int64_t places = kernel[0] * kernel[1];
  const ir::DType wide = dtype == ir::DType::kFloat64 ? ir::DType::kFloat64 : ir::DType::kFloat32;
  const ConstTensor eye = ConstTensor::banded({wide, {places, places}},
                                              Band{.row = 0, .column = 1, .low = 0, .high = 0},
                                              Number::of(std::int64_t{1}),
                                              Number::of(std::int64_t{0}));
  const ValueId one = c.reshape(c.materialize(eye), {1, places, 1, kernel[0], kernel[1]});
  const ValueId all = broadcast_to(c.builder(), one, {channels, places, 1, kernel[0], kernel[1]});
  return c.cast(c.reshape(all, {channels * places, 1, kernel[0], kernel[1]}), dtype);
}

/// [n, c, h, w] <-> [n, c · kernel, windows].
void map_columns(AtenCall& c) {
  const bool to_columns = c.ours() == "im2col";
  const ValueId x = c.tensor("self");
  Shape from = c.type_of("self").shape;
  Shape to = c.result_type().shape;
  const IntList kernel = c.integers("kernel_size");
  const IntList padding = c.integers("padding");
  const IntList dilation = c.integers("dilation");
  const IntList stride = c.integers("stride");
  const bool lists =
      kernel.size() == 2 && padding.size() == 2 && dilation.size() == 2 && stride.size() == 2;
  if (from.size() + 1 == (to_columns ? std::size_t{4} : std::size_t{3})) {
    from.insert(from.begin(), 1);
    to.insert(to.begin(), 1);
  }
  if (!c.ok() || !lists || from.size() != (to_columns ? std::size_t{4} : std::size_t{3}) ||
      stride[0] < 1 || stride[1] < 1) {
    c.invalid("its arguments do not fit its operand");
    return;
  }
  const Shape& image = to_columns ? from : to;
  IntList windows;
  IntList rest;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t room = image[d + 2] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
    windows.push_back(room / stride[d] + 1);
    rest.push_back(to_columns ? 0 : room % stride[d]);
  }
  const ir::DType dtype = c.result_type().dtype;
  const ValueId weight = one_hot_weight(c, image[1], kernel, dtype);
  const Shape apart{from[0], from[1], windows[0], windows[1]};
  const ValueId y = c.builder().emit("convolution",
                                     {c.reshape(x, to_columns ? from : apart), weight},
                                     {{"stride", stride},
                                      {"padding", padding},
                                      {"dilation", dilation},
                                      {"output_padding", rest},
                                      {"transposed", !to_columns},
                                      {"groups", image[1]}});
  c.result(c.reshape(y, c.result_type().shape));
}

// Padding by what is there ------------------------------------------------------------------------

/// The place in 0 ... size - 1 of index `at`, which may be outside.
std::int64_t place_of(std::string_view mode, std::int64_t at, std::int64_t size) {
  if (mode == "replicate") {
    return std::clamp<std::int64_t>(at, 0, size - 1);
  }
  return at < 0 ? -at : at >= size ? 2 * (size - 1) - at : at;  // reflect
}

IntList circular_places(std::int64_t before, std::int64_t after, std::int64_t size) {
  // What a negative pad cuts off is gone before the rest goes round.
  const std::int64_t begin = std::max<std::int64_t>(-before, 0);
  const std::int64_t kept = size - begin - std::max<std::int64_t>(-after, 0);
  const std::int64_t end = kept + std::max<std::int64_t>(after, 0);
  IntList places;
  for (std::int64_t at = -std::max<std::int64_t>(before, 0); kept > 0 && at < end; ++at) {
    places.push_back(begin + (at % kept + kept) % kept);
  }
  return places;
}

ValueId padded(AtenCall& c,
               ValueId x,
               std::size_t dim,
               std::int64_t before,
               std::int64_t after,
               std::string_view mode) {
  const std::int64_t size = c.builder().type(x).shape[dim];
  const std::int64_t most = mode == "reflect" ? size - 1 : mode == "circular" ? size : 1 << 20;
  IntList places;
  if (std::max(before, after) <= most && std::min(before, after) > -most - size) {
    places = mode == "circular" ? circular_places(before, after, size) : IntList{};
    for (std::int64_t at = -before; mode != "circular" && at < size + after; ++at) {
      places.push_back(place_of(mode, at, size));
    }
  }
  if (places.empty()) {
    c.invalid("the argument 'pad' does not fit its operand");
    return {};
  }
  return taken(c, x, dim, std::move(places));
}

}  // namespace

void map_pad_by_content(AtenCall& c,
                        const std::string& mode,
                        const std::vector<std::int64_t>& pad) {
  ValueId x = c.tensor("self");
  const std::size_t rank = c.type_of("self").shape.size();
  if (!c.ok() || pad.size() % 2 != 0 || pad.size() / 2 > rank) {
    c.invalid("the argument 'pad' does not fit its operand");
    return;
  }
  for (std::size_t i = 0; 2 * i < pad.size() && c.ok(); ++i) {
    if (pad[2 * i] != 0 || pad[2 * i + 1] != 0) {
      x = padded(c, x, rank - 1 - i, pad[2 * i], pad[2 * i + 1], mode);
    }
  }
  c.result(x);
}

namespace {

void map_mode_pad(AtenCall& c) {
  map_pad_by_content(c, std::string(c.ours()), c.integers("padding"));
}

}  // namespace

std::vector<AtenOp> aten_resample() {
  std::vector<AtenOp> rows{{"aten.pixel_shuffle.default", map_pixel_shuffle, "shuffle"},
                           {"aten.pixel_unshuffle.default", map_pixel_shuffle, "unshuffle"},
                           {"aten.channel_shuffle.default", map_channel_shuffle},
                           {"aten.flip.default", map_flip},
                           {"aten.roll.default", map_roll},
                           {"aten.unfold.default", map_unfold},
                           {"aten.im2col.default", map_columns, "im2col"},
                           {"aten.col2im.default", map_columns, "col2im"},
                           {"aten.reflection_pad1d.default", map_mode_pad, "reflect"},
                           {"aten.reflection_pad2d.default", map_mode_pad, "reflect"},
                           {"aten.reflection_pad3d.default", map_mode_pad, "reflect"},
                           {"aten.replication_pad1d.default", map_mode_pad, "replicate"},
                           {"aten.replication_pad2d.default", map_mode_pad, "replicate"},
                           {"aten.replication_pad3d.default", map_mode_pad, "replicate"}};
  constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kUpsample{
      {{"aten.upsample_nearest1d.vec", "nearest"},
       {"aten.upsample_nearest2d.vec", "nearest"},
       {"aten.upsample_nearest3d.vec", "nearest"},
       {"aten._upsample_nearest_exact1d.vec", "nearest_exact"},
       {"aten._upsample_nearest_exact2d.vec", "nearest_exact"},
       {"aten._upsample_nearest_exact3d.vec", "nearest_exact"},
       {"aten.upsample_linear1d.vec", "linear"},
       {"aten.upsample_bilinear2d.vec", "linear"},
       {"aten.upsample_trilinear3d.vec", "linear"},
       {"aten.upsample_bicubic2d.vec", "cubic"},
       {"aten.upsample_nearest1d.default", "nearest"},
       {"aten.upsample_nearest2d.default", "nearest"},
       {"aten.upsample_nearest3d.default", "nearest"},
       {"aten._upsample_nearest_exact1d.default", "nearest_exact"},
       {"aten._upsample_nearest_exact2d.default", "nearest_exact"},
       {"aten._upsample_nearest_exact3d.default", "nearest_exact"},
       {"aten.upsample_linear1d.default", "linear"},
       {"aten.upsample_bilinear2d.default", "linear"},
       {"aten.upsample_trilinear3d.default", "linear"},
       {"aten.upsample_bicubic2d.default", "cubic"}}};
  for (const auto& [target, mode] : kUpsample) {
    rows.push_back({target, map_upsample, mode});
  }
  return rows;
}

}  // namespace shardplan::frontends
