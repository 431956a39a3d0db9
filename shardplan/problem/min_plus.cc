// Matrix product over (min, +), blocked as a usual matrix product is: a tile of the result stays in
// registers while a panel of the right matrix stays in the first-level cache. Compiled for several
// vector widths; the program picks at run time. (With -O3 gcc 12 unrolls the tile into something
// six times slower: leave it at -O2.)
#include "shardplan/problem/min_plus.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDPLAN_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHARDPLAN_VECTOR_CLONES
#endif

namespace shardplan::problem {
namespace {

constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileColumns = 16;
constexpr std::size_t kPanelDepth = 128;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Tile {
  std::array<double, kTileRows * kTileColumns> values;
};

/// Lowers a tile by `depth` columns of four rows of the left matrix times a panel.
SHARDPLAN_VECTOR_CLONES
void lower_tile(const double* __restrict left,
                std::size_t left_stride,
                const double* __restrict panel,
                std::size_t depth,
                double* __restrict tile) {
  double lowest[kTileRows][kTileColumns];  // NOLINT: std::array is not kept in registers
  for (std::size_t i = 0; i < kTileRows; ++i) {
    for (std::size_t j = 0; j < kTileColumns; ++j) {
      lowest[i][j] = tile[i * kTileColumns + j];
    }
  }
  for (std::size_t z = 0; z < depth; ++z) {
    const double* right = panel + z * kTileColumns;
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const double a = left[i * left_stride + z];
      for (std::size_t j = 0; j < kTileColumns; ++j) {
        const double sum = a + right[j];
        lowest[i][j] = sum < lowest[i][j] ? sum : lowest[i][j];
      }
    }
  }
  for (std::size_t i = 0; i < kTileRows; ++i) {
    for (std::size_t j = 0; j < kTileColumns; ++j) {
      tile[i * kTileColumns + j] = lowest[i][j];
    }
  }
}

/// out = min(out, left · panel) for some columns of the result. `rest`: the last rows, padded.
struct Strip {
  const double* left;
  std::size_t left_stride;
  std::size_t rows;
  double* out;
  std::size_t out_stride;
  std::size_t columns;

  void lower(const double* panel, std::size_t depth, std::vector<double>& rest) const {
    for (std::size_t row = 0; row < rows; row += kTileRows) {
      const std::size_t height = std::min(kTileRows, rows - row);
      const double* from = left + row * left_stride;
      std::size_t stride = left_stride;
      if (height < kTileRows) {
        rest.assign(kTileRows * depth, kInfinity);
        for (std::size_t i = 0; i < height; ++i) {
          std::copy_n(from + i * left_stride, depth, rest.data() + i * depth);
        }
        from = rest.data();
        stride = depth;
      }
      Tile tile;
      tile.values.fill(kInfinity);
      for (std::size_t i = 0; i < height; ++i) {
        std::copy_n(out + (row + i) * out_stride, columns, tile.values.data() + i * kTileColumns);
      }
      lower_tile(from, stride, panel, depth, tile.values.data());
      for (std::size_t i = 0; i < height; ++i) {
        std::copy_n(tile.values.data() + i * kTileColumns, columns, out + (row + i) * out_stride);
      }
    }
  }
};

}  // namespace

void min_plus(const double* left,
              std::size_t rows,
              std::size_t depth,
              const double* right,
              std::size_t columns,
              double* out) {
  std::fill_n(out, rows * columns, kInfinity);
  std::vector<double> panel(kPanelDepth * kTileColumns, kInfinity);
  std::vector<double> rest;
  for (std::size_t z = 0; z < depth; z += kPanelDepth) {
    const std::size_t deep = std::min(kPanelDepth, depth - z);
    for (std::size_t c = 0; c < columns; c += kTileColumns) {
      const std::size_t wide = std::min(kTileColumns, columns - c);
      for (std::size_t k = 0; k < deep; ++k) {
        double* to = panel.data() + k * kTileColumns;
        std::copy_n(right + (z + k) * columns + c, wide, to);
        std::fill(to + wide, to + kTileColumns, kInfinity);
      }
      Strip{left + z, depth, rows, out + c, columns, wide}.lower(panel.data(), deep, rest);
    }
  }
}

}  // namespace shardplan::problem
