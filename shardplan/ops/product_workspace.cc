#include "shardplan/ops/product_workspace.h"

#include <algorithm>
#include <utility>

namespace shardplan::ops {
namespace {

/// The largest block of up to `most` (and not below `least`) whose multiple overshoots `size`
/// least.
std::int64_t even_block(std::int64_t size, std::int64_t least, std::int64_t most) {
  most = std::min(most, size);
  std::int64_t best = most;
  std::int64_t overshoot = size;
  for (std::int64_t block = most; block >= std::min(least, most) && overshoot > 0; --block) {
    const std::int64_t over = (size + block - 1) / block * block - size;
    if (over < overshoot) {
      overshoot = over;
      best = block;
    }
  }
  return best;
}

/// Sums in f32 of a block of rows, a block of the right operand, and one of a left operand that is
/// turned around. Where such a one goes through several blocks of the inner dimension, sums of up
/// to 16 blocks of columns wait.
Bytes scratch(const MatrixProduct& p) {
  constexpr std::int64_t kLeastRows = 32;
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kChunk = 16;
  constexpr std::int64_t kInner = 512;
  constexpr std::int64_t kLine = 32;  ///< elements in a line of the cache
  constexpr Bytes kWide = 4;
  constexpr Bytes kNarrow = 2;
  constexpr Bytes kOwn = 1024;
  constexpr Bytes kAligned = 128;
  const std::int64_t rows = even_block(p.rows, kLeastRows, kRows);
  const bool is_deep = p.inner > 2 * kInner && p.rows > 1 && !p.turned;
  const std::int64_t deep = is_deep ? 2 * kInner : kInner;
  const std::int64_t inner = (std::min(p.inner, deep) + kLine - 1) / kLine * kLine;
  const Bytes sums = kWide * rows * std::min(p.columns, kColumns);
  const Bytes right = kNarrow * inner * kColumns;
  if (!p.turned) {
    return sums + right + kOwn;
  }
  const std::int64_t blocks = (p.columns + kColumns - 1) / kColumns;
  const std::int64_t waiting = p.inner > kInner ? even_block(blocks, 1, kChunk) : 1;
  const std::int64_t row = inner + (inner == kInner ? kLine : 0);  // rows must not share a place
  return sums * waiting + right + kNarrow * rows * row + kOwn + kAligned;
}

}  // namespace

Bytes product_workspace(const MatrixProduct& product, ir::DType dtype) {
  constexpr Bytes kWide = 4;
  constexpr double kSmall = 16 * 16 * 16;  // ATen leaves smaller ones to BLAS
  const double size = static_cast<double>(product.batch) * static_cast<double>(product.rows) *
                      static_cast<double>(product.inner) * static_cast<double>(product.columns);
  if (!ir::is_floating(dtype) || ir::element_bytes(dtype) >= kWide || size <= kSmall) {
    return 0;
  }
  MatrixProduct p = product;
  p.turned = p.turned && p.rows > 1 && p.inner > 1;
  if (p.batch == 1 && p.columns == 1) {  // by a vector, which comes first
    std::swap(p.rows, p.columns);
    p.turned = false;
  }
  return scratch(p);
}

}  // namespace shardplan::ops
