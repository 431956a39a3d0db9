#pragma once

#include <optional>
#include <span>

#include "shardplan/frontends/const_tensor.h"
#include "shardplan/ir/attributes.h"

/// Shapes that operators give their results, for constants; ops of the graph infer their own.
namespace shardplan::frontends::onnx {

/// The shape to which both broadcast, aligned at the right; nothing when they do not.
[[nodiscard]] std::optional<ir::Shape> broadcast_shape(const ir::Shape& a, const ir::Shape& b);

/// The type of an elementwise result: the dtype of the last operand, and the shape of all of them.
[[nodiscard]] std::optional<ir::TensorType> broadcast_type(std::span<const ConstTensor> operands);

/// Where -1 stands for what is left and 0, unless `allow_zero`, for the size of x. Nothing when the
/// elements of x do not fit.
[[nodiscard]] std::optional<ir::Shape> reshaped(const ir::Shape& x,
                                                const ir::IntList& wanted,
                                                bool allow_zero);

}  // namespace shardplan::frontends::onnx
