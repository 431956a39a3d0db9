// Matrix product over (min, +). Rows of both matrices are sorted by where they are finite, so that
// a tile of the result (four rows by sixteen columns, kept in registers) has to visit only the
// places where one of its rows and one of its columns are finite: layouts that are partial sums can
// be reached from few others, which leaves a tenth of the places on a mesh of four axes. Compiled
// for several vector widths; the program picks at run time. (With -O3 gcc 12 unrolls the tile into
// something six times slower: leave it at -O2.)
#include "shardplan/solvers/min_plus.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDPLAN_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHARDPLAN_VECTOR_CLONES
#endif

namespace shardplan::solvers {
namespace {

constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileColumns = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Where a place that both matrices have lies in a packed tile of the left and a packed strip of
/// the right.
struct Meeting {
  std::uint32_t left;
  std::uint32_t right;
};

/// tile = min over the meetings of left + right: four values a place there, sixteen here.
SHARDPLAN_VECTOR_CLONES
void fill_tile(const double* __restrict left,
               const double* __restrict right,
               const Meeting* __restrict meetings,
               std::size_t count,
               double* __restrict tile) {
  double lowest[kTileRows][kTileColumns];  // NOLINT: std::array is not kept in registers
  for (std::size_t i = 0; i < kTileRows; ++i) {
    for (std::size_t j = 0; j < kTileColumns; ++j) {
      lowest[i][j] = kInfinity;
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    const double* rows = left + meetings[k].left * kTileRows;
    const double* columns = right + meetings[k].right * kTileColumns;
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const double a = rows[i];
      for (std::size_t j = 0; j < kTileColumns; ++j) {
        const double sum = a + columns[j];
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

/// Some rows of a matrix, side by side, at the places where one of them is finite.
struct Packed {
  Places places;
  std::vector<std::uint32_t> before;  ///< by word: places in the words before it
  std::vector<double> values;         ///< `width` a place

  Packed(const std::vector<double>& matrix,
         const SortedRows& sorted,
         std::size_t first,
         std::size_t width,
         std::size_t depth)
      : places(sorted.places(first, std::min(width, sorted.count() - first))) {
    std::uint32_t count = 0;
    for (const std::uint64_t word : places) {
      before.push_back(count);
      count += static_cast<std::uint32_t>(std::popcount(word));
    }
    values.assign(count * width, kInfinity);
    for (std::size_t k = 0; k < std::min(width, sorted.count() - first); ++k) {
      const double* row = matrix.data() + sorted.row(first + k) * depth;
      std::size_t at = k;
      for_each(places, [&](std::size_t z) {
        values[at] = row[z];
        at += width;
      });
    }
  }

  template <class Visit>
  static void for_each(const Places& places, const Visit& visit) {
    for (std::size_t w = 0; w < places.size(); ++w) {
      for (std::uint64_t rest = places[w]; rest != 0; rest &= rest - 1) {
        visit(w * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
  }
};

std::vector<Packed> pack(const std::vector<double>& matrix,
                         const SortedRows& sorted,
                         std::size_t width,
                         std::size_t depth) {
  std::vector<Packed> packed;
  for (std::size_t first = 0; first < sorted.count(); first += width) {
    packed.emplace_back(matrix, sorted, first, width, depth);
  }
  return packed;
}

void find_meetings(const Packed& left, const Packed& right, std::vector<Meeting>& meetings) {
  meetings.clear();
  for (std::size_t w = 0; w < left.places.size(); ++w) {
    const std::uint64_t a = left.places[w];
    const std::uint64_t b = right.places[w];
    for (std::uint64_t rest = a & b; rest != 0; rest &= rest - 1) {
      const std::uint64_t lower = (rest & (~rest + 1)) - 1;
      meetings.push_back({left.before[w] + static_cast<std::uint32_t>(std::popcount(a & lower)),
                          right.before[w] + static_cast<std::uint32_t>(std::popcount(b & lower))});
    }
  }
}

/// Tiles of the left matrix that stay in the cache while the strips of the right one pass.
constexpr std::size_t kBlockTiles = 16;

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

std::vector<double> min_plus_product(const std::vector<double>& left,
                                     const std::vector<double>& right,
                                     std::size_t depth) {
  const SortedRows rows(left, depth);
  const SortedRows columns(right, depth);
  const std::vector<Packed> tiles = pack(left, rows, kTileRows, depth);
  const std::vector<Packed> strips = pack(right, columns, kTileColumns, depth);
  const std::size_t width = strips.size() * kTileColumns;
  std::vector<double> out(rows.count() * columns.count(), kInfinity);
  std::vector<double> block(kBlockTiles * kTileRows * width);  // in sorted order
  std::vector<double> tile(kTileRows * kTileColumns);
  std::vector<Meeting> meetings;
  for (std::size_t first = 0; first < tiles.size(); first += kBlockTiles) {
    const std::size_t end = std::min(first + kBlockTiles, tiles.size());
    for (std::size_t s = 0; s < strips.size(); ++s) {
      for (std::size_t t = first; t < end; ++t) {
        if (t == first || tiles[t].places != tiles[t - 1].places) {
          find_meetings(tiles[t], strips[s], meetings);
        }
        fill_tile(tiles[t].values.data(),
                  strips[s].values.data(),
                  meetings.data(),
                  meetings.size(),
                  tile.data());
        for (std::size_t i = 0; i < kTileRows; ++i) {
          std::copy_n(tile.data() + i * kTileColumns,
                      kTileColumns,
                      block.data() + ((t - first) * kTileRows + i) * width + s * kTileColumns);
        }
      }
    }
    const std::size_t last = std::min(end * kTileRows, rows.count());
    for (std::size_t r = first * kTileRows; r < last; ++r) {
      const double* from = block.data() + (r - first * kTileRows) * width;
      double* to = out.data() + rows.row(r) * columns.count();
      for (std::size_t c = 0; c < columns.count(); ++c) {
        to[columns.row(c)] = from[c];
      }
    }
  }
  return out;
}

}  // namespace shardplan::solvers
