#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "shardplan/ir/types.h"

/// Walking over the coordinates of a shape.
namespace shardplan::frontends {

/// Number of elements when it is at most `limit`; nothing when it is more.
[[nodiscard]] inline std::optional<std::size_t> element_count(const ir::Shape& shape,
                                                              std::int64_t limit) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && count > limit / size)) {
      return std::nullopt;
    }
    count *= size;
  }
  return static_cast<std::size_t>(count);
}

/// Strides of a row-major tensor; 0 along dimensions of size 1.
[[nodiscard]] inline ir::Shape row_major_strides(const ir::Shape& shape) {
  ir::Shape strides(shape.size(), 0);
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = shape[d] == 1 ? 0 : stride;
    stride *= shape[d];
  }
  return strides;
}

/// Calls `visit(index)` for every coordinate of `shape` in row-major order.
template <class Visit>
void for_each_index(const ir::Shape& shape, Visit visit) {
  ir::Shape index(shape.size(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return;
  }
  while (true) {
    visit(std::as_const(index));
    std::size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

}  // namespace shardplan::frontends
