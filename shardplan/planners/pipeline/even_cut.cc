#include "shardplan/planners/pipeline/even_cut.h"

#include <algorithm>
#include <utility>

namespace shardplan::planners {

/// best[i] = least possible largest run when the first i members are in so many runs. The last run
/// shrinks as it begins later while the rest grows: their crossing is found by bisection.
std::vector<std::size_t> even_cut(std::span<const double> sums, std::size_t count) {
  const std::size_t n = sums.size() - 1;
  std::vector<double> best(n + 1, 0);
  for (std::size_t i = 0; i <= n; ++i) {
    best[i] = sums[i] - sums[0];
  }
  std::vector<std::vector<std::size_t>> last(count, std::vector<std::size_t>(n + 1, 0));
  for (std::size_t b = 1; b < count; ++b) {
    std::vector<double> next(n + 1, 0);
    for (std::size_t i = b + 1; i <= n; ++i) {
      std::size_t low = b;
      std::size_t high = i - 1;
      while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (best[middle] >= sums[i] - sums[middle]) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const auto value = [&](std::size_t j) { return std::max(best[j], sums[i] - sums[j]); };
      while (low > b && value(low - 1) <= value(low)) {
        --low;
      }
      last[b][i] = low;
      next[i] = value(low);
    }
    best = std::move(next);
  }
  std::vector<std::size_t> begins(count, 0);
  std::size_t end = n;
  for (std::size_t b = count; b-- > 1;) {
    end = last[b][end];
    begins[b] = end;
  }
  return begins;
}

}  // namespace shardplan::planners
