#pragma once

#include <optional>
#include <string_view>

#include "shardplan/frontends/const_tensor.h"

/// Arithmetic, comparisons and logic on constants, by the names of our ops.
namespace shardplan::frontends {

/// add, sub, mul, div. Integers add, subtract and multiply modulo 2^64, as in PyTorch; their
/// quotient is a real number.
[[nodiscard]] Number arithmetic(std::string_view op, const Number& a, const Number& b);

/// eq, ne, lt, le, gt, ge of two constants that broadcast to `type`, which is bool. Indices
/// compared along two dimensions give a band, which needs no elements whatever the length of the
/// sequence.
[[nodiscard]] std::optional<ConstTensor> fold_comparison(std::string_view op,
                                                         const ir::TensorType& type,
                                                         const ConstTensor& a,
                                                         const ConstTensor& b);

/// logical_and, logical_or. Of two bands along the same dimensions the conjunction is a band.
[[nodiscard]] std::optional<ConstTensor> fold_logical(std::string_view op,
                                                      const ir::TensorType& type,
                                                      const ConstTensor& a,
                                                      const ConstTensor& b);

}  // namespace shardplan::frontends
