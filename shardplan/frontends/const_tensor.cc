#include "shardplan/frontends/const_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace shardplan::frontends {

using ir::DType;
using ir::Shape;
using ir::TensorType;

namespace {

/// Number of elements when it is at most kMaxElements.
std::optional<std::size_t> countable(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && count > ConstTensor::kMaxElements / size)) {
      return std::nullopt;
    }
    count *= size;
  }
  return static_cast<std::size_t>(count);
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size(), 0);
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = shape[d] == 1 ? 0 : stride;
    stride *= shape[d];
  }
  return strides;
}

/// Calls `visit(index)` for every coordinate of `shape` in row-major order.
template <class Visit>
void for_each_index(const Shape& shape, Visit visit) {
  Shape index(shape.size(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return;
  }
  while (true) {
    visit(std::as_const(index));
    std::size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

Number round_to(DType dtype, const Number& value) {
  switch (dtype) {
    case DType::kBool:
      return Number::of(std::int64_t{value.real ? value.d != 0 : value.i != 0});
    case DType::kUInt8:
      return Number::of(std::int64_t{static_cast<std::uint8_t>(value.as_int())});
    case DType::kInt32:
      return Number::of(std::int64_t{static_cast<std::int32_t>(value.as_int())});
    case DType::kInt64:
      return Number::of(value.as_int());
    case DType::kFloat32:
      return Number::of(static_cast<double>(static_cast<float>(value.as_double())));
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  return Number::of(value.as_double());
}

bool is_narrow(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Archives may hold any integers: sums wrap, as they do in PyTorch, and are never undefined.
std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

bool in_band(const Band& band, std::int64_t difference) {
  return (!band.low.has_value() || difference >= *band.low) &&
         (!band.high.has_value() || difference <= *band.high);
}

/// The same band with the row before the column.
Band ordered(const Band& band) {
  if (band.row < band.column) {
    return band;
  }
  const auto negated = [](std::optional<std::int64_t> x) {
    return x.has_value() ? std::optional(wrapping_product(*x, -1)) : std::nullopt;
  };
  return {band.column, band.row, negated(band.high), negated(band.low)};
}

template <class T>
Number load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::is_floating_point_v<T>) {
    return Number::of(static_cast<double>(value));
  } else {
    return Number::of(static_cast<std::int64_t>(value));
  }
}

template <class T>
void store(std::byte* at, const Number& number) {
  T value;
  if constexpr (std::is_floating_point_v<T>) {
    value = static_cast<T>(number.as_double());
  } else {
    value = static_cast<T>(number.as_int());
  }
  std::memcpy(at, &value, sizeof value);
}

/// Dimensions of the shape that are not 1, in order.
std::vector<std::size_t> long_dims(const Shape& shape) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1) {
      dims.push_back(d);
    }
  }
  return dims;
}

bool same_long_dims(const Shape& a, const Shape& b) {
  const std::vector<std::size_t> x = long_dims(a);
  const std::vector<std::size_t> y = long_dims(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [&](std::size_t p, std::size_t q) {
    return a[p] == b[q];
  });
}

}  // namespace

std::int64_t Number::as_int() const {
  if (!real) {
    return i;
  }
  return std::abs(d) < 9e18 ? static_cast<std::int64_t>(d) : 0;
}

bool Number::operator==(const Number& other) const {
  return real == other.real && (real ? d == other.d : i == other.i);
}

ConstTensor ConstTensor::full(TensorType type, Number value) {
  ConstTensor out;
  out.strides_.assign(type.shape.size(), 0);
  out.elements_ = std::make_shared<const std::vector<Number>>(1, round_to(type.dtype, value));
  out.type_ = std::move(type);
  return out;
}

std::optional<ConstTensor> ConstTensor::arange(TensorType type, Number start, Number step) {
  const std::optional<std::size_t> count = countable(type.shape);
  if (!count.has_value() || type.shape.size() != 1) {
    return std::nullopt;
  }
  std::vector<Number> elements(*count);
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const auto i = static_cast<std::int64_t>(k);
    elements[k] = start.real || step.real
                      ? Number::of(start.as_double() + static_cast<double>(i) * step.as_double())
                      : Number::of(wrapping_sum(start.i, wrapping_product(i, step.i)));
  }
  const Shape shape = type.shape;
  return from_compact(std::move(type), shape, std::move(elements));
}

ConstTensor ConstTensor::banded(TensorType type, Band band, Number inside, Number outside) {
  ConstTensor out;
  out.inside_ = round_to(type.dtype, inside);
  out.outside_ = round_to(type.dtype, outside);
  if (out.inside_ == out.outside_) {
    return full(std::move(type), inside);
  }
  out.strides_.assign(type.shape.size(), 0);
  out.type_ = std::move(type);
  out.band_ = ordered(band);
  return out;
}

ConstTensor ConstTensor::band_mask(Shape shape, Band band) {
  return banded({DType::kBool, std::move(shape)},
                band,
                Number::of(std::int64_t{1}),
                Number::of(std::int64_t{0}));
}

std::optional<Band> ConstTensor::true_band() const {
  if (!band_.has_value() || type_.dtype != DType::kBool) {
    return std::nullopt;
  }
  if (inside_.i != 0) {
    return ordered(*band_);
  }
  Band rest = *band_;
  if (rest.low.has_value() == rest.high.has_value()) {
    return std::nullopt;  // outside a band with two bounds is no band
  }
  if (rest.low.has_value()) {
    rest.high = wrapping_sum(*rest.low, -1);
    rest.low.reset();
  } else {
    rest.low = wrapping_sum(*rest.high, 1);
    rest.high.reset();
  }
  return ordered(rest);
}

std::optional<ConstTensor> ConstTensor::from_bytes(const TensorType& type,
                                                   std::span<const std::byte> bytes) {
  const std::optional<std::size_t> count = countable(type.shape);
  const auto width = static_cast<std::size_t>(ir::element_bytes(type.dtype));
  if (!count.has_value() || bytes.size() != *count * width || is_narrow(type.dtype)) {
    return std::nullopt;
  }
  std::vector<Number> elements(*count);
  for (std::size_t k = 0; k < *count; ++k) {
    const std::byte* const at = bytes.data() + k * width;
    switch (type.dtype) {
      case DType::kBool:
      case DType::kUInt8:
        elements[k] = load<std::uint8_t>(at);
        break;
      case DType::kInt32:
        elements[k] = load<std::int32_t>(at);
        break;
      case DType::kInt64:
        elements[k] = load<std::int64_t>(at);
        break;
      case DType::kFloat32:
        elements[k] = load<float>(at);
        break;
      default:
        elements[k] = load<double>(at);
    }
  }
  return from_compact(type, type.shape, std::move(elements));
}

bool ConstTensor::varies(std::size_t dim) const {
  if (type_.shape[dim] == 1) {
    return false;
  }
  return band_.has_value() ? dim == band_->row || dim == band_->column : strides_[dim] != 0;
}

Shape ConstTensor::compact_shape() const {
  Shape shape = type_.shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    shape[d] = varies(d) ? shape[d] : 1;
  }
  return shape;
}

std::optional<Number> ConstTensor::uniform() const {
  if (band_.has_value()) {
    return std::nullopt;
  }
  for (std::size_t d = 0; d < type_.shape.size(); ++d) {
    if (varies(d)) {
      return std::nullopt;
    }
  }
  return (*elements_)[static_cast<std::size_t>(offset_)];
}

std::optional<IndexLike> ConstTensor::index_like() const {
  if (band_.has_value()) {
    return std::nullopt;
  }
  std::optional<std::size_t> dim;
  for (std::size_t d = 0; d < type_.shape.size(); ++d) {
    if (varies(d)) {
      if (dim.has_value()) {
        return std::nullopt;
      }
      dim = d;
    }
  }
  if (!dim.has_value()) {
    return std::nullopt;
  }
  const auto element = [&](std::int64_t k) -> const Number& {
    return (*elements_)[static_cast<std::size_t>(offset_ + k * strides_[*dim])];
  };
  const std::int64_t start = element(0).as_int();
  for (std::int64_t k = 0; k < type_.shape[*dim]; ++k) {
    if (element(k).as_double() != static_cast<double>(wrapping_sum(start, k))) {
      return std::nullopt;
    }
  }
  return IndexLike{*dim, start};
}

Number ConstTensor::at(std::span<const std::int64_t> index) const {
  std::int64_t at = offset_;
  for (std::size_t d = 0; d < index.size(); ++d) {
    at += index[d] * strides_[d];
  }
  return (*elements_)[static_cast<std::size_t>(at)];
}

std::optional<std::vector<Number>> ConstTensor::compact_elements() const {
  const Shape shape = compact_shape();
  const std::optional<std::size_t> count = countable(shape);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  for_each_index(shape, [&](const Shape& index) {
    if (band_.has_value()) {
      const bool inside = in_band(*band_, index[band_->row] - index[band_->column]);
      elements.push_back(inside ? inside_ : outside_);
    } else {
      elements.push_back(at(index));
    }
  });
  return elements;
}

std::optional<std::vector<std::byte>> ConstTensor::compact_bytes() const {
  const std::optional<std::vector<Number>> elements = compact_elements();
  if (!elements.has_value() || is_narrow(type_.dtype)) {
    return std::nullopt;
  }
  const auto width = static_cast<std::size_t>(ir::element_bytes(type_.dtype));
  std::vector<std::byte> bytes(elements->size() * width);
  for (std::size_t k = 0; k < elements->size(); ++k) {
    std::byte* const at = bytes.data() + k * width;
    switch (type_.dtype) {
      case DType::kBool:
      case DType::kUInt8:
        store<std::uint8_t>(at, (*elements)[k]);
        break;
      case DType::kInt32:
        store<std::int32_t>(at, (*elements)[k]);
        break;
      case DType::kInt64:
        store<std::int64_t>(at, (*elements)[k]);
        break;
      case DType::kFloat32:
        store<float>(at, (*elements)[k]);
        break;
      default:
        store<double>(at, (*elements)[k]);
    }
  }
  return bytes;
}

ConstTensor ConstTensor::permute(std::span<const std::int64_t> permutation) const {
  ConstTensor out = *this;
  for (std::size_t d = 0; d < permutation.size(); ++d) {
    const auto from = static_cast<std::size_t>(permutation[d]);
    out.type_.shape[d] = type_.shape[from];
    out.strides_[d] = strides_[from];
    if (band_.has_value() && from == band_->row) {
      out.band_->row = d;
    }
    if (band_.has_value() && from == band_->column) {
      out.band_->column = d;
    }
  }
  return out;
}

ConstTensor ConstTensor::expand(const Shape& shape) const {
  ConstTensor out = *this;
  const std::size_t added = shape.size() - type_.shape.size();
  out.type_.shape = shape;
  out.strides_.assign(shape.size(), 0);
  for (std::size_t d = 0; d < type_.shape.size(); ++d) {
    out.strides_[d + added] = type_.shape[d] == 1 ? 0 : strides_[d];
  }
  if (band_.has_value()) {
    out.band_->row += added;
    out.band_->column += added;
  }
  return out;
}

std::optional<ConstTensor> ConstTensor::reshape(const Shape& shape) const {
  if (const std::optional<Number> value = uniform()) {
    return full({type_.dtype, shape}, *value);
  }
  if (!same_long_dims(type_.shape, shape)) {
    // Only a row-major copy has a view of any shape.
    const ConstTensor& self = *this;
    const std::optional<std::size_t> count = countable(shape);
    const std::optional<ConstTensor> plain = band_.has_value() ? dense() : self;
    if (!count.has_value() || !plain.has_value()) {
      return std::nullopt;
    }
    std::vector<Number> elements;
    elements.reserve(*count);
    for_each_index(type_.shape, [&](const Shape& index) { elements.push_back(plain->at(index)); });
    return from_compact({type_.dtype, shape}, shape, std::move(elements));
  }
  const std::vector<std::size_t> from = long_dims(type_.shape);
  const std::vector<std::size_t> to = long_dims(shape);
  ConstTensor out = *this;
  out.type_.shape = shape;
  out.strides_.assign(shape.size(), 0);
  for (std::size_t k = 0; k < from.size(); ++k) {
    out.strides_[to[k]] = strides_[from[k]];
    if (band_.has_value() && from[k] == band_->row) {
      out.band_->row = to[k];
    }
    if (band_.has_value() && from[k] == band_->column) {
      out.band_->column = to[k];
    }
  }
  return out;
}

std::optional<ConstTensor> ConstTensor::slice(std::size_t dim,
                                              std::int64_t start,
                                              std::int64_t size,
                                              std::int64_t step) const {
  if (band_.has_value() && varies(dim)) {
    const std::optional<ConstTensor> plain = dense();
    return plain.has_value() ? plain->slice(dim, start, size, step) : std::nullopt;
  }
  ConstTensor out = *this;
  out.offset_ += start * strides_[dim];
  out.type_.shape[dim] = size;
  out.strides_[dim] = size == 1 ? 0 : strides_[dim] * step;
  return out;
}

std::optional<ConstTensor> ConstTensor::dense() const {
  if (!band_.has_value()) {
    return *this;
  }
  std::optional<std::vector<Number>> elements = compact_elements();
  if (!elements.has_value()) {
    return std::nullopt;
  }
  return from_compact(type_, compact_shape(), std::move(*elements));
}

std::optional<ConstTensor> from_compact(TensorType type,
                                        const Shape& compact,
                                        std::vector<Number> elements) {
  if (is_narrow(type.dtype)) {
    return std::nullopt;
  }
  for (Number& element : elements) {
    element = round_to(type.dtype, element);
  }
  const bool equal = !elements.empty() &&
                     std::all_of(elements.begin(), elements.end(), [&](const Number& element) {
                       return element == elements.front();
                     });
  if (equal) {
    return ConstTensor::full(std::move(type), elements.front());
  }
  ConstTensor out;
  out.type_ = std::move(type);
  out.strides_ = row_major_strides(compact);
  out.elements_ = std::make_shared<const std::vector<Number>>(std::move(elements));
  return out;
}

namespace {

/// The band that all operands which are not uniform have; nothing when there is none, or several.
std::optional<Band> common_band(const TensorType& type, std::span<const ConstTensor> operands) {
  std::optional<Band> common;
  for (const ConstTensor& operand : operands) {
    if (operand.uniform().has_value()) {
      continue;
    }
    if (!operand.band().has_value() || operand.shape().size() > type.shape.size()) {
      return std::nullopt;
    }
    const Band band = ordered(*operand.expand(type.shape).band());
    if (common.has_value() && (common->row != band.row || common->column != band.column ||
                               common->low != band.low || common->high != band.high)) {
      return std::nullopt;
    }
    common = band;
  }
  return common;
}

}  // namespace

std::optional<ConstTensor> elementwise(
    const TensorType& type,
    std::span<const ConstTensor> operands,
    const std::function<Number(std::span<const Number>)>& function) {
  if (const std::optional<Band> band = common_band(type, operands)) {
    std::vector<Number> inside;
    std::vector<Number> outside;
    for (const ConstTensor& operand : operands) {
      const std::optional<Number> value = operand.uniform();
      inside.push_back(value.value_or(operand.inside()));
      outside.push_back(value.value_or(operand.outside()));
    }
    return is_narrow(type.dtype) ? std::nullopt
                                 : std::optional(ConstTensor::banded(
                                       type, *band, function(inside), function(outside)));
  }
  std::vector<ConstTensor> wide;
  Shape compact(type.shape.size(), 1);
  for (const ConstTensor& operand : operands) {
    const std::optional<ConstTensor> plain = operand.dense();
    if (!plain.has_value() || plain->shape().size() > type.shape.size()) {
      return std::nullopt;
    }
    wide.push_back(plain->expand(type.shape));
    for (std::size_t d = 0; d < compact.size(); ++d) {
      compact[d] = wide.back().varies(d) ? type.shape[d] : compact[d];
    }
  }
  const std::optional<std::size_t> count = countable(compact);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  std::vector<Number> values(wide.size());
  for_each_index(compact, [&](const Shape& index) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      values[k] = wide[k].at(index);
    }
    elements.push_back(function(values));
  });
  return from_compact(type, compact, std::move(elements));
}

namespace {

/// The value of each diagonal index[row] - index[column] from 1 - columns to rows - 1; nothing when
/// one of them has several.
std::optional<std::vector<Number>> diagonals(const std::vector<Number>& elements,
                                             std::int64_t rows,
                                             std::int64_t columns) {
  std::vector<std::optional<Number>> values(static_cast<std::size_t>(rows + columns - 1));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      std::optional<Number>& value = values[static_cast<std::size_t>(i - j + columns - 1)];
      const Number& element = elements[static_cast<std::size_t>(i * columns + j)];
      if (value.has_value() && !(*value == element)) {
        return std::nullopt;
      }
      value = element;
    }
  }
  std::vector<Number> out;
  out.reserve(values.size());
  for (const std::optional<Number>& value : values) {
    out.push_back(value.value_or(Number{}));  // every diagonal has an element
  }
  return out;
}

}  // namespace

std::optional<ConstTensor> recognise_band(const ConstTensor& x) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < x.shape().size(); ++d) {
    if (x.varies(d)) {
      dims.push_back(d);
    }
  }
  const std::optional<std::vector<Number>> elements =
      dims.size() == 2 && !x.band().has_value() ? x.compact_elements() : std::nullopt;
  if (!elements.has_value()) {
    return std::nullopt;
  }
  const std::int64_t columns = x.shape()[dims[1]];
  const auto values = diagonals(*elements, x.shape()[dims[0]], columns);
  if (!values.has_value()) {
    return std::nullopt;
  }
  std::vector<std::size_t> steps;  // where the value changes
  for (std::size_t k = 1; k < values->size(); ++k) {
    if (!((*values)[k] == (*values)[k - 1])) {
      steps.push_back(k);
    }
  }
  const bool two_sided = steps.size() == 2 && values->front() == values->back();
  if (steps.size() != 1 && !two_sided) {
    return std::nullopt;
  }
  Band band{.row = dims[0], .column = dims[1], .low = std::nullopt, .high = std::nullopt};
  band.low = static_cast<std::int64_t>(steps[0]) - (columns - 1);
  if (two_sided) {
    band.high = static_cast<std::int64_t>(steps[1]) - columns;
  }
  return ConstTensor::banded(x.type(), band, (*values)[steps[0]], values->front());
}

std::optional<ConstTensor> cumulative_sum(const TensorType& type,
                                          const ConstTensor& x,
                                          std::size_t dim) {
  const std::optional<ConstTensor> plain = x.dense();
  if (!plain.has_value()) {
    return std::nullopt;
  }
  Shape compact = plain->compact_shape();
  compact[dim] = type.shape[dim];
  const std::optional<std::size_t> count = countable(compact);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < compact.size(); ++d) {
    inner *= compact[d];
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  for_each_index(compact, [&](const Shape& index) {
    Number value = plain->at(index);
    if (index[dim] > 0) {
      const Number& before = elements[elements.size() - static_cast<std::size_t>(inner)];
      value =
          value.real ? Number::of(value.d + before.d) : Number::of(wrapping_sum(value.i, before.i));
    }
    elements.push_back(value);
  });
  return from_compact(type, compact, std::move(elements));
}

std::optional<ConstTensor> concatenate(const TensorType& type,
                                       std::span<const ConstTensor> parts,
                                       std::size_t dim) {
  Shape compact(type.shape.size(), 1);
  compact[dim] = type.shape[dim];
  std::vector<ConstTensor> plain;
  for (const ConstTensor& part : parts) {
    const std::optional<ConstTensor> dense = part.dense();
    if (!dense.has_value() || dense->shape().size() != compact.size()) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < compact.size(); ++d) {
      compact[d] = d != dim && dense->varies(d) ? type.shape[d] : compact[d];
    }
    plain.push_back(*dense);
  }
  const std::optional<std::size_t> count = countable(compact);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  for_each_index(compact, [&](const Shape& index) {
    Shape local = index;
    std::size_t part = 0;
    while (local[dim] >= plain[part].shape()[dim]) {
      local[dim] -= plain[part++].shape()[dim];
    }
    elements.push_back(plain[part].at(local));
  });
  return from_compact(type, compact, std::move(elements));
}

std::optional<ConstTensor> gather(const TensorType& type,
                                  const ConstTensor& x,
                                  std::span<const ConstTensor> indices) {
  const std::size_t kept = x.shape().size() - indices.size();
  const std::size_t chosen = type.shape.size() - kept;
  const Shape index_shape(type.shape.begin(),
                          type.shape.begin() + static_cast<std::ptrdiff_t>(chosen));
  const std::optional<ConstTensor> source = x.dense();
  if (!source.has_value()) {
    return std::nullopt;
  }
  Shape compact(type.shape.size(), 1);
  std::vector<ConstTensor> wide;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const std::optional<ConstTensor> plain = indices[k].dense();
    if (!plain.has_value()) {
      return std::nullopt;
    }
    wide.push_back(plain->expand(index_shape));
    // Along a dimension in which x does not vary, the index makes no difference.
    for (std::size_t d = 0; source->varies(k) && d < chosen; ++d) {
      compact[d] = wide.back().varies(d) ? type.shape[d] : compact[d];
    }
  }
  for (std::size_t d = 0; d < kept; ++d) {
    compact[chosen + d] = source->varies(indices.size() + d) ? type.shape[chosen + d] : 1;
  }
  const std::optional<std::size_t> count = countable(compact);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  bool in_range = true;
  Shape from(x.shape().size(), 0);
  for_each_index(compact, [&](const Shape& index) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      std::int64_t i = wide[k].at(std::span(index).first(chosen)).as_int();
      i += i < 0 ? x.shape()[k] : 0;
      in_range = in_range && i >= 0 && i < x.shape()[k];
      from[k] = std::clamp<std::int64_t>(i, 0, x.shape()[k] - 1);
    }
    std::copy(index.begin() + static_cast<std::ptrdiff_t>(chosen),
              index.end(),
              from.begin() + static_cast<std::ptrdiff_t>(wide.size()));
    elements.push_back(source->at(from));
  });
  return in_range ? from_compact(type, compact, std::move(elements)) : std::nullopt;
}

}  // namespace shardplan::frontends
