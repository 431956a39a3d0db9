#include "shardplan/planners/pipeline/even_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace shardplan::planners {
namespace {

/// Looks at all beginnings of each last run, the earliest first.
std::vector<std::size_t> plain_cut(const std::vector<double>& sums, std::size_t count) {
  const std::size_t n = sums.size() - 1;
  std::vector<std::vector<double>> best(
      count + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<std::size_t>> begin(count + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t runs = 1; runs <= count; ++runs) {
    for (std::size_t i = runs; i <= n; ++i) {
      for (std::size_t from = runs - 1; from < i; ++from) {
        const double largest = std::max(best[runs - 1][from], sums[i] - sums[from]);
        if (largest < best[runs][i]) {
          best[runs][i] = largest;
          begin[runs][i] = from;
        }
      }
    }
  }
  std::vector<std::size_t> begins(count, 0);
  for (std::size_t runs = count, end = n; runs > 0; --runs) {
    end = begin[runs][end];
    begins[runs - 1] = end;
  }
  return begins;
}

TEST(EvenCut, EqualsThePlainProgramme) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t members = 1 + random() % 14;
    const std::size_t count = 1 + random() % members;
    const double scale = round % 2 == 0 ? 1 : 0.1;  // sums that round, too
    std::vector<double> sums{round % 3 == 0 ? 7 * scale : 0};
    for (std::size_t i = 0; i < members; ++i) {
      sums.push_back(sums.back() + scale * static_cast<double>(random() % 4));  // many are 0
    }
    EXPECT_EQ(even_cut(sums, count), plain_cut(sums, count)) << round;
  }
}

TEST(EvenCut, TakesPartOfALongerChain) {
  const std::vector<double> sums{0, 9, 10, 11, 12, 13};
  EXPECT_EQ(even_cut(std::span(sums).subspan(1), 2), (std::vector<std::size_t>{0, 2}));
}

}  // namespace
}  // namespace shardplan::planners
