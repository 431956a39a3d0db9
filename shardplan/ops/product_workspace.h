#pragma once

#include <cstdint>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// [batch, rows, inner] by [batch, inner, columns].
struct MatrixProduct {
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t inner = 1;
  std::int64_t columns = 1;
  bool turned = false;  ///< the left operand's rows lie side by side in memory
};

/// Bytes that ATen's product of matrices takes beside its result on a CPU with AVX-512 and one
/// thread: nothing from BLAS, and what oneDNN works on where it multiplies narrow types.
/// Source of the blocks: oneDNN, cpu/x64/matmul/brgemm_matmul_utils.cpp.
[[nodiscard]] Bytes product_workspace(const MatrixProduct& product, ir::DType dtype);

}  // namespace shardplan::ops
