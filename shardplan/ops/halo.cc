#include "shardplan/ops/halo.h"

#include <algorithm>

namespace shardplan::ops {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

}  // namespace

Rows Rows::within(const Rows& other) const {
  const std::int64_t from = std::max(start, other.start);
  return {from, std::max<std::int64_t>(0, std::min(end(), other.end()) - from)};
}

std::int64_t Halo::needed_size(std::int64_t own) const {
  if (own == 0) {
    return 0;
  }
  if (!windows) {
    return (own - 1) * stride + reach();
  }
  // From the first window, crop() elements before the own rows, to one that begins after the last
  // of them: crop() is at most reach() + stride - 2.
  const std::int64_t furthest = own + reach() + stride - 3;
  return (furthest + stride - 1) / stride + 1;
}

Rows Halo::needed(const Rows& own) const {
  const std::int64_t first = windows ? floor_div(own.start + padding - (reach() - 1), stride)
                                     : own.start * stride - padding;
  return {first, needed_size(own.size)};
}

std::int64_t Halo::crop(const Rows& own) const {
  return own.start + padding - needed(own).start * stride;
}

}  // namespace shardplan::ops
