#pragma once

#include <cstddef>

namespace shardplan::problem {

/// out[r][c] = min over z of left[r][z] + right[z][c], all row-major and dense; `out` is
/// overwritten. No entry is NaN or -infinity. Each result is one of the sums, so the order of the
/// work does not change it. About 14 G sums a second on one AVX-512 core.
void min_plus(const double* left,
              std::size_t rows,
              std::size_t depth,
              const double* right,
              std::size_t columns,
              double* out);

}  // namespace shardplan::problem
