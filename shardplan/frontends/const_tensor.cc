#include "shardplan/frontends/const_tensor.h"

#include <algorithm>
#include <utility>

#include "shardplan/frontends/index_space.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

using ir::DType;
using ir::Shape;
using ir::TensorType;

namespace {

bool in_band(const Band& band, std::int64_t difference) {
  return (!band.low.has_value() || difference >= *band.low) &&
         (!band.high.has_value() || difference <= *band.high);
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

Band ordered(const Band& band) {
  if (band.row < band.column) {
    return band;
  }
  const auto negated = [](std::optional<std::int64_t> x) {
    return x.has_value() ? std::optional(wrapping_product(*x, -1)) : std::nullopt;
  };
  return {band.column, band.row, negated(band.high), negated(band.low)};
}

ConstTensor ConstTensor::full(TensorType type, Number value) {
  ConstTensor out;
  out.strides_.assign(type.shape.size(), 0);
  out.elements_ = std::make_shared<const std::vector<Number>>(1, round_to(type.dtype, value));
  out.type_ = std::move(type);
  return out;
}

std::optional<ConstTensor> ConstTensor::arange(TensorType type, Number start, Number step) {
  const std::optional<std::size_t> count = element_count(type.shape, ConstTensor::kMaxElements);
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
  const std::optional<std::size_t> count = element_count(type.shape, ConstTensor::kMaxElements);
  const auto width = static_cast<std::size_t>(ir::element_bytes(type.dtype));
  if (!count.has_value() || bytes.size() != *count * width || is_narrow(type.dtype)) {
    return std::nullopt;
  }
  std::vector<Number> elements(*count);
  for (std::size_t k = 0; k < *count; ++k) {
    elements[k] = read_element(type.dtype, bytes.data() + k * width);
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
  const std::optional<std::size_t> count = element_count(shape, ConstTensor::kMaxElements);
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
    write_element(type_.dtype, (*elements)[k], bytes.data() + k * width);
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

bool ConstTensor::expands_to(const Shape& shape) const {
  const Shape& own = type_.shape;
  return own.size() <= shape.size() &&
         std::equal(own.rbegin(), own.rend(), shape.rbegin(), [](std::int64_t a, std::int64_t b) {
           return a == 1 || a == b;
         });
}

ConstTensor ConstTensor::expand(const Shape& shape) const {
  SHARDPLAN_CHECK(expands_to(shape)) << "a constant cannot be expanded to a shape";
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
    const std::optional<std::size_t> count = element_count(shape, ConstTensor::kMaxElements);
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

}  // namespace shardplan::frontends
