#pragma once

#include <cstdint>

namespace shardplan::runtime {

// Loops over short runs of numbers, compiled for the vector units of several generations of
// processors; the best one is taken at run time. e^x in float is within 2 units in the last place,
// and 0 below the least normal number; in double it is std::exp.

/// Sum of e^(x − shift).
[[nodiscard]] float sum_of_exp(const float* x, std::int64_t count, float shift);
[[nodiscard]] double sum_of_exp(const double* x, std::int64_t count, double shift);

/// out = factor · e^(x − shift); `out` may be `x`.
void scaled_exp(const float* x, std::int64_t count, float shift, float factor, float* out);
void scaled_exp(const double* x, std::int64_t count, double shift, double factor, double* out);

/// Adds the sum and the sum of squares of x, both kept in double, to `sum` and `squares`.
void add_moments(const float* x, std::int64_t count, double& sum, double& squares);

/// Adds Σ g and Σ g · (x − mean), both kept in double, to `sum` and `products`.
void add_products(
    const float* g, const float* x, std::int64_t count, float mean, double& sum, double& products);

/// out = a · g + b · x + c; `out` is neither g nor x.
void combine(
    const float* g, const float* x, std::int64_t count, float a, float b, float c, float* out);

/// The numbers of one step of Adam or AdamW (torch.optim's), in the type of the arithmetic.
template <class C>
struct AdamNumbers {
  C beta1, beta2, eps, clip;
  C shrink;           ///< AdamW: p is multiplied by this first
  C l2;               ///< Adam: this times p is added to the gradient
  C step_size;        ///< lr / (1 − beta1^t)
  C root_correction;  ///< sqrt(1 − beta2^t)
};

/// Updates p, m and v in place by the gradient g.
void adam_loop(
    const AdamNumbers<float>& s, std::int64_t count, float* p, const float* g, float* m, float* v);
void adam_loop(const AdamNumbers<double>& s,
               std::int64_t count,
               double* p,
               const double* g,
               double* m,
               double* v);

}  // namespace shardplan::runtime
