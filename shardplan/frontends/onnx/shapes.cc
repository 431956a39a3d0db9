#include "shardplan/frontends/onnx/shapes.h"

#include <algorithm>

#include "shardplan/frontends/index_space.h"

namespace shardplan::frontends::onnx {

using ir::Shape;

std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (std::size_t d = 0; d < out.size(); ++d) {
    const std::int64_t x = d < a.size() ? a[a.size() - 1 - d] : 1;
    const std::int64_t y = d < b.size() ? b[b.size() - 1 - d] : 1;
    if (x != y && x != 1 && y != 1) {
      return std::nullopt;
    }
    out[out.size() - 1 - d] = x == 1 ? y : x;
  }
  return out;
}

std::optional<ir::TensorType> broadcast_type(std::span<const ConstTensor> operands) {
  ir::TensorType out;
  for (const ConstTensor& operand : operands) {
    const std::optional<Shape> shape = broadcast_shape(out.shape, operand.shape());
    if (!shape.has_value()) {
      return std::nullopt;
    }
    out = {operand.type().dtype, *shape};
  }
  return out;
}

std::optional<Shape> reshaped(const Shape& x, const ir::IntList& wanted, bool allow_zero) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;
  const std::optional<std::size_t> count = element_count(x, kLimit);
  Shape out = wanted;
  std::optional<std::size_t> rest;
  for (std::size_t d = 0; d < out.size(); ++d) {
    if (out[d] == 0 && !allow_zero && d < x.size()) {
      out[d] = x[d];
    } else if (out[d] == -1 && !rest.has_value()) {
      rest = d;
      out[d] = 1;
    }
  }
  const std::optional<std::size_t> known = element_count(out, kLimit);
  if (!count.has_value() || !known.has_value()) {
    return std::nullopt;
  }
  if (rest.has_value()) {
    if (*known == 0 || *count % *known != 0) {
      return std::nullopt;
    }
    out[*rest] = static_cast<std::int64_t>(*count / *known);
    return out;
  }
  return *known == *count ? std::optional(out) : std::nullopt;
}

}  // namespace shardplan::frontends::onnx
