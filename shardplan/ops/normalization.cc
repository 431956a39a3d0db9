// Softmax and layer normalisation with their backward ops.

#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

// softmax -----------------------------------------------------------------------------------------

Result<Types> infer_softmax(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dim", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  return Types{inputs[0]};
}

/// g, and y: the softmax, or its logarithm.
Result<Types> infer_softmax_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dim", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 1, inputs[0], "the softmax"));
  return Types{inputs[0]};
}

std::string softmax_text(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  return (op.inputs.size() == 2 ? names + ", " : "") + names + " -> " + names;
}

AxisMap axes_softmax(const OpView& op) {
  return make_axis_map(softmax_text(op), op.inputs, op.results);
}

/// dx = y · (g - Σ g·y) is linear in g.
AxisMap axes_softmax_backward(const OpView& op) {
  return make_axis_map(softmax_text(op), op.inputs, op.results, {{{0}, {0}}});
}

/// Maximum, difference and exponential, sum, quotient.
Flops flops_softmax(const OpView& op) {
  return 4 * result_elements(op);
}

void gradient_softmax(GradientBuilder& b) {
  b.set_input_gradient(
      0, b.emit("softmax_backward", {b.output_gradient(0), b.output(0)}, b.attributes()));
}

void gradient_log_softmax(GradientBuilder& b) {
  b.set_input_gradient(
      0, b.emit("log_softmax_backward", {b.output_gradient(0), b.output(0)}, b.attributes()));
}

// layer_norm --------------------------------------------------------------------------------------

/// Which operands and results an op has besides the fixed ones.
struct Affine {
  bool weight = false;
  bool bias = false;

  [[nodiscard]] std::size_t count() const { return (weight ? 1U : 0U) + (bias ? 1U : 0U); }
};

Affine affine_of(const ir::Attributes& attributes) {
  return Affine{attributes.flag_or("weight", false), attributes.flag_or("bias", false)};
}

Status check_layer_norm_attributes(const ir::Attributes& attributes) {
  return check_attributes(attributes,
                          {{"dims", AttributeKind::kInteger},
                           {"eps", AttributeKind::kNumber},
                           {"weight", AttributeKind::kFlag, false},
                           {"bias", AttributeKind::kFlag, false}});
}

/// Operand x is floating and has the dimensions that are normalised.
Status check_normalized(Inputs inputs, std::size_t x, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, x));
  const std::int64_t dims = attributes.integer("dims");
  if (dims < 1 || dims > inputs[x].rank()) {
    return invalid_input("dims is " + std::to_string(dims) + ", 1 to the rank of " +
                         ir::to_string(inputs[x]) + " expected");
  }
  return {};
}

/// The type of mean and rstd: one number for each group that is normalised.
ir::TensorType statistics_type(const ir::TensorType& x, std::int64_t dims) {
  return ir::TensorType{accumulation_dtype(x.dtype),
                        ir::Shape(x.shape.begin(), x.shape.end() - dims)};
}

/// The type of weight and bias.
ir::TensorType affine_type(const ir::TensorType& x, std::int64_t dims) {
  return ir::TensorType{x.dtype, ir::Shape(x.shape.end() - dims, x.shape.end())};
}

Result<Types> infer_layer_norm(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_layer_norm_attributes(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1 + affine_of(attributes).count()));
  SHARDPLAN_RETURN_IF_ERROR(check_normalized(inputs, 0, attributes));
  const std::int64_t dims = attributes.integer("dims");
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(
        check_type(inputs, i, affine_type(inputs[0], dims), "weight or bias"));
  }
  const ir::TensorType statistics = statistics_type(inputs[0], dims);
  return Types{inputs[0], statistics, statistics};
}

/// g, x, mean, rstd, [weight] → dx, [dweight], [dbias].
Result<Types> infer_layer_norm_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_layer_norm_attributes(attributes));
  const Affine affine = affine_of(attributes);
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, affine.weight ? 5 : 4));
  SHARDPLAN_RETURN_IF_ERROR(check_normalized(inputs, 1, attributes));
  const std::int64_t dims = attributes.integer("dims");
  const ir::TensorType& x = inputs[1];
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, x, "the gradient"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, statistics_type(x, dims), "the mean"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 3, statistics_type(x, dims), "rstd"));
  if (affine.weight) {
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 4, affine_type(x, dims), "the weight"));
  }
  Types types(1 + affine.count(), affine_type(x, dims));
  types[0] = x;
  return types;
}

/// Names of the leading dimensions, which are free, and of the normalised ones, which are whole.
struct LayerNormNames {
  std::string leading;
  std::string trailing;
};

LayerNormNames layer_norm_names(const OpView& op, std::string_view marker) {
  const auto dims = static_cast<std::size_t>(op.attributes.integer("dims"));
  LayerNormNames names;
  for (std::size_t d = 0; d + dims < op.results[0].shape.size(); ++d) {
    names.leading += marker;
    names.leading += "d" + std::to_string(d) + " ";
  }
  for (std::size_t d = 0; d < dims; ++d) {
    names.trailing += "* ";
  }
  return names;
}

AxisMap axes_layer_norm(const OpView& op) {
  const LayerNormNames names = layer_norm_names(op, "");
  std::string text = names.leading + names.trailing;
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    text += ", " + names.trailing;
  }
  text += "-> " + names.leading + names.trailing + ", " + names.leading + ", " + names.leading;
  return make_axis_map(text, op.inputs, op.results);
}

/// Leading axes are in dx; dweight and dbias are sums over them.
AxisMap axes_layer_norm_backward(const OpView& op) {
  const LayerNormNames names = layer_norm_names(op, "+");
  const std::string x = names.leading + names.trailing;
  std::string text = x + ", " + x + ", " + names.leading + ", " + names.leading;
  if (affine_of(op.attributes).weight) {
    text += ", " + names.trailing;
  }
  text += "-> " + x;
  for (std::size_t i = 1; i < op.results.size(); ++i) {
    text += ", " + names.trailing;
  }
  return make_axis_map(text, op.inputs, op.results);
}

/// Mean, variance (2), normalise (2), weight and bias, rounded to 8 an element.
Flops flops_layer_norm(const OpView& op) {
  return 8 * static_cast<Flops>(op.inputs[0].numel());
}
Flops flops_layer_norm_backward(const OpView& op) {
  return 14 * static_cast<Flops>(op.inputs[0].numel());
}

/// Elements that are normalised together.
std::int64_t group_size(const OpView& op) {
  const ir::Shape& shape = op.results[0].shape;
  const auto dims = static_cast<std::size_t>(op.attributes.integer("dims"));
  std::int64_t size = 1;
  for (std::size_t d = shape.size() - dims; d < shape.size(); ++d) {
    size *= shape[d];
  }
  return size;
}

/// Narrow weights (ones where there are none) and biases are converted.
Bytes workspace_layer_norm(const OpView& op) {
  const bool narrow = op.inputs[0].dtype != accumulation_dtype(op.inputs[0].dtype);
  const Affine affine = affine_of(op.attributes);
  const std::int64_t converted = narrow ? 1 + (affine.bias ? 1 : 0) : 0;
  return converted * group_size(op) * ir::element_bytes(op.results[1].dtype);
}

/// Sums for weight and bias, a placeholder for the bias, the converted weight of narrow types.
Bytes workspace_layer_norm_backward(const OpView& op) {
  const bool narrow = op.inputs[0].dtype != accumulation_dtype(op.inputs[0].dtype);
  const Affine affine = affine_of(op.attributes);
  const std::int64_t vectors =
      (affine.count() > 0 ? 2 : 0) + (affine.bias ? 1 : 0) + (narrow ? 1 : 0);
  return vectors * group_size(op) * ir::element_bytes(op.inputs[2].dtype);
}

void gradient_layer_norm(GradientBuilder& b) {
  b.refuse_output_gradient(1, "the gradient of layer_norm's mean");
  b.refuse_output_gradient(2, "the gradient of layer_norm's rstd");
  if (!b.output_gradient(0).valid()) {
    return;
  }
  const Affine affine = affine_of(b.attributes());
  std::vector<ir::ValueId> operands{b.output_gradient(0), b.input(0), b.output(1), b.output(2)};
  if (affine.weight) {
    operands.push_back(b.input(1));
  }
  const std::vector<ir::ValueId> gradients =
      b.emit_all("layer_norm_backward", std::move(operands), b.attributes());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    b.set_input_gradient(i, gradients[i]);
  }
}

}  // namespace

std::vector<OpDef> normalization_ops() {
  return {
      {.name = "softmax",
       .summary = "exponentials along one dimension, divided by their sum",
       .infer = infer_softmax,
       .axes = axes_softmax,
       .flops = flops_softmax,
       .gradient = gradient_softmax},
      {.name = "softmax_backward",
       .summary = "y · (g - Σ g·y)",
       .infer = infer_softmax_backward,
       .axes = axes_softmax_backward,
       .flops = flops_softmax},
      {.name = "log_softmax",
       .summary = "logarithm of the softmax along one dimension",
       .infer = infer_softmax,
       .axes = axes_softmax,
       .flops = flops_softmax,
       .gradient = gradient_log_softmax},
      {.name = "log_softmax_backward",
       .summary = "g - e^y · Σ g",
       .infer = infer_softmax_backward,
       .axes = axes_softmax_backward,
       .flops = flops_softmax},
      {.name = "layer_norm",
       .summary = "trailing dimensions to mean 0 and variance 1, then weight and bias",
       .infer = infer_layer_norm,
       .axes = axes_layer_norm,
       .flops = flops_layer_norm,
       .workspace = workspace_layer_norm,
       .gradient = gradient_layer_norm},
      {.name = "layer_norm_backward",
       .summary = "gradients of layer_norm's operands",
       .infer = infer_layer_norm_backward,
       .axes = axes_layer_norm_backward,
       .flops = flops_layer_norm_backward,
       .workspace = workspace_layer_norm_backward},
  };
}

}  // namespace shardplan::ops
