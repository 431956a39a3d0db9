#include "shardplan/frontends/const_fold.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "shardplan/frontends/const_eval.h"

namespace shardplan::frontends {

using ir::TensorType;

namespace {

using Folded = std::optional<ConstTensor>;

bool compare(std::string_view op, const Number& a, const Number& b) {
  const auto by = [&](auto x, auto y) {
    return op == "eq"   ? x == y
           : op == "ne" ? x != y
           : op == "lt" ? x < y
           : op == "le" ? x <= y
           : op == "gt" ? x > y
                        : x >= y;
  };
  return a.real || b.real ? by(a.as_double(), b.as_double()) : by(a.i, b.i);
}

/// a ≥ b (or ≤, >, <) where a counts along one dimension and b along another is a band: it needs no
/// elements, whatever the sequence length.
Folded comparison_band(std::string_view op, const TensorType& type, ConstTensor a, ConstTensor b) {
  if (op == "le" || op == "lt") {
    std::swap(a, b);
  } else if (op != "ge" && op != "gt") {
    return std::nullopt;
  }
  if (!a.expands_to(type.shape) || !b.expands_to(type.shape)) {
    return std::nullopt;
  }
  const std::optional<IndexLike> x = a.expand(type.shape).index_like();
  const std::optional<IndexLike> y = b.expand(type.shape).index_like();
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;
  if (!x.has_value() || !y.has_value() || x->dim == y->dim || std::abs(x->start) > kLimit ||
      std::abs(y->start) > kLimit) {
    return std::nullopt;
  }
  const bool strict = op == "gt" || op == "lt";
  return ConstTensor::band_mask(type.shape,
                                Band{.row = x->dim,
                                     .column = y->dim,
                                     .low = y->start - x->start + (strict ? 1 : 0),
                                     .high = std::nullopt});
}

/// Both bands at once, when they run along the same dimensions.
Folded intersection(const TensorType& type, const ConstTensor& a, const ConstTensor& b) {
  if (!a.expands_to(type.shape) || !b.expands_to(type.shape)) {
    return std::nullopt;
  }
  const std::optional<Band> x = a.expand(type.shape).true_band();
  const std::optional<Band> y = b.expand(type.shape).true_band();
  if (!x.has_value() || !y.has_value() || x->row != y->row || x->column != y->column) {
    return std::nullopt;
  }
  Band both = *x;
  if (y->low.has_value()) {
    both.low = both.low.has_value() ? std::max(*both.low, *y->low) : *y->low;
  }
  if (y->high.has_value()) {
    both.high = both.high.has_value() ? std::min(*both.high, *y->high) : *y->high;
  }
  return ConstTensor::band_mask(type.shape, both);
}

}  // namespace

Number arithmetic(std::string_view op, const Number& a, const Number& b) {
  if (a.real || b.real) {
    const double x = a.as_double();
    const double y = b.as_double();
    return Number::of(op == "add" ? x + y : op == "sub" ? x - y : op == "mul" ? x * y : x / y);
  }
  if (op == "div") {
    return Number::of(a.as_double() / b.as_double());
  }
  const auto x = static_cast<std::uint64_t>(a.i);
  const auto y = static_cast<std::uint64_t>(b.i);
  return Number::of(static_cast<std::int64_t>(op == "add" ? x + y : op == "sub" ? x - y : x * y));
}

std::optional<ConstTensor> fold_comparison(std::string_view op,
                                           const TensorType& type,
                                           const ConstTensor& a,
                                           const ConstTensor& b) {
  if (a.shape().size() > type.shape.size() || b.shape().size() > type.shape.size()) {
    return std::nullopt;
  }
  if (Folded band = comparison_band(op, type, a, b)) {
    return band;
  }
  const std::vector<ConstTensor> operands{a, b};
  return elementwise(type, operands, [&](std::span<const Number> v) {
    return Number::of(std::int64_t{compare(op, v[0], v[1])});
  });
}

std::optional<ConstTensor> fold_logical(std::string_view op,
                                        const TensorType& type,
                                        const ConstTensor& a,
                                        const ConstTensor& b) {
  const bool conjunction = op == "logical_and";
  for (const auto& [x, other] : {std::pair(a, b), std::pair(b, a)}) {
    const std::optional<Number> value = x.uniform();
    if (value.has_value() && x.expands_to(type.shape) && other.expands_to(type.shape)) {
      const bool neutral = (value->as_double() != 0) == conjunction;
      return neutral ? other.expand(type.shape) : x.expand(type.shape);
    }
  }
  if (conjunction) {
    if (Folded both = intersection(type, a, b)) {
      return both;
    }
  }
  const std::vector<ConstTensor> operands{a, b};
  return elementwise(type, operands, [&](std::span<const Number> v) {
    const bool x = v[0].as_double() != 0;
    const bool y = v[1].as_double() != 0;
    return Number::of(std::int64_t{conjunction ? x && y : x || y});
  });
}

}  // namespace shardplan::frontends
