#pragma once

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// Gradient rules of elementwise.cc, one an op. Where an operand was broadcast, its gradient is
/// summed back to its shape. At ties and kinks they follow PyTorch: |x| has gradient 0 at 0,
/// maximum_scalar passes the gradient at equality, maximum and minimum halve it.
void gradient_pass(GradientBuilder& b);  ///< dx = g
void gradient_neg(GradientBuilder& b);
void gradient_abs(GradientBuilder& b);
void gradient_exp(GradientBuilder& b);
void gradient_log(GradientBuilder& b);
void gradient_sqrt(GradientBuilder& b);
void gradient_rsqrt(GradientBuilder& b);
void gradient_reciprocal(GradientBuilder& b);
void gradient_sin(GradientBuilder& b);
void gradient_cos(GradientBuilder& b);
void gradient_tanh(GradientBuilder& b);
void gradient_sigmoid(GradientBuilder& b);
void gradient_relu(GradientBuilder& b);
void gradient_silu(GradientBuilder& b);
void gradient_gelu(GradientBuilder& b);
void gradient_cast(GradientBuilder& b);
void gradient_scale(GradientBuilder& b);
void gradient_pow_scalar(GradientBuilder& b);
void gradient_maximum_scalar(GradientBuilder& b);
void gradient_add(GradientBuilder& b);
void gradient_sub(GradientBuilder& b);
void gradient_mul(GradientBuilder& b);
void gradient_div(GradientBuilder& b);
void gradient_maximum(GradientBuilder& b);
void gradient_minimum(GradientBuilder& b);
void gradient_where(GradientBuilder& b);

}  // namespace shardplan::ops
