// Operators that make tensors from nothing, or keep a tensor as it is.

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using Folded = std::optional<ConstTensor>;

/// All elements equal to `value`; the shape and dtype are those of the result.
Folded filled(AtenCall& c, Number value) {
  const ir::TensorType type = c.result_type();
  return c.ok() ? Folded(ConstTensor::full(type, value)) : std::nullopt;
}

Folded fold_zeros(AtenCall& c) {
  return filled(c, Number::of(std::int64_t{0}));
}
Folded fold_ones(AtenCall& c) {
  return filled(c, Number::of(std::int64_t{1}));
}

Folded fold_full(AtenCall& c) {
  const std::optional<Number> value = c.number("fill_value");
  return value.has_value() ? filled(c, *value) : std::nullopt;
}

Folded fold_scalar_tensor(AtenCall& c) {
  const std::optional<Number> value = c.number("s");
  return value.has_value() ? filled(c, *value) : std::nullopt;
}

Folded fold_eye(AtenCall& c) {
  const ir::TensorType type = c.result_type();
  if (!c.ok() || type.rank() != 2) {
    return std::nullopt;
  }
  return ConstTensor::banded(type,
                             Band{.row = 0, .column = 1, .low = 0, .high = 0},
                             Number::of(std::int64_t{1}),
                             Number::of(std::int64_t{0}));
}

Folded fold_arange(AtenCall& c) {
  const Number start = c.number("start").value_or(Number::of(std::int64_t{0}));
  const Number step = c.number("step").value_or(Number::of(std::int64_t{1}));
  const ir::TensorType type = c.result_type();
  return c.ok() ? ConstTensor::arange(type, start, step) : std::nullopt;
}

void map_identity(AtenCall& c) {
  const ir::ValueId x = c.tensor("self");
  c.result(c.cast(x, c.result_type().dtype));
}

void map_detach(AtenCall& c) {
  const ir::ValueId x = c.tensor("self");
  const bool floating = ir::is_floating(c.result_type().dtype);
  c.result(floating ? c.builder().emit("detach", {x}) : x);
}

Folded fold_identity(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  if (x == nullptr) {
    return std::nullopt;
  }
  const ir::TensorType type = c.result_type();
  if (x->type() == type) {
    return *x;
  }
  const std::vector<ConstTensor> operands{*x};
  return elementwise(type, operands, [](std::span<const Number> v) { return v[0]; });
}

/// copy, fill: the tensor or number `source` in the type and shape of `self`, whose content is
/// lost.
Folded fold_filled_from(AtenCall& c) {
  const std::optional<ConstTensor> source = c.constant_or_number(c.ours());
  const ir::TensorType type = c.result_type();
  if (!source.has_value() || !c.ok() || source->type().rank() > type.rank()) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{*source};
  const Folded cast = elementwise(
      {type.dtype, source->shape()}, operands, [](std::span<const Number> v) { return v[0]; });
  return cast.has_value() && cast->expands_to(type.shape) ? Folded(cast->expand(type.shape))
                                                          : std::nullopt;
}

void map_filled_from(AtenCall& c) {
  const ir::TensorType type = c.result_type();
  const ir::ValueId source = c.tensor_as(c.ours(), type.dtype);
  if (c.ok()) {
    c.result(broadcast_to(c.builder(), source, type.shape));
  }
}

}  // namespace

std::vector<AtenOp> aten_creation() {
  std::vector<AtenOp> rows;
  rows.push_back({"aten.copy.default", map_filled_from, "src", fold_filled_from});
  rows.push_back({"aten.fill.Tensor", map_filled_from, "value", fold_filled_from});
  rows.push_back({"aten.fill.Scalar", nullptr, "value", fold_filled_from});
  for (const std::string_view target :
       {"aten.zeros.default",
        "aten.zeros_like.default",
        "aten.new_zeros.default",
        // Their content is not defined, but must be the same on all ranks.
        "aten.empty.memory_format",
        "aten.empty_like.default",
        "aten.empty_permuted.default",
        "aten.empty_strided.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default"}) {
    rows.push_back({.target = target, .fold = fold_zeros});
  }
  for (const std::string_view target :
       {"aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"}) {
    rows.push_back({.target = target, .fold = fold_ones});
  }
  for (const std::string_view target :
       {"aten.full.default", "aten.full_like.default", "aten.new_full.default"}) {
    rows.push_back({.target = target, .fold = fold_full});
  }
  for (const std::string_view target :
       {"aten.arange.default", "aten.arange.start", "aten.arange.start_step"}) {
    rows.push_back({.target = target, .fold = fold_arange});
  }
  rows.push_back({.target = "aten.eye.default", .fold = fold_eye});
  rows.push_back({.target = "aten.eye.m", .fold = fold_eye});
  rows.push_back({.target = "aten.scalar_tensor.default", .fold = fold_scalar_tensor});
  for (const std::string_view target : {"aten.clone.default",
                                        "aten.alias.default",
                                        "aten.contiguous.default",
                                        "aten.lift_fresh.default",
                                        "aten.lift_fresh_copy.default",
                                        "aten._to_copy.default",
                                        "aten.to.dtype",
                                        "aten.to.dtype_layout",
                                        "aten.to.device",
                                        "aten.to.other",
                                        "aten.to.prim_Device",
                                        "aten.type_as.default"}) {
    rows.push_back({.target = target, .map = map_identity, .fold = fold_identity});
  }
  for (const std::string_view target : {"aten.detach.default", "aten.detach_.default"}) {
    rows.push_back({.target = target, .map = map_detach, .fold = fold_identity});
  }
  return rows;
}

}  // namespace shardplan::frontends
