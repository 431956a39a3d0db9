// Operators that PyTorch has and our set has not: called by their names, element by element or
// along a dimension.

#include <algorithm>
#include <string>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/shapes.h"
#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

std::string target_of(std::string_view name, std::string_view overload) {
  return std::string("aten.") + std::string(name) + "." + std::string(overload);
}

/// A function of one operand that keeps its type.
void map_unary(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(OperatorCall(c.builder(), target_of(c.ours(), "default"))
               .tensor("self", x)
               .result(c.type(0)));
}

/// A function of two operands of one type that broadcast.
ValueId binary(Call& c, std::string_view name, ValueId x, ValueId y) {
  Builder& b = c.builder();
  const std::optional<Shape> shape = broadcast_shape(b.type(x).shape, b.type(y).shape);
  if (!c.ok() || !shape.has_value() || b.type(x).dtype != b.type(y).dtype) {
    c.invalid("its operands do not broadcast, or differ in type");
    return {};
  }
  return OperatorCall(b, target_of(name, "Tensor"))
      .tensor("self", x)
      .tensor("other", y)
      .result({b.type(x).dtype, *shape});
}

void map_binary(Call& c) {
  const ValueId x = c.tensor(0);
  const ValueId y = c.tensor(1);
  c.result(binary(c, c.ours(), x, y));
}

void map_shift(Call& c) {
  const bool left = c.text("direction", "LEFT") == "LEFT";
  const ValueId x = c.tensor(0);
  const ValueId y = c.tensor(1);
  c.result(binary(c, left ? "bitwise_left_shift" : "bitwise_right_shift", x, y));
}

void map_arg_extremum(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const std::size_t dim = c.dim(c.integer("axis", 0), type.rank());
  const bool keep = c.flag("keepdims", true);
  const bool last = c.flag("select_last_index", false);
  if (!c.ok()) {
    return;
  }
  const auto number = static_cast<std::int64_t>(dim);
  if (last) {
    x = OperatorCall(b, "aten.flip.default")
            .tensor("self", x)
            .integers("dims", {number})
            .result(type);
  }
  Shape shape = type.shape;
  shape[dim] = 1;
  if (!keep) {
    shape.erase(shape.begin() + number);
  }
  ValueId y = OperatorCall(b, target_of(c.ours(), "default"))
                  .tensor("self", x)
                  .integer("dim", number)
                  .flag("keepdim", keep)
                  .result({DType::kInt64, shape});
  if (last) {
    y = b.emit(
        "add_scalar", {b.emit("neg", {y})}, {{"value", static_cast<double>(type.shape[dim] - 1)}});
  }
  c.result(y);
}

/// 1 at the first maximum along a dimension, else 0.
void map_hardmax(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const bool flattens = c.opset() < 13;
  const std::size_t axis = c.dim(c.integer("axis", flattens ? 1 : -1), type.rank());
  ValueId x = c.tensor(0);
  if (!c.ok()) {
    return;
  }
  const auto dim = static_cast<std::int64_t>(axis);
  if (flattens) {
    Shape shape(type.shape.begin(), type.shape.begin() + dim);
    shape.push_back(type.numel() / TensorType{type.dtype, shape}.numel());
    x = reshape_to(b, x, shape);
  }
  Shape line = b.type(x).shape;
  line[axis] = 1;
  const ValueId best = OperatorCall(b, "aten.argmax.default")
                           .tensor("self", x)
                           .integer("dim", dim)
                           .flag("keepdim", true)
                           .result({DType::kInt64, line});
  Shape counted(line.size(), 1);
  counted[axis] = b.type(x).shape[axis];
  const ValueId index =
      b.emit("iota", {}, {{"shape", counted}, {"dim", dim}, {"dtype", std::string("i64")}});
  c.result(reshape_to(b, cast_to(b, b.emit("eq", {best, index}), type.dtype), type.shape));
}

/// The k largest or smallest along a dimension; of equal ones the first.
void map_top_k(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const std::size_t dim = c.dim(c.integer("axis", -1), type.rank());
  const std::int64_t k =
      c.has("k") ? c.integer("k", 1) : static_cast<std::int64_t>(c.known_number(1, "k", 1));
  if (!c.ok() || k < 1 || k > type.shape[dim]) {
    c.invalid("its k is not between 1 and the size of its dimension");
    return;
  }
  const std::vector<ValueId> sorted = OperatorCall(b, "aten.sort.stable")
                                          .tensor("self", x)
                                          .flag("stable", true)
                                          .integer("dim", static_cast<std::int64_t>(dim))
                                          .flag("descending", c.flag("largest", true))
                                          .results({type, TensorType{DType::kInt64, type.shape}});
  for (std::size_t i = 0; i < 2; ++i) {
    c.result(sliced(b, sorted[i], dim, 0, k), i);
  }
}

ValueId flipped(Builder& b, ValueId x, std::int64_t dim) {
  return OperatorCall(b, "aten.flip.default")
      .tensor("self", x)
      .integers("dims", {dim})
      .result(b.type(x));
}

/// Running products; exclusive ones leave the element itself out, reverse ones run from the end.
void map_cumulative_product(Call& c) {
  Builder& b = c.builder();
  ValueId x = c.tensor(0);
  const TensorType type = c.type(0);
  const auto axis = static_cast<std::int64_t>(c.known_number(1, "axis", 0));
  const std::size_t dim = c.dim(axis, type.rank());
  const auto number = static_cast<std::int64_t>(dim);
  const bool reverse = c.flag("reverse", false);
  if (!c.ok()) {
    return;
  }
  x = reverse ? flipped(b, x, number) : x;
  if (c.flag("exclusive", false)) {
    const ValueId wide = b.emit(
        "pad",
        {x},
        {{"dim", number}, {"before", std::int64_t{1}}, {"after", std::int64_t{0}}, {"value", 1.0}});
    x = sliced(b, wide, dim, 0, type.shape[dim]);
  }
  const bool floating = ir::is_floating(type.dtype);
  ValueId y = OperatorCall(b, "aten.cumprod.default")
                  .tensor("self", x)
                  .integer("dim", number)
                  .result({floating ? type.dtype : DType::kInt64, type.shape});
  y = reverse ? flipped(b, y, number) : y;
  c.result(cast_to(b, y, type.dtype));
}

/// Maximum over the plane of images, with a gradient.
void map_global_max(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  TensorType type = c.type(0);
  IntList dims;
  for (std::int64_t d = 2; d < type.rank(); ++d) {
    dims.push_back(d);
    type.shape[static_cast<std::size_t>(d)] = 1;
  }
  if (!c.ok() || dims.empty()) {
    c.invalid("its operand has no plane");
    return;
  }
  c.result(OperatorCall(b, "aten.amax.default")
               .tensor("self", x)
               .integers("dim", dims)
               .flag("keepdim", true)
               .result(type));
}

void map_determinant(Call& c) {
  const ValueId x = c.tensor(0);
  TensorType type = c.type(0);
  if (!c.ok() || type.rank() < 2) {
    c.invalid("is for square matrices");
    return;
  }
  type.shape.resize(type.shape.size() - 2);
  c.result(OperatorCall(c.builder(), "aten.linalg_det.default").tensor("A", x).result(type));
}

}  // namespace

std::vector<Row> called_rows() {
  return {{"Round", map_unary, "round"},
          {"Erf", map_unary, "erf"},
          {"Asin", map_unary, "asin"},
          {"Acos", map_unary, "acos"},
          {"Atan", map_unary, "atan"},
          {"Asinh", map_unary, "asinh"},
          {"Acosh", map_unary, "acosh"},
          {"Atanh", map_unary, "atanh"},
          {"BitwiseAnd", map_binary, "bitwise_and"},
          {"BitwiseOr", map_binary, "bitwise_or"},
          {"BitwiseXor", map_binary, "bitwise_xor"},
          {"BitwiseNot", map_unary, "bitwise_not"},
          {"BitShift", map_shift},
          {"ArgMax", map_arg_extremum, "argmax"},
          {"ArgMin", map_arg_extremum, "argmin"},
          {"Hardmax", map_hardmax},
          {"TopK", map_top_k},
          {"CumProd", map_cumulative_product},
          {"GlobalMaxPool", map_global_max},
          {"Det", map_determinant}};
}

}  // namespace shardplan::frontends::onnx
