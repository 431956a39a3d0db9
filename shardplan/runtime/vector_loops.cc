#include "shardplan/runtime/vector_loops.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

// The compiler vectorises what is here (CMakeLists.txt asks for it); every loop is a plain one over
// distinct arrays, without calls.
#if defined(__x86_64__) && !defined(__clang__)
#define SHARDPLAN_EVERY_VECTOR_UNIT \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHARDPLAN_EVERY_VECTOR_UNIT
#endif

namespace shardplan::runtime {
namespace {

/// e^x = 2^n e^r with n the nearest whole number to x / ln 2, so |r| <= ln 2 / 2, and e^r by its
/// Taylor polynomial of degree 7, whose rest is 1.7e-8 at most. ln 2 is split in two so that
/// n · (its first part) is exact.
inline float exp_of(float x) {
  constexpr float kLeast = -87.3F;  // 2^n stays normal
  constexpr float kMost = 88.3F;
  constexpr float kRound = 0x1.8p23F;  // adding it drops the fraction
  constexpr float kLog2E = 1.442695041F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr std::int32_t kExponentBias = 127;
  constexpr int kExponentShift = 23;
  const float above = x < kLeast ? kLeast : x;
  const float held = above > kMost ? kMost : above;
  const float n = (held * kLog2E + kRound) - kRound;
  const float r = (held - n * kLn2High) - n * kLn2Low;
  constexpr std::array<float, 6> kCoefficients{
      1.F / 5040, 1.F / 720, 1.F / 120, 1.F / 24, 1.F / 6, 1.F / 2};
  float sum = kCoefficients[0];
  for (std::size_t i = 1; i < kCoefficients.size(); ++i) {
    sum = sum * r + kCoefficients[i];
  }
  const float e_r = (sum * r * r + r) + 1.F;
  const auto power = (static_cast<std::int32_t>(n) + kExponentBias) << kExponentShift;
  const float result = e_r * std::bit_cast<float>(power);
  return x < kLeast ? 0.F : (x > kMost ? x * HUGE_VALF : result);
}

constexpr std::size_t kLanes = 32;

template <class C>
inline void adam_elements(
    const AdamNumbers<C>& s, std::int64_t count, C* p, const C* g, C* m, C* v) {
  const AdamNumbers<C> n = s;
  for (std::int64_t i = 0; i < count; ++i) {
    const C weight = p[i] * n.shrink;
    const C d = g[i] * n.clip + n.l2 * weight;
    const C mean = n.beta1 * m[i] + (1 - n.beta1) * d;
    const C square = n.beta2 * v[i] + (1 - n.beta2) * d * d;
    m[i] = mean;
    v[i] = square;
    p[i] = weight - n.step_size * mean / (std::sqrt(square) / n.root_correction + n.eps);
  }
}

}  // namespace

SHARDPLAN_EVERY_VECTOR_UNIT
float sum_of_exp(const float* x, std::int64_t count, float shift) {
  std::array<float, kLanes> lanes{};
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += exp_of(x[i + static_cast<std::int64_t>(lane)] - shift);
    }
  }
  float sum = 0;
  for (; i < count; ++i) {
    sum += exp_of(x[i] - shift);
  }
  for (const float lane : lanes) {
    sum += lane;
  }
  return sum;
}

double sum_of_exp(const double* x, std::int64_t count, double shift) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += std::exp(x[i] - shift);
  }
  return sum;
}

SHARDPLAN_EVERY_VECTOR_UNIT
void scaled_exp(const float* x, std::int64_t count, float shift, float factor, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = factor * exp_of(x[i] - shift);
  }
}

void scaled_exp(const double* x, std::int64_t count, double shift, double factor, double* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = factor * std::exp(x[i] - shift);
  }
}

SHARDPLAN_EVERY_VECTOR_UNIT
void add_moments(const float* x, std::int64_t count, double& sum, double& squares) {
  std::array<double, kLanes> sums{};
  std::array<double, kLanes> products{};
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(x[i + static_cast<std::int64_t>(lane)]);
      sums[lane] += value;
      products[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(x[i]);
    sums[0] += value;
    products[0] += value * value;
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    squares += products[lane];
  }
}

SHARDPLAN_EVERY_VECTOR_UNIT
void add_products(
    const float* g, const float* x, std::int64_t count, float mean, double& sum, double& products) {
  std::array<double, kLanes> sums{};
  std::array<double, kLanes> lanes{};
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  const auto middle = static_cast<double>(mean);
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t at = i + static_cast<std::int64_t>(lane);
      const auto gradient = static_cast<double>(g[at]);
      sums[lane] += gradient;
      lanes[lane] += gradient * (static_cast<double>(x[at]) - middle);
    }
  }
  for (; i < count; ++i) {
    const auto gradient = static_cast<double>(g[i]);
    sums[0] += gradient;
    lanes[0] += gradient * (static_cast<double>(x[i]) - middle);
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    products += lanes[lane];
  }
}

SHARDPLAN_EVERY_VECTOR_UNIT
void combine(
    const float* g, const float* x, std::int64_t count, float a, float b, float c, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = a * g[i] + b * x[i] + c;
  }
}

SHARDPLAN_EVERY_VECTOR_UNIT
void adam_loop(
    const AdamNumbers<float>& s, std::int64_t count, float* p, const float* g, float* m, float* v) {
  adam_elements(s, count, p, g, m, v);
}

SHARDPLAN_EVERY_VECTOR_UNIT
void adam_loop(const AdamNumbers<double>& s,
               std::int64_t count,
               double* p,
               const double* g,
               double* m,
               double* v) {
  adam_elements(s, count, p, g, m, v);
}

}  // namespace shardplan::runtime
