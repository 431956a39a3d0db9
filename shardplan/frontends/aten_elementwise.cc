// Elementwise operators: arithmetic, activations, selection, dropout.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/const_fold.h"

namespace shardplan::frontends {

namespace {

using ir::DType;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

// Folding -----------------------------------------------------------------------------------------

Folded fold_arithmetic(AtenCall& c) {
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  if (!a.has_value() || !b.has_value() || !c.ok()) {
    return std::nullopt;
  }
  const Number alpha = c.number("alpha").value_or(Number::of(std::int64_t{1}));
  const bool swapped = c.ours() == "rsub";
  const std::string_view op = swapped ? "sub" : c.ours();
  const std::vector<ConstTensor> operands{swapped ? *b : *a, swapped ? *a : *b};
  return elementwise(type, operands, [&](std::span<const Number> v) {
    return arithmetic(op, v[0], op == "add" || op == "sub" ? arithmetic("mul", v[1], alpha) : v[1]);
  });
}

Folded fold_unary(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  // Other functions may round differently from PyTorch's kernels.
  if (x == nullptr || (c.ours() != "neg" && c.ours() != "abs") || !c.ok()) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{*x};
  const Number zero = Number::of(std::int64_t{0});
  return elementwise(type, operands, [&](std::span<const Number> v) {
    const bool keep = c.ours() == "abs" && v[0].as_double() >= 0;
    return keep ? v[0] : arithmetic("sub", zero, v[0]);
  });
}

Folded fold_where(AtenCall& c) {
  const ConstTensor* const condition = c.constant("condition");
  const Folded a = c.constant_or_number("self");
  const Folded b = c.constant_or_number("other");
  const TensorType type = c.result_type();
  if (condition == nullptr || !a.has_value() || !b.has_value() || !c.ok()) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{*condition, *a, *b};
  return elementwise(type, operands, [](std::span<const Number> v) {
    return v[0].as_double() != 0 ? v[1] : v[2];
  });
}

Folded fold_masked_fill(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const ConstTensor* const mask = c.constant("mask");
  const Folded value = c.constant_or_number("value");
  const TensorType type = c.result_type();
  if (x == nullptr || mask == nullptr || !value.has_value() || !c.ok()) {
    return std::nullopt;
  }
  const std::vector<ConstTensor> operands{*mask, *value, *x};
  return elementwise(type, operands, [](std::span<const Number> v) {
    return v[0].as_double() != 0 ? v[1] : v[2];
  });
}

// Mapping -----------------------------------------------------------------------------------------

void map_unary(AtenCall& c) {
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  c.result(c.builder().emit(std::string(c.ours()), {x}));
}

void map_gelu(AtenCall& c) {
  const ValueId x = c.tensor("self");
  c.result(c.builder().emit("gelu", {x}, {{"approximate", c.text("approximate", "none")}}));
}

ValueId with_scalar(AtenCall& c, std::string_view op, ValueId x, double value) {
  Builder& b = c.builder();
  if (op == "add") {
    return b.emit("add_scalar", {x}, {{"value", value}});
  }
  if (op == "sub") {
    return b.emit("add_scalar", {x}, {{"value", -value}});
  }
  if (op == "mul") {
    return b.emit("scale", {x}, {{"factor", value}});
  }
  if (op == "div") {
    return b.emit("scale", {x}, {{"factor", 1.0 / value}});
  }
  return b.emit("maximum_scalar", {x}, {{"value", value}});
}

/// add, sub, mul, div, maximum of a tensor and a tensor or number.
void map_arithmetic(AtenCall& c) {
  Builder& b = c.builder();
  const DType dtype = c.result_type().dtype;
  const double alpha = c.real("alpha", 1.0);
  const std::string op(c.ours());
  if (const std::optional<double> value = c.scalar_beside("other", "self")) {
    c.result(with_scalar(c, op, c.tensor_as("self", dtype), *value * alpha));
    return;
  }
  const bool commutes = op == "add" || op == "mul" || op == "maximum";
  if (commutes && alpha == 1.0 && c.constant("self") != nullptr) {
    if (const std::optional<double> value = c.scalar_beside("self", "other")) {
      c.result(with_scalar(c, op, c.tensor_as("other", dtype), *value));
      return;
    }
  }
  const ValueId x = c.tensor_as("self", dtype);
  ValueId y = c.tensor_as("other", dtype);
  if (alpha != 1.0) {
    y = b.emit("scale", {y}, {{"factor", alpha}});
  }
  c.result(b.emit(op, {x, y}));
}

void map_rsub(AtenCall& c) {
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  const ValueId negative = c.builder().emit("scale", {x}, {{"factor", -c.real("alpha", 1.0)}});
  c.result(with_scalar(c, "add", negative, c.real("other", 0)));
}

void map_pow(AtenCall& c) {
  const double exponent = c.real("exponent", 1.0);
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  if (exponent == 1.0) {
    c.result(x);
    return;
  }
  c.result(c.builder().emit("pow_scalar", {x}, {{"exponent", exponent}}));
}

void map_square(AtenCall& c) {
  const ValueId x = c.tensor("self");
  c.result(c.builder().emit("mul", {x, x}));
}

void map_power_of_base(AtenCall& c) {
  const double base = c.real("self", 1.0);
  if (base <= 0) {
    c.unsupported("is supported with a positive base only");
    return;
  }
  const ValueId x = c.tensor_as("exponent", c.result_type().dtype);
  const ValueId scaled = c.builder().emit("scale", {x}, {{"factor", std::log(base)}});
  c.result(c.builder().emit("exp", {scaled}));
}

/// clamp, clamp_min, clamp_max with numbers as bounds.
void map_clamp(AtenCall& c) {
  ValueId x = c.tensor_as("self", c.result_type().dtype);
  if (c.given("min")) {
    x = c.builder().emit("maximum_scalar", {x}, {{"value", c.real("min", 0.0)}});
  }
  if (c.given("max")) {
    x = c.builder().emit("minimum_scalar", {x}, {{"value", c.real("max", 0.0)}});
  }
  c.result(x);
}

/// A branch of a selection: a number as a scalar, or a tensor.
ValueId branch(AtenCall& c, std::string_view name, DType dtype) {
  const std::optional<Number> value = c.number(name);
  if (value.has_value()) {
    return c.materialize_compact(ConstTensor::full({dtype, {}}, *value));
  }
  return c.tensor_as(name, dtype);
}

void finish_where(AtenCall& c, ValueId condition, ValueId a, ValueId b) {
  if (!c.ok()) {
    return;
  }
  ValueId y = c.builder().emit("where", {condition, a, b});
  const TensorType type = c.result_type();
  if (c.ok() && c.builder().type(y).shape != type.shape) {
    y = c.builder().emit("broadcast", {y}, {{"shape", ir::IntList(type.shape)}});
  }
  c.result(y);
}

void map_where(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId condition = c.tensor_as("condition", DType::kBool);
  const ValueId a = branch(c, "self", dtype);
  const ValueId b = branch(c, "other", dtype);
  finish_where(c, condition, a, b);
}

void map_masked_fill(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId mask = c.tensor_as("mask", DType::kBool);
  const ValueId value = branch(c, "value", dtype);
  const ValueId x = c.tensor_as("self", dtype);
  finish_where(c, mask, value, x);
}

void map_dropout(AtenCall& c) {
  const bool native = c.ours() == "native_dropout";
  const ValueId x = c.tensor("input");
  const double p = c.real("p", 0.5);
  if (!c.flag("train", native) || p == 0) {
    c.result(x);
    return;
  }
  c.result(c.builder().emit("dropout", {x}, {{"p", p}, {"seed", c.next_dropout_site()}}));
}

// Rows --------------------------------------------------------------------------------------------

void add_unary_rows(std::vector<AtenOp>& rows) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kUnary{
      {{"aten.neg.default", "neg"},
       {"aten.abs.default", "abs"},
       {"aten.exp.default", "exp"},
       {"aten.log.default", "log"},
       {"aten.sqrt.default", "sqrt"},
       {"aten.rsqrt.default", "rsqrt"},
       {"aten.reciprocal.default", "reciprocal"},
       {"aten.sin.default", "sin"},
       {"aten.cos.default", "cos"},
       {"aten.tanh.default", "tanh"},
       {"aten.sigmoid.default", "sigmoid"},
       {"aten.relu.default", "relu"},
       {"aten.silu.default", "silu"},
       {"aten.silu_.default", "silu"}}};
  for (const auto& [target, ours] : kUnary) {
    rows.push_back({target, map_unary, ours, fold_unary});
  }
  rows.push_back({"aten.gelu.default", map_gelu});
  rows.push_back({"aten.square.default", map_square});
  rows.push_back({"aten.clamp.default", map_clamp});
  rows.push_back({"aten.clamp_min.default", map_clamp});
  rows.push_back({"aten.clamp_max.default", map_clamp});
  rows.push_back({"aten.native_dropout.default", map_dropout, "native_dropout"});
  rows.push_back({"aten.dropout.default", map_dropout, "dropout"});
}

void add_binary_rows(std::vector<AtenOp>& rows) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kArithmetic{
      {{"aten.add.Tensor", "add"},
       {"aten.add.Scalar", "add"},
       {"aten.sub.Tensor", "sub"},
       {"aten.sub.Scalar", "sub"},
       {"aten.mul.Tensor", "mul"},
       {"aten.mul.Scalar", "mul"},
       {"aten.div.Tensor", "div"},
       {"aten.div.Scalar", "div"}}};
  for (const auto& [target, ours] : kArithmetic) {
    rows.push_back({target, map_arithmetic, ours, fold_arithmetic});
  }
  rows.push_back({"aten.maximum.default", map_arithmetic, "maximum"});
  rows.push_back({"aten.rsub.Scalar", map_rsub, "rsub", fold_arithmetic});
  rows.push_back({"aten.pow.Tensor_Scalar", map_pow});
  rows.push_back({"aten.pow.Scalar", map_power_of_base});
}

}  // namespace

std::vector<AtenOp> aten_elementwise() {
  std::vector<AtenOp> rows;
  add_unary_rows(rows);
  add_binary_rows(rows);
  for (const std::string_view target : {"aten.where.self",
                                        "aten.where.ScalarSelf",
                                        "aten.where.ScalarOther",
                                        "aten.where.Scalar"}) {
    rows.push_back({.target = target, .map = map_where, .fold = fold_where});
  }
  for (const std::string_view target : {"aten.masked_fill.Scalar", "aten.masked_fill.Tensor"}) {
    rows.push_back({.target = target, .map = map_masked_fill, .fold = fold_masked_fill});
  }
  return rows;
}

}  // namespace shardplan::frontends
