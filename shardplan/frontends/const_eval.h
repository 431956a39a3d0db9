#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "shardplan/frontends/const_tensor.h"

/// The operations with which models compute constants. Each gives nothing when the result would
/// need more than ConstTensor::kMaxElements, or has a type whose rounding is not done here.
namespace shardplan::frontends {

/// Element by element over operands broadcast to `type.shape`. Of equal bands and uniform operands
/// the result is a band again.
std::optional<ConstTensor> elementwise(
    const ir::TensorType& type,
    std::span<const ConstTensor> operands,
    const std::function<Number(std::span<const Number>)>& function);

/// Sum over the elements up to and including each one along `dim`.
std::optional<ConstTensor> cumulative_sum(const ir::TensorType& type,
                                          const ConstTensor& x,
                                          std::size_t dim);
std::optional<ConstTensor> concatenate(const ir::TensorType& type,
                                       std::span<const ConstTensor> parts,
                                       std::size_t dim);
/// x[index_0, index_1, ...]: the indices of the first dimensions, broadcast together.
std::optional<ConstTensor> gather(const ir::TensorType& type,
                                  const ConstTensor& x,
                                  std::span<const ConstTensor> indices);

/// The same tensor as a band when its elements are one: a mask that a module holds as a buffer.
[[nodiscard]] std::optional<ConstTensor> recognise_band(const ConstTensor& x);

}  // namespace shardplan::frontends
