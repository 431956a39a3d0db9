// Matrix product over (min, +). Rows of both matrices are sorted by where they are finite, so that
// a tile of the result (four rows by sixteen columns, kept in registers) has to visit only the
// places where one of its rows and one of its columns are finite: layouts that are partial sums can
// be reached from few others, which leaves a tenth of the places on a mesh of four axes. Compiled
// for several vector widths; the program picks at run time. (With -O3 gcc 12 unrolls the tile into
// something six times slower: leave it at -O2.)
#include "shardplan/problem/min_plus.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDPLAN_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHARDPLAN_VECTOR_CLONES
#endif

namespace shardplan::problem {
namespace {

constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileColumns = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// tile = min over the listed places of four rows + strip, which has sixteen entries a place.
SHARDPLAN_VECTOR_CLONES
void fill_tile(const double* const* __restrict rows,
               const double* __restrict strip,
               const std::uint32_t* __restrict places,
               std::size_t count,
               double* __restrict tile) {
  double lowest[kTileRows][kTileColumns];  // NOLINT: std::array is not kept in registers
  for (std::size_t i = 0; i < kTileRows; ++i) {
    for (std::size_t j = 0; j < kTileColumns; ++j) {
      lowest[i][j] = kInfinity;
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t z = places[k];
    const double* right = strip + z * kTileColumns;
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const double a = rows[i][z];
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

using Places = std::vector<std::uint64_t>;  // a bit a place

/// The rows of a matrix in the order of where they are finite.
class SortedRows {
 public:
  SortedRows(const std::vector<double>& matrix, std::size_t depth)
      : words_((depth + 63) / 64),
        count_(matrix.size() / depth),
        finite_(count_ * words_, 0),
        order_(count_) {
    for (std::size_t r = 0; r < count_; ++r) {
      for (std::size_t z = 0; z < depth; ++z) {
        if (matrix[r * depth + z] < kInfinity) {
          finite_[r * words_ + z / 64] |= std::uint64_t{1} << (z % 64);
        }
      }
    }
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      const auto* first = finite_.data() + a * words_;
      const auto* second = finite_.data() + b * words_;
      return std::lexicographical_compare(first, first + words_, second, second + words_);
    });
  }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t row(std::size_t position) const { return order_[position]; }
  /// Where one of `wide` rows from a position on is finite.
  [[nodiscard]] Places places(std::size_t position, std::size_t wide) const {
    Places places(words_, 0);
    for (std::size_t k = 0; k < wide; ++k) {
      for (std::size_t w = 0; w < words_; ++w) {
        places[w] |= finite_[order_[position + k] * words_ + w];
      }
    }
    return places;
  }

 private:
  std::size_t words_;
  std::size_t count_;
  Places finite_;
  std::vector<std::size_t> order_;
};

void list_common(const Places& a, const Places& b, std::vector<std::uint32_t>& list) {
  list.clear();
  for (std::size_t w = 0; w < a.size(); ++w) {
    for (std::uint64_t rest = a[w] & b[w]; rest != 0; rest &= rest - 1) {
      list.push_back(
          static_cast<std::uint32_t>(w * 64 + static_cast<std::size_t>(__builtin_ctzll(rest))));
    }
  }
}

constexpr std::size_t kVector = 8;

}  // namespace

// Loops of fixed length, so that the compiler makes vectors of them.

SHARDPLAN_VECTOR_CLONES
void add_to(double* __restrict to, const double* __restrict from, std::size_t count) {
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t k = 0; k < kVector; ++k) {
      to[i + k] += from[i + k];
    }
  }
  for (; i < count; ++i) {
    to[i] += from[i];
  }
}

SHARDPLAN_VECTOR_CLONES
double least_sum(const double* a, const double* b, std::size_t count) {
  double least[kVector];  // NOLINT: std::array is not kept in registers
  for (std::size_t k = 0; k < kVector; ++k) {
    least[k] = kInfinity;
  }
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t k = 0; k < kVector; ++k) {
      const double sum = a[i + k] + b[i + k];
      least[k] = sum < least[k] ? sum : least[k];
    }
  }
  double lowest = *std::min_element(least, least + kVector);
  for (; i < count; ++i) {
    lowest = std::min(lowest, a[i] + b[i]);
  }
  return lowest;
}

std::vector<double> min_plus(const std::vector<double>& left,
                             const std::vector<double>& right,
                             std::size_t depth) {
  const SortedRows rows(left, depth);
  const SortedRows columns(right, depth);
  const std::size_t tiles = (rows.count() + kTileRows - 1) / kTileRows;
  std::vector<Places> row_places;
  for (std::size_t t = 0; t < tiles; ++t) {
    row_places.push_back(
        rows.places(t * kTileRows, std::min(kTileRows, rows.count() - t * kTileRows)));
  }
  std::vector<double> out(rows.count() * columns.count(), kInfinity);
  std::vector<double> strip(depth * kTileColumns, kInfinity);
  std::vector<double> tile(kTileRows * kTileColumns);
  std::vector<std::uint32_t> list;
  for (std::size_t c = 0; c < columns.count(); c += kTileColumns) {
    const std::size_t wide = std::min(kTileColumns, columns.count() - c);
    if (wide < kTileColumns) {
      std::fill(strip.begin(), strip.end(), kInfinity);
    }
    for (std::size_t j = 0; j < wide; ++j) {
      const double* from = right.data() + columns.row(c + j) * depth;
      for (std::size_t z = 0; z < depth; ++z) {
        strip[z * kTileColumns + j] = from[z];
      }
    }
    const Places places = columns.places(c, wide);
    for (std::size_t t = 0; t < tiles; ++t) {
      if (t == 0 || row_places[t] != row_places[t - 1]) {
        list_common(row_places[t], places, list);
      }
      if (list.empty()) {
        continue;
      }
      const std::size_t first = t * kTileRows;
      // The last tile repeats its last row.
      std::array<const double*, kTileRows> of_tile{};
      for (std::size_t i = 0; i < kTileRows; ++i) {
        of_tile[i] = left.data() + rows.row(std::min(first + i, rows.count() - 1)) * depth;
      }
      fill_tile(of_tile.data(), strip.data(), list.data(), list.size(), tile.data());
      for (std::size_t i = 0; i < std::min(kTileRows, rows.count() - first); ++i) {
        double* to = out.data() + rows.row(first + i) * columns.count();
        for (std::size_t j = 0; j < wide; ++j) {
          to[columns.row(c + j)] = tile[i * kTileColumns + j];
        }
      }
    }
  }
  return out;
}

}  // namespace shardplan::problem
