// Operators on planes that PyTorch has: sampling grids, columns, crops.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/dtypes.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// The number that PyTorch gives one of these names; an error for others.
std::int64_t numbered(Call& c,
                      std::string_view attribute,
                      const std::string& fallback,
                      const std::vector<std::string>& names,
                      std::size_t count) {
  const std::string text = c.text(attribute, fallback);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    c.unsupported(std::string("with ") + std::string(attribute) + " '" + text +
                  "' is not supported");
    return 0;
  }
  return (found - names.begin()) % static_cast<std::ptrdiff_t>(count);
}

void map_grid_sample(Call& c) {
  const ValueId x = c.tensor(0);
  const ValueId grid = c.tensor(1);
  const Shape shape = c.type(0).shape;
  const Shape places = c.type(1).shape;
  const std::int64_t mode = numbered(
      c, "mode", "linear", {"linear", "nearest", "cubic", "bilinear", "nearest", "bicubic"}, 3);
  const std::int64_t padding =
      numbered(c, "padding_mode", "zeros", {"zeros", "border", "reflection"}, 3);
  if (!c.ok() || (shape.size() != 4 && shape.size() != 5) || places.size() != shape.size() ||
      (mode == 2 && shape.size() != 4)) {
    c.unsupported("is supported on planes, and on volumes but for cubic");
    return;
  }
  Shape result{shape[0], shape[1]};
  result.insert(result.end(), places.begin() + 1, places.end() - 1);
  c.result(OperatorCall(c.builder(), "aten.grid_sampler.default")
               .tensor("input", x)
               .tensor("grid", grid)
               .integer("interpolation_mode", mode)
               .integer("padding_mode", padding)
               .flag("align_corners", c.flag("align_corners", false))
               .result({c.type(0).dtype, result}));
}

void map_affine_grid(Call& c) {
  const ValueId theta = c.tensor(0);
  const IntList size = c.known_integers(1, "size");
  if (!c.ok() || (size.size() != 4 && size.size() != 5)) {
    c.invalid("its size has not 4 or 5 numbers");
    return;
  }
  Shape result{size[0]};
  result.insert(result.end(), size.begin() + 2, size.end());
  result.push_back(static_cast<std::int64_t>(size.size()) - 2);
  c.result(OperatorCall(c.builder(), "aten.affine_grid_generator.default")
               .tensor("theta", theta)
               .integers("size", size)
               .flag("align_corners", c.flag("align_corners", false))
               .result({c.type(0).dtype, result}));
}

void map_columns_to_image(Call& c) {
  const ValueId x = c.tensor(0);
  const IntList image = c.known_integers(1, "image_shape");
  const IntList block = c.known_integers(2, "block_shape");
  const IntList dilations = c.has("dilations") ? c.integers("dilations") : IntList{1, 1};
  const IntList strides = c.has("strides") ? c.integers("strides") : IntList{1, 1};
  const IntList pads = c.has("pads") ? c.integers("pads") : IntList{0, 0, 0, 0};
  const Shape shape = c.type(0).shape;
  const bool plane = image.size() == 2 && block.size() == 2 && dilations.size() == 2 &&
                     strides.size() == 2 && pads.size() == 4 && shape.size() == 3;
  if (!c.ok() || !plane || pads[0] != pads[2] || pads[1] != pads[3] || block[0] < 1 ||
      block[1] < 1 || block[0] > shape[1] || block[1] > shape[1] ||
      shape[1] % (block[0] * block[1]) != 0) {
    c.unsupported("is supported on planes with equal pads");
    return;
  }
  c.result(OperatorCall(c.builder(), "aten.col2im.default")
               .tensor("self", x)
               .integers("output_size", image)
               .integers("kernel_size", block)
               .integers("dilation", dilations)
               .integers("padding", {pads[0], pads[1]})
               .integers("stride", strides)
               .result({c.type(0).dtype,
                        {shape[0], shape[1] / (block[0] * block[1]), image[0], image[1]}}));
}

/// Cuts or pads both ends so that dimensions get their sizes.
void map_center_crop_pad(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const IntList sizes = c.known_integers(1, "shape");
  const std::int64_t rank = c.rank(0);
  IntList axes;
  for (std::int64_t d = 0; d < rank; ++d) {
    axes.push_back(d);
  }
  axes = c.has("axes") ? c.integers("axes") : axes;
  if (!c.ok() || sizes.size() != axes.size()) {
    c.invalid("its shape does not fit its axes");
    return;
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t dim = c.dim(axes[i], rank);
    if (!c.ok() || sizes[i] < 1 || sizes[i] > (std::int64_t{1} << 40)) {
      c.invalid("its shape has an impossible size");
      return;
    }
    const std::int64_t size = b.type(x).shape[dim];
    const std::int64_t missing = sizes[i] - size;
    if (missing <= 0) {
      const std::int64_t start = -missing / 2;
      x = sliced(b, x, dim, start, start + sizes[i]);
      continue;
    }
    x = b.emit("pad",
               {x},
               {{"dim", static_cast<std::int64_t>(dim)},
                {"before", missing / 2},
                {"after", missing - missing / 2},
                {"value", 0.0}});
  }
  c.result(x);
}

/// Hann, Hamming and Blackman windows: sums of cosines.
void map_cosine_window(Call& c) {
  const auto size = static_cast<std::int64_t>(c.known_number(0, "size", 1));
  const bool periodic = c.flag("periodic", true);
  const std::int64_t number = c.integer("output_datatype", 1);
  const std::optional<DType> dtype = dtype_of_number(number);
  if (!c.ok() || size < 1 || size > ConstTensor::kMaxElements || !dtype.has_value()) {
    c.invalid("its size or type is impossible");
    return;
  }
  const double length = static_cast<double>(periodic ? size : std::max<std::int64_t>(size - 1, 1));
  const auto at = [&](std::int64_t i) {
    const double x = 2 * std::numbers::pi * static_cast<double>(i) / length;
    if (c.ours() == "hann") {
      return 0.5 - 0.5 * std::cos(x);
    }
    if (c.ours() == "hamming") {
      return 25.0 / 46.0 - 21.0 / 46.0 * std::cos(x);
    }
    return 0.42 - 0.5 * std::cos(x) + 0.08 * std::cos(2 * x);
  };
  std::vector<Number> elements;
  for (std::int64_t i = 0; i < size; ++i) {
    elements.push_back(Number::of(at(i)));
  }
  std::optional<ConstTensor> window = from_compact({*dtype, {size}}, {size}, std::move(elements));
  if (!window.has_value()) {
    c.unsupported("of this type is not supported");
    return;
  }
  c.constant_result(std::move(*window));
}

}  // namespace

std::vector<Row> spatial_rows() {
  return {{"GridSample", map_grid_sample},
          {"AffineGrid", map_affine_grid},
          {"Col2Im", map_columns_to_image},
          {"CenterCropPad", map_center_crop_pad},
          {"HannWindow", map_cosine_window, "hann"},
          {"HammingWindow", map_cosine_window, "hamming"},
          {"BlackmanWindow", map_cosine_window, "blackman"}};
}

}  // namespace shardplan::frontends::onnx
