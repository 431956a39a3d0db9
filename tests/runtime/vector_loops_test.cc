// The vectorised loops against plain ones in double.
#include "shardplan/runtime/vector_loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace shardplan::runtime {
namespace {

float exp_alone(float x) {
  float out = 0;
  scaled_exp(&x, 1, 0.F, 1.F, &out);
  return out;
}

TEST(VectorLoops, ExpIsWithinTwoUnitsInTheLastPlace) {
  for (double x = -87.2; x < 88; x += 0.000917) {
    const auto given = static_cast<float>(x);
    const double truth = std::exp(static_cast<double>(given));
    EXPECT_NEAR(exp_alone(given) / truth, 1, 2 * 0x1p-23) << x;
  }
}

TEST(VectorLoops, ExpOfTheExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_alone(0), 1);
  EXPECT_EQ(exp_alone(-kInfinity), 0);
  EXPECT_EQ(exp_alone(-1e30F), 0);
  EXPECT_EQ(exp_alone(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp_alone(std::nanf(""))));
}

TEST(VectorLoops, MomentsCountEveryElementOnce) {
  for (const std::int64_t count : {0, 1, 31, 32, 33, 1000}) {
    std::vector<float> x;
    double sum = 3;
    double squares = 4;
    double true_sum = sum;
    double true_squares = squares;
    for (std::int64_t i = 0; i < count; ++i) {
      x.push_back(static_cast<float>(i % 7) - 2.5F);
      true_sum += static_cast<double>(x.back());
      true_squares += static_cast<double>(x.back()) * static_cast<double>(x.back());
    }
    add_moments(x.data(), count, sum, squares);
    EXPECT_DOUBLE_EQ(sum, true_sum);
    EXPECT_DOUBLE_EQ(squares, true_squares);
    std::vector<float> out(x.size());
    combine(x.data(), x.data(), count, 2.F, 3.F, 1.F, out.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_FLOAT_EQ(out[i], 5 * x[i] + 1);
    }
  }
}

TEST(VectorLoops, SumOfExpCountsEveryElementOnce) {
  for (const std::int64_t count : {0, 1, 31, 32, 33, 1000}) {
    std::vector<float> x;
    double truth = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      x.push_back(std::sin(static_cast<float>(i)) * 5);
      truth += std::exp(static_cast<double>(x.back()) - 1);
    }
    EXPECT_NEAR(sum_of_exp(x.data(), count, 1.F), truth, 1e-6 * truth) << count;
  }
}

TEST(VectorLoops, AdamInFloatIsAdamInDouble) {
  constexpr std::int64_t kCount = 77;
  const AdamNumbers<double> s{0.9, 0.99, 1e-8, 0.5, 0.999, 0.01, 0.1, 0.3};
  const AdamNumbers<float> narrow{0.9F, 0.99F, 1e-8F, 0.5F, 0.999F, 0.01F, 0.1F, 0.3F};
  std::vector<double> p;
  std::vector<double> g;
  for (std::int64_t i = 0; i < kCount; ++i) {
    p.push_back(std::sin(static_cast<double>(i)));
    g.push_back(std::cos(static_cast<double>(3 * i)));
  }
  std::vector<double> m(kCount, 0.1);
  std::vector<double> v(kCount, 0.2);
  std::vector<float> fp(p.begin(), p.end());
  std::vector<float> fg(g.begin(), g.end());
  std::vector<float> fm(m.begin(), m.end());
  std::vector<float> fv(v.begin(), v.end());
  adam_loop(s, kCount, p.data(), g.data(), m.data(), v.data());
  adam_loop(narrow, kCount, fp.data(), fg.data(), fm.data(), fv.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(fp[i], p[i], 1e-5);
    EXPECT_NEAR(fm[i], m[i], 1e-6);
    EXPECT_NEAR(fv[i], v[i], 1e-6);
  }
}

}  // namespace
}  // namespace shardplan::runtime
