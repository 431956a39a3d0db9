// Comparisons and logic. Models compute their masks with them, mostly from constants.

#include <algorithm>
#include <array>
#include <cstdlib>

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::TensorType;
using ir::ValueId;
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

Folded fold_comparison(AtenCall& c) {
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  if (!a.has_value() || !b.has_value() || !c.ok() || a->shape().size() > type.shape.size() ||
      b->shape().size() > type.shape.size()) {
    return std::nullopt;
  }
  if (Folded band = comparison_band(c.ours(), type, *a, *b)) {
    return band;
  }
  const std::vector<ConstTensor> operands{*a, *b};
  return elementwise(type, operands, [&](std::span<const Number> v) {
    return Number::of(std::int64_t{compare(c.ours(), v[0], v[1])});
  });
}

/// Both bands at once, when they run along the same dimensions.
Folded intersection(const TensorType& type, const ConstTensor& a, const ConstTensor& b) {
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

Folded fold_logical(AtenCall& c) {
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  if (!a.has_value() || !b.has_value() || type.dtype != DType::kBool || !c.ok()) {
    return std::nullopt;
  }
  const bool conjunction = c.ours() == "logical_and";
  for (const auto& [x, other] : {std::pair(*a, *b), std::pair(*b, *a)}) {
    const std::optional<Number> value = x.uniform();
    if (value.has_value()) {
      const bool neutral = (value->as_double() != 0) == conjunction;
      return neutral ? other.expand(type.shape) : x.expand(type.shape);
    }
  }
  if (conjunction) {
    if (Folded both = intersection(type, *a, *b)) {
      return both;
    }
  }
  const std::vector<ConstTensor> operands{*a, *b};
  return elementwise(type, operands, [&](std::span<const Number> v) {
    const bool x = v[0].as_double() != 0;
    const bool y = v[1].as_double() != 0;
    return Number::of(std::int64_t{conjunction ? x && y : x || y});
  });
}

Folded fold_not(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  if (x == nullptr || type.dtype != DType::kBool || !c.ok()) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{*x};
  return elementwise(type, operands, [](std::span<const Number> v) {
    return Number::of(std::int64_t{v[0].as_double() == 0});
  });
}

DType common_dtype(DType a, DType b) {
  if (ir::is_floating(a) != ir::is_floating(b)) {
    return ir::is_floating(a) ? a : b;
  }
  if (a != b && ir::element_bytes(a) == ir::element_bytes(b) && ir::is_floating(a)) {
    return DType::kFloat32;  // bf16 with f16
  }
  return ir::element_bytes(a) >= ir::element_bytes(b) ? a : b;
}

void map_comparison(AtenCall& c) {
  const std::string op(c.ours());
  if (const std::optional<double> value = c.scalar_beside("other", "self")) {
    const ValueId x = c.tensor("self");
    c.result(c.builder().emit(op + "_scalar", {x}, {{"value", *value}}));
    return;
  }
  const DType dtype = common_dtype(c.type_of("self").dtype, c.type_of("other").dtype);
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId y = c.tensor_as("other", dtype);
  c.result(c.builder().emit(op, {x, y}));
}

void map_logical(AtenCall& c) {
  if (c.result_type().dtype != DType::kBool) {
    c.unsupported("is supported on bool tensors only");
    return;
  }
  const ValueId x = c.tensor_as("self", DType::kBool);
  const ValueId y = c.tensor_as("other", DType::kBool);
  c.result(c.builder().emit(std::string(c.ours()), {x, y}));
}

void map_not(AtenCall& c) {
  if (c.result_type().dtype != DType::kBool) {
    c.unsupported("is supported on bool tensors only");
    return;
  }
  const ValueId x = c.tensor("self");
  c.result(c.builder().emit("logical_not", {x}));
}

}  // namespace

std::vector<AtenOp> aten_logic() {
  std::vector<AtenOp> rows;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kComparisons{
      {{"aten.eq.Tensor", "eq"},
       {"aten.eq.Scalar", "eq"},
       {"aten.ne.Tensor", "ne"},
       {"aten.ne.Scalar", "ne"},
       {"aten.lt.Tensor", "lt"},
       {"aten.lt.Scalar", "lt"},
       {"aten.le.Tensor", "le"},
       {"aten.le.Scalar", "le"},
       {"aten.gt.Tensor", "gt"},
       {"aten.gt.Scalar", "gt"},
       {"aten.ge.Tensor", "ge"},
       {"aten.ge.Scalar", "ge"}}};
  rows.reserve(kComparisons.size());
  for (const auto& [target, ours] : kComparisons) {
    rows.push_back({target, map_comparison, ours, fold_comparison});
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLogical{
      {{"aten.__and__.Tensor", "logical_and"},
       {"aten.bitwise_and.Tensor", "logical_and"},
       {"aten.logical_and.default", "logical_and"},
       {"aten.__or__.Tensor", "logical_or"},
       {"aten.bitwise_or.Tensor", "logical_or"},
       {"aten.logical_or.default", "logical_or"}}};
  for (const auto& [target, ours] : kLogical) {
    rows.push_back({target, map_logical, ours, fold_logical});
  }
  rows.push_back({"aten.logical_not.default", map_not, "logical_not", fold_not});
  rows.push_back({"aten.bitwise_not.default", map_not, "logical_not", fold_not});
  return rows;
}

}  // namespace shardplan::frontends
