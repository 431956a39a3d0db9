#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "shardplan/ir/attributes.h"
#include "shardplan/ir/types.h"
#include "shardplan/ops/op.h"
#include "shardplan/support/result.h"

namespace shardplan::ops {

/// Checks of operands and attributes for shape inference, with messages that say what was found
/// and what was expected. The caller (append, verify) adds the op's name and layer.

using Inputs = std::span<const ir::TensorType>;

enum class AttributeKind : std::uint8_t { kFlag, kInteger, kNumber, kText, kInts };

struct AttributeRule {
  std::string_view name;
  AttributeKind kind;
  bool required = true;
};

/// Every attribute is one of `rules` and has its kind (an integer serves as a number); required
/// ones are there. An unknown name gets the closest known one as a note.
[[nodiscard]] Status check_attributes(const ir::Attributes& attributes,
                                      std::initializer_list<AttributeRule> rules);
[[nodiscard]] Status check_count(Inputs inputs, std::size_t least, std::size_t most);
[[nodiscard]] inline Status check_count(Inputs inputs, std::size_t count) {
  return check_count(inputs, count, count);
}
/// Operand i is floating.
[[nodiscard]] Status check_floating(Inputs inputs, std::size_t i);
/// Operand i is i32 or i64.
[[nodiscard]] Status check_integer(Inputs inputs, std::size_t i);
/// Operand i has exactly this type; `what` names it in the message ("the gradient").
[[nodiscard]] Status check_type(Inputs inputs,
                                std::size_t i,
                                const ir::TensorType& expected,
                                std::string_view what);
/// Operand i has exactly this shape.
[[nodiscard]] Status check_shape(Inputs inputs,
                                 std::size_t i,
                                 const ir::Shape& expected,
                                 std::string_view what);
/// Operands i and j have the same element type.
[[nodiscard]] Status check_same_dtype(Inputs inputs, std::size_t i, std::size_t j);
/// 0 <= dim < rank of operand i.
[[nodiscard]] Status check_dim(Inputs inputs, std::size_t i, std::int64_t dim);
/// Strictly increasing and each a dimension of operand i.
[[nodiscard]] Status check_dims(Inputs inputs, std::size_t i, const ir::IntList& dims);
/// A type made from a shape attribute: every size at least 1, the bytes in range.
[[nodiscard]] Status check_result(const ir::TensorType& type);
/// The dtype that the text attribute "dtype" names.
[[nodiscard]] Result<ir::DType> named_dtype(const ir::Attributes& attributes);

/// The common shape of the operands, aligned at the right, size 1 stretching.
[[nodiscard]] Result<ir::Shape> broadcast_shapes(Inputs inputs);

/// The element type in which sums are kept: f64 for f64, else f32.
[[nodiscard]] ir::DType accumulation_dtype(ir::DType dtype);
/// "f32[4,5], i64[4]"
[[nodiscard]] std::string list_types(Inputs types);
/// "[4,5]"
[[nodiscard]] std::string list_sizes(const ir::Shape& shape);
/// Names "p0 p1 p2" of `count` axes, joined by spaces, for axis maps of ops of any rank.
[[nodiscard]] std::string axis_names(std::string_view prefix, std::size_t count);
/// "d0 * d2": the dimensions of a tensor for axis maps of ops that need `dim` whole.
[[nodiscard]] std::string names_with_whole(std::int64_t rank, std::int64_t dim);
/// Size of the dimension `dim` of a type.
[[nodiscard]] inline std::int64_t dim_size(const ir::TensorType& type, std::int64_t dim) {
  return type.shape[static_cast<std::size_t>(dim)];
}
/// Elements of all results together: the FLOPs of an op with one operation an element.
[[nodiscard]] Flops result_elements(const OpView& op);

}  // namespace shardplan::ops
