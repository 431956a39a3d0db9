// Constants: written down, counted, or taken from the shape of a tensor.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shardplan/frontends/index_space.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/constants.h"
#include "shardplan/frontends/onnx/dtypes.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using Kind = Attribute::Kind;

constexpr std::int64_t kElementLimit = std::int64_t{1} << 60;

/// A list of integers as a constant of rank 1.
ConstTensor list_of(const IntList& integers) {
  std::vector<Number> elements;
  elements.reserve(integers.size());
  for (const std::int64_t integer : integers) {
    elements.push_back(Number::of(integer));
  }
  const Shape shape{static_cast<std::int64_t>(integers.size())};
  return from_compact({DType::kInt64, shape}, shape, std::move(elements)).value_or(ConstTensor());
}

ConstTensor list_of(const std::vector<double>& reals) {
  std::vector<Number> elements;
  elements.reserve(reals.size());
  for (const double real : reals) {
    elements.push_back(Number::of(real));
  }
  const Shape shape{static_cast<std::int64_t>(reals.size())};
  return from_compact({DType::kFloat32, shape}, shape, std::move(elements)).value_or(ConstTensor());
}

/// The tensor of an attribute as an operand: known, or data in the graph.
void tensor_result(Call& c, const TensorData& tensor) {
  const Result<Operand> operand = constant_operand(c.builder(), tensor, "");
  if (!operand) {
    c.unsupported("holds a tensor that " + operand.error().message);
    return;
  }
  const std::optional<ConstTensor>& known = operand->constant;
  if (known.has_value()) {
    c.constant_result(*known);
  } else {
    c.result(operand->value);
  }
}

void map_constant(Call& c) {
  for (const auto& [name, attribute] : c.node().attributes) {
    switch (attribute.kind) {
      case Kind::kTensor:
        tensor_result(c, *attribute.tensor);
        return;
      case Kind::kInt:
        c.constant_result(ConstTensor::full({DType::kInt64, {}}, Number::of(attribute.integer)));
        return;
      case Kind::kFloat:
        c.constant_result(ConstTensor::full({DType::kFloat32, {}}, Number::of(attribute.real)));
        return;
      case Kind::kInts:
        c.constant_result(list_of(attribute.integers));
        return;
      case Kind::kFloats:
        c.constant_result(list_of(attribute.reals));
        return;
      default:
        break;
    }
  }
  c.unsupported("is supported for tensors and numbers");
}

void map_constant_of_shape(Call& c) {
  const Shape shape = c.known_integers(0, "shape");
  if (!element_count(shape, kElementLimit).has_value()) {
    c.invalid("makes a tensor of an impossible shape");
    return;
  }
  Number value = Number::of(0.0);
  DType dtype = DType::kFloat32;
  const Attribute* const given = c.attribute("value");
  if (given != nullptr && given->kind == Kind::kTensor) {
    const Result<Operand> operand = constant_operand(c.builder(), *given->tensor, "");
    const std::optional<ConstTensor> known = operand ? operand->constant : std::nullopt;
    const std::optional<Number> one = known.has_value() ? known->uniform() : std::nullopt;
    if (!one.has_value()) {
      c.unsupported(operand ? "has a value that is no single number"
                            : "has a value that " + operand.error().message);
      return;
    }
    value = *one;
    dtype = given->tensor->type.dtype;
  }
  c.constant_result(ConstTensor::full({dtype, shape}, value));
}

void map_range(Call& c) {
  const ConstTensor* const first = c.constant(0);
  const DType dtype = c.type(0).dtype;
  const double start = c.known_number(0, "start", 0);
  const double limit = c.known_number(1, "limit", 0);
  const double delta = c.known_number(2, "delta", 1);
  const double count = std::ceil((limit - start) / delta);
  if (!c.ok() || first == nullptr) {
    return;
  }
  if (!std::isfinite(count) || count > static_cast<double>(ConstTensor::kMaxElements)) {
    c.invalid("has an impossible number of elements");
    return;
  }
  const TensorType type{dtype, {static_cast<std::int64_t>(std::max(count, 0.0))}};
  const auto as_number = [&](double x) {
    return ir::is_floating(dtype) ? Number::of(x) : Number::of(static_cast<std::int64_t>(x));
  };
  std::optional<ConstTensor> range = ConstTensor::arange(type, as_number(start), as_number(delta));
  if (!range.has_value()) {
    c.unsupported("of this type is not supported");
    return;
  }
  c.constant_result(std::move(*range));
}

/// From `start` to before `end`; positions outside are moved to the ends.
void map_shape(Call& c) {
  const Shape shape = c.type(0).shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto position = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const std::int64_t start = position(c.integer("start", 0));
  const std::int64_t end = std::max(start, position(c.integer("end", rank)));
  c.constant_result(list_of(IntList(shape.begin() + start, shape.begin() + end)));
}

void map_size(Call& c) {
  c.constant_result(ConstTensor::full({DType::kInt64, {}}, Number::of(c.type(0).numel())));
}

DType dtype_attribute(Call& c, DType fallback) {
  if (!c.has("dtype")) {
    return fallback;
  }
  const std::int64_t number = c.integer("dtype", 0);
  const std::optional<DType> dtype = dtype_of_number(number);
  if (!dtype.has_value()) {
    c.unsupported("of " + type_name(number) + " is not supported");
  }
  return dtype.value_or(fallback);
}

void map_eye_like(Call& c) {
  const TensorType like = c.type(0);
  const std::int64_t diagonal = c.integer("k", 0);
  const DType dtype = dtype_attribute(c, like.dtype);
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;
  if (!c.ok() || like.rank() != 2 || std::abs(diagonal) > kLimit) {
    c.invalid("is for matrices");
    return;
  }
  const Band band{.row = 0, .column = 1, .low = -diagonal, .high = -diagonal};
  c.constant_result(ConstTensor::banded(
      {dtype, like.shape}, band, Number::of(std::int64_t{1}), Number::of(std::int64_t{0})));
}

/// Indices of the elements of a constant that are not zero, one row a dimension.
void map_non_zero(Call& c) {
  const ConstTensor* const known = c.constant(0);
  const std::optional<ConstTensor> x = known == nullptr ? std::nullopt : known->dense();
  if (!x.has_value() || !element_count(x->shape(), ConstTensor::kMaxElements).has_value()) {
    c.unsupported("is supported on constants only: the shape of its result depends on the content");
    return;
  }
  std::vector<Shape> found;
  for_each_index(x->shape(), [&](const Shape& index) {
    if (x->at(index).as_double() != 0) {
      found.push_back(index);
    }
  });
  const Shape shape{x->type().rank(), static_cast<std::int64_t>(found.size())};
  std::vector<Number> elements;
  for (std::size_t d = 0; d < x->shape().size(); ++d) {
    for (const Shape& index : found) {
      elements.push_back(Number::of(index[d]));
    }
  }
  c.constant_result(
      from_compact({DType::kInt64, shape}, shape, std::move(elements)).value_or(ConstTensor()));
}

}  // namespace

Result<Operand> constant_operand(Builder& b, const TensorData& tensor, const std::string& path) {
  if (!tensor.problem.empty()) {
    return unsupported(tensor.problem);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Data data, read_bytes(tensor, path));
  if (is_narrow(tensor.type.dtype)) {
    const std::optional<double> value = only_value(tensor.type.dtype, *data);
    if (value.has_value()) {
      return Operand{ConstTensor::full(tensor.type, Number::of(*value)), {}};
    }
  } else if (std::optional<ConstTensor> known = ConstTensor::from_bytes(tensor.type, *data)) {
    if (std::optional<ConstTensor> band = recognise_band(*known)) {
      known = std::move(band);
    }
    return Operand{std::move(known), {}};
  }
  if (!ir::is_valid(tensor.type)) {
    return invalid_input("is " + ir::to_string(tensor.type) + ", which has no elements");
  }
  ir::Value value;
  value.kind = ir::ValueKind::kConstant;
  value.name = tensor.name;
  value.type = tensor.type;
  value.data = std::move(data);
  return Operand{std::nullopt, b.add_value(std::move(value))};
}

std::optional<double> only_value(DType dtype, std::span<const std::byte> bytes) {
  const std::size_t width = sizeof(std::uint16_t);
  if (bytes.size() < width) {
    return std::nullopt;
  }
  std::uint16_t first = 0;
  std::memcpy(&first, bytes.data(), width);
  for (std::size_t at = 0; at + width <= bytes.size(); at += width) {
    if (std::memcmp(bytes.data(), bytes.data() + at, width) != 0) {
      return std::nullopt;
    }
  }
  const bool brain = dtype == DType::kBFloat16;
  const int mantissa_bits = brain ? 7 : 10;
  const int exponent_bits = 15 - mantissa_bits;
  const int mantissa = first & ((1 << mantissa_bits) - 1);
  const int exponent = (first >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double size = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    size = mantissa == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    size = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    size = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return (first & 0x8000U) != 0 ? -size : size;
}

std::vector<Row> creation_rows() {
  return {{"Constant", map_constant},
          {"ConstantOfShape", map_constant_of_shape},
          {"Range", map_range},
          {"Shape", map_shape},
          {"Size", map_size},
          {"EyeLike", map_eye_like},
          {"NonZero", map_non_zero}};
}

}  // namespace shardplan::frontends::onnx
