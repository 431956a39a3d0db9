#include "shardplan/ops/elementwise_gradients.h"

#include <string>

namespace shardplan::ops {
namespace {

ir::ValueId scaled(GradientBuilder& b, ir::ValueId value, double factor) {
  return b.emit("scale", {value}, {{"factor", factor}});
}

/// A scalar zero that broadcasts against `like`.
ir::ValueId zero_like(GradientBuilder& b, ir::ValueId like) {
  const std::string dtype(ir::dtype_name(b.type(like).dtype));
  return b.emit("full", {}, {{"shape", ir::IntList{}}, {"value", 0.0}, {"dtype", dtype}});
}

ir::ValueId cast_like(GradientBuilder& b, ir::ValueId value, ir::ValueId like) {
  return b.emit("cast", {value}, {{"dtype", std::string(ir::dtype_name(b.type(like).dtype))}});
}

/// Operand 0 and 1 get g where they won the comparison `wins`, g / 2 where they tie.
void gradient_extremum(GradientBuilder& b, const char* wins) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId zero = zero_like(b, g);
  const ir::ValueId tie = b.emit("eq", {b.input(0), b.input(1)});
  const ir::ValueId shared = b.emit("where", {tie, scaled(b, g, 0.5), zero});
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      const ir::ValueId won = b.emit(wins, {b.input(i), b.input(1 - i)});
      const ir::ValueId gradient = b.emit("where", {won, g, shared});
      b.set_input_gradient(i, b.sum_to(gradient, b.input(i)));
    }
  }
}

}  // namespace

void gradient_pass(GradientBuilder& b) {
  b.set_input_gradient(0, b.output_gradient(0));
}

void gradient_neg(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("neg", {b.output_gradient(0)}));
}

void gradient_abs(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId positive = b.emit("gt_scalar", {b.input(0)}, {{"value", 0.0}});
  const ir::ValueId negative = b.emit("lt_scalar", {b.input(0)}, {{"value", 0.0}});
  const ir::ValueId sign = b.emit("sub", {cast_like(b, positive, g), cast_like(b, negative, g)});
  b.set_input_gradient(0, b.emit("mul", {g, sign}));
}

void gradient_exp(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("mul", {b.output_gradient(0), b.output(0)}));
}

void gradient_log(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("div", {b.output_gradient(0), b.input(0)}));
}

void gradient_sqrt(GradientBuilder& b) {
  const ir::ValueId half = scaled(b, b.output_gradient(0), 0.5);
  b.set_input_gradient(0, b.emit("div", {half, b.output(0)}));
}

void gradient_rsqrt(GradientBuilder& b) {
  const ir::ValueId cube = b.emit("pow_scalar", {b.output(0)}, {{"exponent", 3.0}});
  b.set_input_gradient(0, scaled(b, b.emit("mul", {b.output_gradient(0), cube}), -0.5));
}

void gradient_reciprocal(GradientBuilder& b) {
  const ir::ValueId square = b.emit("mul", {b.output(0), b.output(0)});
  const ir::ValueId product = b.emit("mul", {b.output_gradient(0), square});
  b.set_input_gradient(0, b.emit("neg", {product}));
}

void gradient_sin(GradientBuilder& b) {
  const ir::ValueId slope = b.emit("cos", {b.input(0)});
  b.set_input_gradient(0, b.emit("mul", {b.output_gradient(0), slope}));
}

void gradient_cos(GradientBuilder& b) {
  const ir::ValueId slope = b.emit("sin", {b.input(0)});
  const ir::ValueId product = b.emit("mul", {b.output_gradient(0), slope});
  b.set_input_gradient(0, b.emit("neg", {product}));
}

void gradient_tanh(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("tanh_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_sigmoid(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("sigmoid_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_relu(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("relu_backward", {b.output_gradient(0), b.output(0)}));
}

void gradient_silu(GradientBuilder& b) {
  b.set_input_gradient(0, b.emit("silu_backward", {b.output_gradient(0), b.input(0)}));
}

void gradient_gelu(GradientBuilder& b) {
  b.set_input_gradient(0,
                       b.emit("gelu_backward", {b.output_gradient(0), b.input(0)}, b.attributes()));
}

void gradient_cast(GradientBuilder& b) {
  b.set_input_gradient(0, cast_like(b, b.output_gradient(0), b.input(0)));
}

void gradient_scale(GradientBuilder& b) {
  b.set_input_gradient(0, scaled(b, b.output_gradient(0), b.attributes().number("factor")));
}

void gradient_pow_scalar(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const double exponent = b.attributes().number("exponent");
  if (exponent == 0.0) {
    return;
  }
  if (exponent == 1.0) {
    b.set_input_gradient(0, g);
    return;
  }
  const ir::ValueId power =
      exponent == 2.0 ? b.input(0)
                      : b.emit("pow_scalar", {b.input(0)}, {{"exponent", exponent - 1.0}});
  b.set_input_gradient(0, b.emit("mul", {scaled(b, g, exponent), power}));
}

void gradient_maximum_scalar(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId above =
      b.emit("ge_scalar", {b.input(0)}, {{"value", b.attributes().number("value")}});
  b.set_input_gradient(0, b.emit("where", {above, g, zero_like(b, g)}));
}

void gradient_add(GradientBuilder& b) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      b.set_input_gradient(i, b.sum_to(b.output_gradient(0), b.input(i)));
    }
  }
}

void gradient_sub(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(g, b.input(0)));
  }
  if (b.needed(1)) {
    b.set_input_gradient(1, b.emit("neg", {b.sum_to(g, b.input(1))}));
  }
}

void gradient_mul(GradientBuilder& b) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (b.needed(i)) {
      const ir::ValueId product = b.emit("mul", {b.output_gradient(0), b.input(1 - i)});
      b.set_input_gradient(i, b.sum_to(product, b.input(i)));
    }
  }
}

void gradient_div(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId quotient = b.emit("div", {g, b.input(1)});
  if (b.needed(0)) {
    b.set_input_gradient(0, b.sum_to(quotient, b.input(0)));
  }
  if (b.needed(1)) {
    const ir::ValueId product = b.emit("mul", {quotient, b.output(0)});
    b.set_input_gradient(1, b.emit("neg", {b.sum_to(product, b.input(1))}));
  }
}

void gradient_maximum(GradientBuilder& b) {
  gradient_extremum(b, "gt");
}

void gradient_minimum(GradientBuilder& b) {
  gradient_extremum(b, "lt");
}

void gradient_where(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId zero = zero_like(b, g);
  if (b.needed(1)) {
    b.set_input_gradient(1, b.sum_to(b.emit("where", {b.input(0), g, zero}), b.input(1)));
  }
  if (b.needed(2)) {
    b.set_input_gradient(2, b.sum_to(b.emit("where", {b.input(0), zero, g}), b.input(2)));
  }
}

}  // namespace shardplan::ops
