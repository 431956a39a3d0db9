// Activations that are functions of one operand, and dropout.

#include <algorithm>
#include <cmath>

#include "shardplan/frontends/onnx/call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::ValueId;

ValueId number(Builder& b, double value, ir::DType dtype) {
  return b.emit(
      "full",
      {},
      {{"shape", ir::IntList{}}, {"value", value}, {"dtype", std::string(ir::dtype_name(dtype))}});
}

ValueId scaled(Builder& b, ValueId x, double factor) {
  return factor == 1.0 ? x : b.emit("scale", {x}, {{"factor", factor}});
}

ValueId shifted(Builder& b, ValueId x, double value) {
  return b.emit("add_scalar", {x}, {{"value", value}});
}

ValueId at_least(Builder& b, ValueId x, double value) {
  return b.emit("maximum_scalar", {x}, {{"value", value}});
}

ValueId at_most(Builder& b, ValueId x, double value) {
  return b.emit("minimum_scalar", {x}, {{"value", value}});
}

/// alpha · (e^(x / width) - 1) for x <= 0; bounded, so that the unused branch has no infinity.
ValueId exponential_below(Builder& b, ValueId x, double alpha, double width) {
  const ValueId below = scaled(b, at_most(b, x, 0.0), 1.0 / width);
  return scaled(b, shifted(b, b.emit("exp", {below}), -1.0), alpha);
}

/// max(x, 0) + log(1 + e^-|x|).
ValueId softplus(Builder& b, ValueId x) {
  const ValueId small = b.emit("exp", {b.emit("neg", {b.emit("abs", {x})})});
  return b.emit("add", {at_least(b, x, 0.0), b.emit("log", {shifted(b, small, 1.0)})});
}

ValueId where_above(Builder& b, ValueId x, double bound, ValueId above, ValueId below) {
  return b.emit("where", {b.emit("gt_scalar", {x}, {{"value", bound}}), above, below});
}

void map_relu(Call& c) {
  const ValueId x = c.tensor(0);
  const bool floating = ir::is_floating(c.type(0).dtype);
  c.result(floating ? c.builder().emit("relu", {x}) : at_least(c.builder(), x, 0.0));
}

void map_plain(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(c.builder().emit(std::string(c.ours()), {x}));
}

void map_leaky_relu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(where_above(b, x, 0.0, x, scaled(b, x, c.real("alpha", 0.01))));
}

void map_prelu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  ValueId slope = c.tensor(1);
  const ir::Shape channels = c.type(1).shape;
  if (c.opset() < 7 && channels.size() == 1 && channels[0] > 1) {
    ir::Shape shape(static_cast<std::size_t>(std::max<std::int64_t>(c.rank(0) - 1, 1)), 1);
    shape.front() = channels[0];
    slope = reshape_to(b, slope, shape);
  }
  const ValueId below = b.emit("mul", {x, slope});
  c.result(where_above(b, x, 0.0, x, below));
}

void map_elu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(where_above(b, x, 0.0, x, exponential_below(b, x, c.real("alpha", 1.0), 1.0)));
}

void map_celu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const double alpha = c.real("alpha", 1.0);
  c.result(where_above(b, x, 0.0, x, exponential_below(b, x, alpha, alpha)));
}

void map_selu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const double alpha = c.real("alpha", 1.67326319217681884765625);
  const double gamma = c.real("gamma", 1.05070102214813232421875);
  c.result(scaled(b, where_above(b, x, 0.0, x, exponential_below(b, x, alpha, 1.0)), gamma));
}

void map_thresholded_relu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(where_above(b, x, c.real("alpha", 1.0), x, number(b, 0.0, c.type(0).dtype)));
}

void map_shrink(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const double bias = c.real("bias", 0.0);
  const double bound = c.real("lambd", 0.5);
  const ValueId low = b.emit("lt_scalar", {x}, {{"value", -bound}});
  const ValueId zero = number(b, 0.0, c.type(0).dtype);
  const ValueId high = where_above(b, x, bound, shifted(b, x, -bias), zero);
  c.result(b.emit("where", {low, shifted(b, x, bias), high}));
}

ValueId hard_sigmoid(Builder& b, ValueId x, double alpha, double beta) {
  return at_most(b, at_least(b, shifted(b, scaled(b, x, alpha), beta), 0.0), 1.0);
}

void map_hard_sigmoid(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(hard_sigmoid(c.builder(), x, c.real("alpha", 0.2), c.real("beta", 0.5)));
}

void map_hard_swish(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(c.builder().emit("mul", {x, hard_sigmoid(c.builder(), x, 1.0 / 6.0, 0.5)}));
}

void map_softplus(Call& c) {
  const ValueId x = c.tensor(0);
  c.result(softplus(c.builder(), x));
}

void map_mish(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(b.emit("mul", {x, b.emit("tanh", {softplus(b, x)})}));
}

void map_softsign(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  c.result(b.emit("div", {x, shifted(b, b.emit("abs", {x}), 1.0)}));
}

void map_swish(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const double alpha = c.real("alpha", 1.0);
  c.result(alpha == 1.0 ? b.emit("silu", {x})
                        : b.emit("mul", {x, b.emit("sigmoid", {scaled(b, x, alpha)})}));
}

/// Swish of one operand times the other.
void map_swiglu(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const double alpha = c.real("alpha", 1.0);
  const ValueId gate = alpha == 1.0 ? b.emit("silu", {x})
                                    : b.emit("mul", {x, b.emit("sigmoid", {scaled(b, x, alpha)})});
  c.result(b.emit("mul", {gate, c.tensor(1)}));
}

void map_gelu(Call& c) {
  const ValueId x = c.tensor(0);
  const std::string approximate = c.text("approximate", "none");
  c.result(c.builder().emit("gelu", {x}, {{"approximate", approximate}}));
}

/// Trains where the node says so; the mask is known where it does not.
void map_dropout(Call& c) {
  const ValueId x = c.tensor(0);
  const bool training =
      c.opset() < 7 ? !c.flag("is_test", false) : c.known_number(2, "training_mode", 0.0) != 0.0;
  const double p = c.has("ratio") ? c.real("ratio", 0.5) : c.known_number(1, "ratio", 0.5);
  if (!training || p == 0) {
    c.result(x);
    c.constant_result(
        ConstTensor::full({ir::DType::kBool, c.type(0).shape}, Number::of(std::int64_t{1})), 1);
    return;
  }
  Builder& b = c.builder();
  const ir::Attributes attributes{{"p", p}, {"seed", c.next_dropout_site()}};
  c.result(b.emit("dropout", {x}, attributes));
  if (c.wants(1) && c.ok()) {
    const ConstTensor ones = ConstTensor::full(c.type(0), Number::of(1.0));
    const ValueId kept = b.emit("dropout", {materialize(b, ones)}, attributes);
    c.result(b.emit("ne_scalar", {kept}, {{"value", 0.0}}), 1);
  }
}

}  // namespace

std::vector<Row> activation_rows() {
  return {{"Relu", map_relu},
          {"Tanh", map_plain, "tanh"},
          {"Sigmoid", map_plain, "sigmoid"},
          {"LeakyRelu", map_leaky_relu},
          {"PRelu", map_prelu},
          {"Elu", map_elu},
          {"Celu", map_celu},
          {"Selu", map_selu},
          {"ThresholdedRelu", map_thresholded_relu},
          {"Shrink", map_shrink},
          {"HardSigmoid", map_hard_sigmoid},
          {"HardSwish", map_hard_swish},
          {"Softplus", map_softplus},
          {"Softsign", map_softsign},
          {"Mish", map_mish},
          {"Swish", map_swish},
          {"SwiGLU", map_swiglu},
          {"Gelu", map_gelu},
          {"Dropout", map_dropout}};
}

}  // namespace shardplan::frontends::onnx
