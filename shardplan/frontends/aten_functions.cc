// Functions of elements and activations that have an op of their own, or are short compositions.

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

ValueId emit(AtenCall& c, const char* op, std::vector<ValueId> operands, Attributes a = {}) {
  return c.builder().emit(op, std::move(operands), std::move(a));
}

ValueId scaled(AtenCall& c, ValueId x, double factor) {
  return factor == 1.0 ? x : emit(c, "scale", {x}, {{"factor", factor}});
}

ValueId shifted(AtenCall& c, ValueId x, double value) {
  return emit(c, "add_scalar", {x}, {{"value", value}});
}

/// A scalar in the graph.
ValueId scalar(AtenCall& c, double value, DType dtype) {
  return c.materialize_compact(ConstTensor::full({dtype, {}}, Number::of(value)));
}

// Of one element ----------------------------------------------------------------------------------

/// On integers these change nothing, or the operand becomes real.
void map_function(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  if (!ir::is_floating(dtype) && c.ours() != "sign") {
    c.result(x);
    return;
  }
  if (!ir::is_floating(dtype)) {
    c.unsupported("is supported on floating tensors only");
    return;
  }
  c.result(c.builder().emit(std::string(c.ours()), {x}));
}

/// log2, log10, exp2, erfc.
void map_related(AtenCall& c) {
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  if (c.ours() == "exp2") {
    c.result(emit(c, "exp", {scaled(c, x, std::numbers::ln2)}));
  } else if (c.ours() == "erfc") {
    c.result(shifted(c, emit(c, "neg", {emit(c, "erf", {x})}), 1.0));
  } else {
    const double factor = c.ours() == "log2" ? 1.0 / std::numbers::ln2 : 1.0 / std::numbers::ln10;
    c.result(scaled(c, emit(c, "log", {x}), factor));
  }
}

/// isnan, isinf, isfinite.
void map_is(AtenCall& c) {
  const ValueId x = c.tensor("self");
  if (!ir::is_floating(c.type_of("self").dtype)) {
    c.result(c.materialize(ConstTensor::full(
        c.result_type(), Number::of(std::int64_t{c.ours() == "finite" ? 1 : 0}))));
    return;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (c.ours() == "nan") {
    c.result(emit(c, "ne", {x, x}));
    return;
  }
  // A NaN is no infinity, and is not below it.
  const char* const how = c.ours() == "inf" ? "eq_scalar" : "lt_scalar";
  c.result(emit(c, how, {emit(c, "abs", {x})}, {{"value", kInfinity}}));
}

// Of two ------------------------------------------------------------------------------------------

/// An operand that is a tensor or a number, as a tensor that broadcasts.
ValueId tensor_or_number(AtenCall& c, std::string_view name, DType dtype) {
  if (const std::optional<Number> value = c.number(name)) {
    return c.materialize_compact(ConstTensor::full({dtype, {}}, *value));
  }
  return c.tensor_as(name, dtype);
}

/// pow, atan2, remainder, minimum, maximum of tensors or numbers.
void map_pair(AtenCall& c) {
  const TensorType type = c.result_type();
  const std::string second = c.given("exponent") ? "exponent" : "other";
  const ValueId a = tensor_or_number(c, "self", type.dtype);
  const ValueId b = tensor_or_number(c, second, type.dtype);
  c.result(broadcast_to(c.builder(), c.builder().emit(std::string(c.ours()), {a, b}), type.shape));
}

/// div with a rounding mode, floor_divide, fmod.
void map_rounded_quotient(AtenCall& c) {
  const TensorType type = c.result_type();
  const std::string mode = c.text("rounding_mode", c.ours() == "floor" ? "floor" : "");
  const bool fmod = c.ours() == "fmod";
  const ValueId a = tensor_or_number(c, "self", type.dtype);
  const ValueId b = tensor_or_number(c, "other", type.dtype);
  if (mode == "floor") {
    c.result(broadcast_to(c.builder(), emit(c, "floor_div", {a, b}), type.shape));
    return;
  }
  if (!ir::is_floating(type.dtype)) {
    c.unsupported("towards zero is supported on floating tensors only");
    return;
  }
  const ValueId quotient = emit(c, "div", {a, b});
  ValueId y = mode == "trunc" || fmod ? emit(c, "trunc", {quotient}) : quotient;
  if (fmod) {
    y = emit(c, "sub", {a, emit(c, "mul", {y, b})});
  }
  c.result(broadcast_to(c.builder(), y, type.shape));
}

void map_xor(AtenCall& c) {
  if (c.result_type().dtype != DType::kBool) {
    c.unsupported("is supported on bool tensors only");
    return;
  }
  c.result(emit(c, "ne", {c.tensor_as("self", DType::kBool), c.tensor_as("other", DType::kBool)}));
}

/// self + value · a (· or /) b.
void map_fused_product(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId a = c.tensor_as("tensor1", dtype);
  const ValueId b = c.tensor_as("tensor2", dtype);
  const ValueId product =
      scaled(c, c.builder().emit(std::string(c.ours()), {a, b}), c.real("value", 1.0));
  c.result(emit(c, "add", {c.tensor_as("self", dtype), product}));
}

/// self + weight · (end - self).
void map_lerp(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId difference = emit(c, "sub", {c.tensor_as("end", dtype), x});
  const ValueId weight = tensor_or_number(c, "weight", dtype);
  c.result(emit(c, "add", {x, emit(c, "mul", {difference, weight})}));
}

void map_rsub_tensor(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = scaled(c, c.tensor_as("self", dtype), c.real("alpha", 1.0));
  c.result(emit(c, "sub", {c.tensor_as("other", dtype), x}));
}

void map_clamp_tensor(AtenCall& c) {
  const TensorType type = c.result_type();
  ValueId x = c.tensor_as("self", type.dtype);
  if (c.given("min")) {
    x = emit(c, "maximum", {x, tensor_or_number(c, "min", type.dtype)});
  }
  if (c.given("max")) {
    x = emit(c, "minimum", {x, tensor_or_number(c, "max", type.dtype)});
  }
  c.result(broadcast_to(c.builder(), x, type.shape));
}

// Activations -------------------------------------------------------------------------------------

void map_plain(AtenCall& c) {
  c.result(c.builder().emit(std::string(c.ours()), {c.tensor("self")}));
}

void map_leaky_relu(AtenCall& c) {
  c.result(emit(c, "leaky_relu", {c.tensor("self")}, {{"slope", c.real("negative_slope", 0.01)}}));
}

void map_elu(AtenCall& c) {
  constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
  constexpr double kSeluScale = 1.0507009873554804934193349852946;
  const double alpha = c.real("alpha", 1.0);
  Attributes attributes{{"alpha", alpha},
                        {"scale", c.real("scale", 1.0)},
                        {"input_scale", c.real("input_scale", 1.0)}};
  if (c.ours() == "selu") {
    attributes = {{"alpha", kSeluAlpha}, {"scale", kSeluScale}, {"input_scale", 1.0}};
  } else if (c.ours() == "celu") {
    attributes = {{"alpha", alpha}, {"scale", 1.0}, {"input_scale", 1.0 / alpha}};
  }
  c.result(emit(c, "elu", {c.tensor("self")}, std::move(attributes)));
}

void map_softplus(AtenCall& c) {
  c.result(emit(c,
                "softplus",
                {c.tensor("self")},
                {{"beta", c.real("beta", 1.0)}, {"threshold", c.real("threshold", 20.0)}}));
}

/// log(sigmoid(x)) = -softplus(-x), whose straight part begins where it is exact.
void map_log_sigmoid(AtenCall& c) {
  const ValueId negative = emit(c, "neg", {c.tensor("self")});
  c.result(emit(c, "neg", {emit(c, "softplus", {negative}, {{"beta", 1.0}, {"threshold", 40.0}})}));
}

void map_hardtanh(AtenCall& c) {
  const bool six = c.ours() == "relu6";
  c.result(emit(c,
                "hardtanh",
                {c.tensor("self")},
                {{"low", six ? 0.0 : c.real("min_val", -1.0)},
                 {"high", six ? 6.0 : c.real("max_val", 1.0)}}));
}

/// x where x > 0, else weight · x; the weight is one number, or one a channel.
void map_prelu(AtenCall& c) {
  const ValueId x = c.tensor("self");
  ValueId weight = c.tensor("weight");
  const TensorType type = c.type_of("self");
  const std::int64_t count = c.type_of("weight").numel();
  if (count > 1 && type.rank() > 1) {
    Shape aligned(type.shape.size() - 1, 1);
    aligned.front() = count;
    weight = c.reshape(weight, aligned);
  } else if (type.rank() == 0) {
    weight = c.reshape(weight, {});
  }
  const ValueId positive = emit(c, "gt_scalar", {x}, {{"value", 0.0}});
  c.result(emit(c, "where", {positive, x, emit(c, "mul", {x, weight})}));
}

void map_glu(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dim", -1, type.rank());
  if (!c.ok() || type.shape[dim] % 2 != 0) {
    c.invalid("halves a dimension of odd size");
    return;
  }
  const std::int64_t half = type.shape[dim] / 2;
  const ValueId value = sliced(c.builder(), x, dim, 0, half);
  const ValueId gate = sliced(c.builder(), x, dim, half, 2 * half);
  c.result(emit(c, "mul", {value, emit(c, "sigmoid", {gate})}));
}

/// x where |x| is above lambd, else 0; the soft form moves it by lambd towards 0.
void map_shrink(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const double lambd = c.real("lambd", 0.5);
  const DType dtype = c.result_type().dtype;
  const ValueId large = emit(c, "gt_scalar", {emit(c, "abs", {x})}, {{"value", lambd}});
  ValueId y = x;
  if (c.ours() == "soft") {
    y = emit(c, "sub", {x, scaled(c, emit(c, "sign", {x}), lambd)});
  }
  c.result(emit(c, "where", {large, y, scalar(c, 0.0, dtype)}));
}

void map_threshold(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const ValueId above = emit(c, "gt_scalar", {x}, {{"value", c.real("threshold", 0.0)}});
  c.result(emit(c, "where", {above, x, scalar(c, c.real("value", 0.0), c.result_type().dtype)}));
}

// log(e^a + e^b) = max + log(1 + e^(min - max)).
void map_logaddexp(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId a = c.tensor_as("self", dtype);
  const ValueId b = c.tensor_as("other", dtype);
  const ValueId distance = emit(c, "abs", {emit(c, "sub", {a, b})});
  const ValueId tail = emit(c, "log1p", {emit(c, "exp", {emit(c, "neg", {distance})})});
  c.result(emit(c, "add", {emit(c, "maximum", {a, b}), tail}));
}

// Rows --------------------------------------------------------------------------------------------

void add_function_rows(std::vector<AtenOp>& rows) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kFunctions{
      {{"aten.erf.default", "erf"},
       {"aten.tan.default", "tan"},
       {"aten.asin.default", "asin"},
       {"aten.acos.default", "acos"},
       {"aten.atan.default", "atan"},
       {"aten.sinh.default", "sinh"},
       {"aten.cosh.default", "cosh"},
       {"aten.expm1.default", "expm1"},
       {"aten.log1p.default", "log1p"},
       {"aten.sign.default", "sign"},
       {"aten.floor.default", "floor"},
       {"aten.ceil.default", "ceil"},
       {"aten.round.default", "round"},
       {"aten.trunc.default", "trunc"}}};
  for (const auto& [target, ours] : kFunctions) {
    rows.push_back({target, map_function, ours});
  }
  rows.push_back({"aten.log2.default", map_related, "log2"});
  rows.push_back({"aten.log10.default", map_related, "log10"});
  rows.push_back({"aten.exp2.default", map_related, "exp2"});
  rows.push_back({"aten.erfc.default", map_related, "erfc"});
  rows.push_back({"aten.isnan.default", map_is, "nan"});
  rows.push_back({"aten.isinf.default", map_is, "inf"});
  rows.push_back({"aten.isfinite.default", map_is, "finite"});
}

void add_pair_rows(std::vector<AtenOp>& rows) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kPairs{
      {{"aten.pow.Tensor_Tensor", "pow"},
       {"aten.atan2.default", "atan2"},
       {"aten.remainder.Tensor", "remainder"},
       {"aten.remainder.Scalar", "remainder"},
       {"aten.remainder.Scalar_Tensor", "remainder"},
       {"aten.minimum.default", "minimum"},
       {"aten.min.other", "minimum"},
       {"aten.max.other", "maximum"}}};
  for (const auto& [target, ours] : kPairs) {
    rows.push_back({target, map_pair, ours});
  }
  rows.push_back({"aten.div.Tensor_mode", map_rounded_quotient, "div"});
  rows.push_back({"aten.div.Scalar_mode", map_rounded_quotient, "div"});
  rows.push_back({"aten.floor_divide.default", map_rounded_quotient, "floor"});
  rows.push_back({"aten.floor_divide.Scalar", map_rounded_quotient, "floor"});
  rows.push_back({"aten.fmod.Tensor", map_rounded_quotient, "fmod"});
  rows.push_back({"aten.fmod.Scalar", map_rounded_quotient, "fmod"});
  rows.push_back({"aten.logical_xor.default", map_xor});
  rows.push_back({"aten.bitwise_xor.Tensor", map_xor});
  rows.push_back({"aten.__xor__.Tensor", map_xor});
  rows.push_back({"aten.addcmul.default", map_fused_product, "mul"});
  rows.push_back({"aten.addcdiv.default", map_fused_product, "div"});
  rows.push_back({"aten.lerp.Scalar", map_lerp});
  rows.push_back({"aten.lerp.Tensor", map_lerp});
  rows.push_back({"aten.rsub.Tensor", map_rsub_tensor});
  rows.push_back({"aten.clamp.Tensor", map_clamp_tensor});
  rows.push_back({"aten.clamp_min.Tensor", map_clamp_tensor});
  rows.push_back({"aten.clamp_max.Tensor", map_clamp_tensor});
  rows.push_back({"aten.logaddexp.default", map_logaddexp});
}

}  // namespace

std::vector<AtenOp> aten_functions() {
  std::vector<AtenOp> rows{{"aten.leaky_relu.default", map_leaky_relu},
                           {"aten.elu.default", map_elu, "elu"},
                           {"aten.selu.default", map_elu, "selu"},
                           {"aten.celu.default", map_elu, "celu"},
                           {"aten.softplus.default", map_softplus},
                           {"aten.log_sigmoid.default", map_log_sigmoid},
                           {"aten.hardtanh.default", map_hardtanh, "hardtanh"},
                           {"aten.relu6.default", map_hardtanh, "relu6"},
                           {"aten.hardswish.default", map_plain, "hardswish"},
                           {"aten.hardsigmoid.default", map_plain, "hardsigmoid"},
                           {"aten.mish.default", map_plain, "mish"},
                           {"aten.prelu.default", map_prelu},
                           {"aten.glu.default", map_glu},
                           {"aten.hardshrink.default", map_shrink, "hard"},
                           {"aten.softshrink.default", map_shrink, "soft"},
                           {"aten.threshold.default", map_threshold}};
  add_function_rows(rows);
  add_pair_rows(rows);
  return rows;
}

}  // namespace shardplan::frontends
