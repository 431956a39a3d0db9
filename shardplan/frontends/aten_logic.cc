// Comparisons and logic. Models compute their masks with them, mostly from constants.

#include <array>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/const_fold.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

Folded fold_compared(AtenCall& c) {
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  return a.has_value() && b.has_value() && c.ok() ? fold_comparison(c.ours(), type, *a, *b)
                                                  : std::nullopt;
}

Folded fold_combined(AtenCall& c) {
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  const bool known = a.has_value() && b.has_value() && type.dtype == DType::kBool && c.ok();
  return known ? fold_logical(c.ours(), type, *a, *b) : std::nullopt;
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
    rows.push_back({target, map_comparison, ours, fold_compared});
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLogical{
      {{"aten.__and__.Tensor", "logical_and"},
       {"aten.bitwise_and.Tensor", "logical_and"},
       {"aten.logical_and.default", "logical_and"},
       {"aten.__or__.Tensor", "logical_or"},
       {"aten.bitwise_or.Tensor", "logical_or"},
       {"aten.logical_or.default", "logical_or"}}};
  for (const auto& [target, ours] : kLogical) {
    rows.push_back({target, map_logical, ours, fold_combined});
  }
  rows.push_back({"aten.logical_not.default", map_not, "logical_not", fold_not});
  rows.push_back({"aten.bitwise_not.default", map_not, "logical_not", fold_not});
  return rows;
}

}  // namespace shardplan::frontends
