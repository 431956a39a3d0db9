// Resize and Upsample: along each dimension a product with a matrix of interpolation weights that
// is known when the model is read, whatever the mode; whole multiples of the nearest element are
// stretched.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "shardplan/frontends/onnx/call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::ValueId;

/// How one dimension is resized.
struct Line {
  std::size_t dim = 0;
  std::int64_t from = 0;
  std::int64_t to = 0;
  double scale = 1;
  double roi_start = 0;
  double roi_end = 1;
};

struct Method {
  std::string mode{};
  std::string coordinates{};
  std::string nearest{};
  double cubic = -0.75;
  bool antialias = false;
  bool exclude_outside = false;
};

/// The place in the source of element x of the result.
double source_of(const Line& line, const std::string& coordinates, std::int64_t x) {
  const auto at = static_cast<double>(x);
  const auto from = static_cast<double>(line.from);
  const double length = line.scale * from;
  if (coordinates == "align_corners") {
    return length == 1 ? 0 : at * (from - 1) / (length - 1);
  }
  if (coordinates == "asymmetric") {
    return at / line.scale;
  }
  if (coordinates == "tf_crop_and_resize") {
    const double width = (line.roi_end - line.roi_start) * (from - 1);
    const double moved = length == 1 ? width / 2 : at * width / (length - 1);
    return moved + line.roi_start * (from - 1);
  }
  if (coordinates == "pytorch_half_pixel" && length == 1) {
    return -0.5;
  }
  const double plain = (at + 0.5) / line.scale - 0.5;
  if (coordinates == "half_pixel_symmetric") {
    const double adjustment = static_cast<double>(line.to) / length;
    return from / 2 * (1 - adjustment) + plain;
  }
  return plain;
}

double cubic_weight(double x, double a) {
  const double d = std::abs(x);
  if (d <= 1) {
    return (a + 2) * d * d * d - (a + 3) * d * d + 1;
  }
  return d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0;
}

/// Weights of the neighbours, an even number of them; `ratio` in (0, 1] is the place between the
/// two in the middle.
std::vector<double> weights_of(const Method& method, double ratio, double scale) {
  if (method.mode == "nearest") {
    const bool lower =
        ratio != 1 && (method.nearest == "round_prefer_floor"  ? ratio <= 0.5
                       : method.nearest == "round_prefer_ceil" ? ratio < 0.5
                                                               : method.nearest == "floor");
    return lower ? std::vector<double>{1, 0} : std::vector<double>{0, 1};
  }
  const bool linear = method.mode == "linear";
  const double stretch = method.antialias ? std::min(scale, 1.0) : 1.0;
  const auto half = static_cast<int>(-std::floor(-(linear ? 1.0 : 2.0) / stretch));
  std::vector<double> weights;
  double sum = 0;
  for (int i = 1 - half; i <= half; ++i) {
    const double x = stretch * (i - ratio);
    weights.push_back(linear ? std::max(1 - std::abs(x), 0.0) : cubic_weight(x, method.cubic));
    sum += weights.back();
  }
  for (double& weight : weights) {
    weight /= method.antialias ? sum : 1.0;
  }
  return weights;
}

/// Row-major [to, from].
std::vector<double> matrix_of(const Line& line, const Method& method) {
  std::vector<double> matrix(static_cast<std::size_t>(line.to * line.from), 0.0);
  for (std::int64_t x = 0; x < line.to; ++x) {
    const double source = source_of(line, method.coordinates, x);
    if (method.coordinates == "tf_crop_and_resize" &&
        (source < 0 || source > static_cast<double>(line.from - 1))) {
      continue;  // the extrapolation value, which is 0
    }
    const double below = std::ceil(source) - 1;
    std::vector<double> weights = weights_of(method, source - below, line.scale);
    const auto count = static_cast<std::int64_t>(weights.size());
    const std::int64_t first = static_cast<std::int64_t>(below) - (count / 2 - 1);
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool outside = first + i < 0 || first + i >= line.from;
      double& weight = weights[static_cast<std::size_t>(i)];
      weight = outside && method.exclude_outside ? 0 : weight;
      sum += weight;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = std::clamp<std::int64_t>(first + i, 0, line.from - 1);
      const double weight = weights[static_cast<std::size_t>(i)];
      matrix[static_cast<std::size_t>(x * line.from + at)] +=
          method.exclude_outside ? weight / sum : weight;
    }
  }
  return matrix;
}

/// Whether each element only repeats.
bool repeats(const Line& line, const std::vector<double>& matrix) {
  if (line.to % line.from != 0) {
    return false;
  }
  const std::int64_t factor = line.to / line.from;
  for (std::int64_t x = 0; x < line.to; ++x) {
    if (matrix[static_cast<std::size_t>(x * line.from + x / factor)] != 1) {
      return false;
    }
  }
  return true;
}

ValueId resized(Call& c, ValueId x, const Line& line, const Method& method) {
  Builder& b = c.builder();
  const std::vector<double> matrix = matrix_of(line, method);
  Shape shape = b.type(x).shape;
  if (method.mode == "nearest" && repeats(line, matrix)) {
    Shape apart = shape;
    apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(line.dim) + 1, 1);
    Shape wide = apart;
    wide[line.dim + 1] = line.to / line.from;
    shape[line.dim] = line.to;
    return reshape_to(b, broadcast_to(b, reshape_to(b, x, apart), wide), shape);
  }
  std::vector<Number> elements;
  elements.reserve(matrix.size());
  for (const double weight : matrix) {
    elements.push_back(Number::of(weight));
  }
  const DType dtype = b.type(x).dtype;
  const DType wide = is_narrow(dtype) ? DType::kFloat32 : dtype;
  const Shape sizes{line.to, line.from};
  const std::optional<ConstTensor> known = from_compact({wide, sizes}, sizes, std::move(elements));
  const ValueId weights = cast_to(b, materialize(b, known.value_or(ConstTensor())), dtype);
  constexpr std::string_view kLetters = "abcdefghij";
  std::string letters(kLetters.substr(0, shape.size()));
  std::string result = letters;
  result[line.dim] = 'z';
  return b.emit(
      "einsum", {x, weights}, {{"equation", letters + ",z" + letters[line.dim] + "->" + result}});
}

std::vector<double> reals(Call& c, std::size_t operand, std::string_view what) {
  const ConstTensor* const known = c.constant(operand);
  if (known == nullptr) {
    c.need_known(operand, what);
    return {};
  }
  const std::optional<ConstTensor> dense = known->dense();
  std::vector<double> out;
  for (std::int64_t i = 0; dense.has_value() && known->shape().size() == 1 &&
                           i < std::min<std::int64_t>(known->shape()[0], 64);
       ++i) {
    out.push_back(dense->at(std::vector<std::int64_t>{i}).as_double());
  }
  return out;
}

/// One scale for all dimensions that are resized to keep their ratio.
void keep_ratio(Call& c, std::vector<Line>& lines) {
  const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
  if (policy == "stretch" || lines.empty()) {
    return;
  }
  double scale = lines.front().scale;
  for (const Line& line : lines) {
    scale = policy == "not_larger" ? std::min(scale, line.scale) : std::max(scale, line.scale);
  }
  for (Line& line : lines) {
    line.scale = scale;
    line.to = static_cast<std::int64_t>(std::floor(scale * static_cast<double>(line.from) + 0.5));
  }
}

struct Operands {
  std::size_t roi = 1;
  std::size_t scales = 2;
  std::size_t sizes = 3;
};

/// What to do along each dimension, from scales or sizes.
std::vector<Line> lines_of(Call& c, const Operands& at) {
  const Shape shape = c.type(0).shape;
  IntList axes(shape.size());
  for (std::size_t d = 0; d < axes.size(); ++d) {
    axes[d] = static_cast<std::int64_t>(d);
  }
  axes = c.has("axes") ? c.integers("axes") : axes;
  const std::vector<double> scales =
      c.given(at.scales) ? reals(c, at.scales, "scales") : std::vector<double>();
  const bool by_size = scales.empty();
  const IntList sizes = by_size ? c.known_integers(at.sizes, "sizes") : IntList();
  const std::vector<double> roi =
      c.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
          ? reals(c, at.roi, "roi")
          : std::vector<double>();
  if (!c.ok() || (by_size ? sizes.size() : scales.size()) != axes.size() ||
      (!roi.empty() && roi.size() != 2 * axes.size())) {
    c.invalid("its scales or sizes do not fit its operand");
    return {};
  }
  std::vector<Line> lines;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    Line line;
    line.dim = c.dim(axes[i], c.rank(0));
    if (!c.ok()) {
      return {};
    }
    line.from = shape[line.dim];
    const auto from = static_cast<double>(line.from);
    line.scale = by_size ? static_cast<double>(sizes[i]) / from : scales[i];
    const double to = by_size ? static_cast<double>(sizes[i]) : std::floor(from * line.scale);
    if (!(to >= 1 && to * from <= static_cast<double>(ConstTensor::kMaxElements))) {
      c.invalid("it makes a dimension of an impossible size");
      return {};
    }
    line.to = static_cast<std::int64_t>(to);
    if (!roi.empty()) {
      line.roi_start = roi[i];
      line.roi_end = roi[i + axes.size()];
    }
    lines.push_back(line);
  }
  keep_ratio(c, lines);
  return lines;
}

void map_resize(Call& c) {
  Builder& b = c.builder();
  const bool plain = c.ours() == "upsample" || c.opset() < 11;
  ValueId x = c.tensor(0);
  const DType dtype = c.type(0).dtype;
  const std::vector<Line> lines =
      lines_of(c, plain ? Operands{.roi = 9, .scales = 1, .sizes = 9} : Operands{});
  Method method{.mode = c.text("mode", "nearest"),
                .coordinates = c.text("coordinate_transformation_mode", "half_pixel"),
                .nearest = c.text("nearest_mode", "round_prefer_floor"),
                .cubic = c.real("cubic_coeff_a", -0.75),
                .antialias = c.flag("antialias", false),
                .exclude_outside = c.flag("exclude_outside", false)};
  if (plain) {
    method.coordinates = "asymmetric";
    method.nearest = "floor";
  }
  if (c.real("extrapolation_value", 0.0) != 0.0) {
    c.unsupported("is supported with an extrapolation value of 0 only");
  } else if (!c.ok() || c.rank(0) > 10 ||
             (method.mode != "nearest" && method.mode != "linear" && method.mode != "cubic")) {
    c.invalid("its mode is none of nearest, linear and cubic");
    return;
  }
  const bool floating = ir::is_floating(dtype);
  x = floating ? x : cast_to(b, x, DType::kFloat64);
  for (const Line& line : lines) {
    const bool cropped =
        method.coordinates == "tf_crop_and_resize" && (line.roi_start != 0 || line.roi_end != 1);
    if (c.ok() && (line.from != line.to || line.scale != 1 || cropped)) {
      x = resized(c, x, line, method);
    }
  }
  c.result(cast_to(b, x, dtype));
}

}  // namespace

std::vector<Row> resize_rows() {
  return {{"Resize", map_resize, "resize"}, {"Upsample", map_resize, "upsample"}};
}

}  // namespace shardplan::frontends::onnx
