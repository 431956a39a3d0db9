// Normalisation over the batch with exact statistics of the whole batch however it is sharded, and
// over groups of channels.
//
// Batch normalisation is made of parts: `batch_moments` counts and sums over the batch and space,
// so a shard's are partial sums; `batch_statistics` makes mean and variance of them; `batch_norm`
// normalises. Moments are f64 whatever x is: the variance is a difference of them.

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/elementwise.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

constexpr std::int64_t kMoments = 3;  ///< count, sum, and sum of squares or of products

struct Affine {
  bool weight = false;
  bool bias = false;

  [[nodiscard]] std::size_t count() const { return (weight ? 1U : 0U) + (bias ? 1U : 0U); }
};

Affine affine_of(const ir::Attributes& attributes) {
  return Affine{attributes.flag_or("weight", false), attributes.flag_or("bias", false)};
}

/// Operand i is [batch, channels, ...].
Status check_channels(Inputs inputs, std::size_t i) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
  if (inputs[i].rank() < 2) {
    return invalid_input("operand " + std::to_string(i) + " is " + ir::to_string(inputs[i]) +
                         ", a batch and channels expected");
  }
  return {};
}

/// One number a channel of x, in the type in which sums are kept.
ir::TensorType channel_type(const ir::TensorType& x) {
  return ir::TensorType{accumulation_dtype(x.dtype), {x.shape[1]}};
}

/// Weights and biases may be narrower or wider than x.
Status check_affine(Inputs inputs, std::size_t first, const ir::Shape& shape) {
  for (std::size_t i = first; i < inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
    SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, i, shape, "weight or bias"));
  }
  return {};
}

/// "n c s0 s1" of x.
std::string channel_names(const ir::TensorType& x) {
  return "n c " + axis_names("s", x.shape.size() - 2);
}

Flops per_element(const OpView& op, std::size_t operand, Flops each) {
  return each * static_cast<Flops>(op.inputs[operand].numel());
}

bool is_narrow(const ir::TensorType& x) {
  return accumulation_dtype(x.dtype) != x.dtype;
}

/// `count` numbers for each channel of `of`, [moments, channels], in the dtype.
Bytes channel_vectors(std::int64_t count, const ir::TensorType& of, ir::DType dtype) {
  return count * of.shape[1] * ir::element_bytes(dtype);
}

// batch_moments, batch_statistics, batch_running --------------------------------------------------

Result<Types> infer_batch_moments(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_channels(inputs, 0));
  return Types{ir::TensorType{ir::DType::kFloat64, {kMoments, inputs[0].shape[1]}}};
}

AxisMap axes_batch_moments(const OpView& op) {
  return make_axis_map(channel_names(op.inputs[0]) + " -> * c", op.inputs, op.results);
}

Flops flops_batch_moments(const OpView& op) {
  return per_element(op, 0, 4);
}

/// Whether the runtime adds the op's sums over x by a loop of its own, without workspace: for
/// narrow numbers, and for long runs of f32.
bool has_own_loop(const ir::TensorType& x) {
  constexpr std::int64_t kLong = 16;
  const std::int64_t runs = std::max<std::int64_t>(1, x.shape[0] * x.shape[1]);
  return is_narrow(x) || (x.dtype == ir::DType::kFloat32 && x.numel() / runs >= kLong);
}

/// Whether there is one element of each channel in each sample.
bool is_side_by_side(const ir::TensorType& x) {
  return x.numel() == x.shape[0] * x.shape[1];
}

/// Mean and variance, and ATen's own sums for them.
Bytes workspace_batch_moments(const OpView& op) {
  const ir::TensorType& x = op.inputs[0];
  return has_own_loop(x) ? 0 : channel_vectors(is_side_by_side(x) ? 5 : 4, x, x.dtype);
}

/// Statistics are computed in f64 and then narrowed.
Bytes workspace_batch_statistics(const OpView& op) {
  const bool narrows = op.results[0].dtype != op.inputs[0].dtype;
  return narrows ? channel_vectors(2, op.inputs[0], op.inputs[0].dtype) : 0;
}

/// Mean, variance and what is between them in f64.
Bytes workspace_batch_running(const OpView& op) {
  const bool narrows = op.results[0].dtype != op.inputs[0].dtype;
  return channel_vectors(narrows ? 3 : 2, op.inputs[0], op.inputs[0].dtype);
}

Status check_moments(Inputs inputs, std::size_t i) {
  const bool fits =
      inputs[i].rank() == 2 && inputs[i].shape[0] == kMoments && ir::is_floating(inputs[i].dtype);
  if (fits) {
    return {};
  }
  return invalid_input("operand " + std::to_string(i) + " is " + ir::to_string(inputs[i]) +
                       ", 3 moments for each channel expected");
}

Result<Types> infer_batch_statistics(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dtype", AttributeKind::kText}}));
  SHARDPLAN_RETURN_IF_ERROR(check_moments(inputs, 0));
  const auto dtype = ir::parse_dtype(attributes.string("dtype"));
  if (!dtype || !ir::is_floating(*dtype)) {
    return invalid_input("dtype \"" + attributes.string("dtype") + "\" is none of f32 f64");
  }
  // Statistics are never narrow, even when a whole model is cast.
  return Types(2, ir::TensorType{accumulation_dtype(*dtype), {inputs[0].shape[1]}});
}

AxisMap axes_batch_statistics(const OpView& op) {
  return make_axis_map("* c -> c, c", op.inputs, op.results);
}

/// moments, running mean, running variance → both moved towards the statistics.
Result<Types> infer_batch_running(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"momentum", AttributeKind::kNumber}}));
  SHARDPLAN_RETURN_IF_ERROR(check_moments(inputs, 0));
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
    SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, i, {inputs[0].shape[1]}, "running statistics"));
  }
  return Types{inputs[1], inputs[2]};
}

AxisMap axes_batch_running(const OpView& op) {
  return make_axis_map("* c, c, c -> c, c", op.inputs, op.results);
}

// batch_norm --------------------------------------------------------------------------------------

Status check_batch_norm_attributes(const ir::Attributes& attributes) {
  return check_attributes(attributes,
                          {{"eps", AttributeKind::kNumber},
                           {"training", AttributeKind::kFlag},
                           {"weight", AttributeKind::kFlag, false},
                           {"bias", AttributeKind::kFlag, false}});
}

/// x, mean, variance, [weight], [bias] → (x - mean) / sqrt(variance + eps) · weight + bias.
Result<Types> infer_batch_norm(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_batch_norm_attributes(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3 + affine_of(attributes).count()));
  SHARDPLAN_RETURN_IF_ERROR(check_channels(inputs, 0));
  const ir::TensorType channels = channel_type(inputs[0]);
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 1, channels, "the mean"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, channels, "the variance"));
  SHARDPLAN_RETURN_IF_ERROR(check_affine(inputs, 3, channels.shape));
  return Types{inputs[0]};
}

AxisMap axes_batch_norm(const OpView& op) {
  const std::string x = channel_names(op.inputs[0]);
  std::string text = x;
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    text += ", c";
  }
  return make_axis_map(text + " -> " + x, op.inputs, op.results);
}

Flops flops_batch_norm(const OpView& op) {
  return per_element(op, 0, 4);
}

/// A factor and a summand for each channel; those of a narrow x are widened before.
Bytes workspace_batch_norm(const OpView& op) {
  const auto widened =
      static_cast<std::int64_t>(is_narrow(op.inputs[0]) ? op.inputs.size() - 3 : 0);
  return channel_vectors(2 + widened, op.inputs[0], op.inputs[1].dtype);
}

/// The two sums before they are put together, and ATen's own where channels lie side by side.
Bytes workspace_batch_norm_sums(const OpView& op) {
  const ir::TensorType& x = op.inputs[1];
  return has_own_loop(x) ? 0 : channel_vectors(is_side_by_side(x) ? 6 : 2, x, x.dtype);
}

/// Factors of g and x, and a summand; of a narrow x, a sample of both in the wide type.
Bytes workspace_batch_norm_backward(const OpView& op) {
  const ir::TensorType& x = op.inputs[1];
  const ir::DType wide = op.inputs[2].dtype;
  const std::int64_t sample = x.numel() / std::max<std::int64_t>(1, x.shape[0]);
  // While the factors are made there are also the sums in their type, and no result yet.
  const std::int64_t sums = op.inputs[4].dtype == wide ? 0 : 3;
  const std::int64_t weight = op.attributes.flag_or("weight", false) ? 1 : 0;
  return std::max(
      channel_vectors(3, x, wide) + (is_narrow(x) ? 2 * sample * ir::element_bytes(wide) : 0),
      channel_vectors(sums + 3 + weight, x, wide) - op.results[0].bytes());
}

/// g, x, mean, variance → [count, Σ g, Σ g · (x - mean) / sqrt(variance + eps)] by channel.
Result<Types> infer_batch_norm_sums(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 4));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"eps", AttributeKind::kNumber}}));
  SHARDPLAN_RETURN_IF_ERROR(check_channels(inputs, 1));
  const ir::TensorType channels = channel_type(inputs[1]);
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, inputs[1], "the gradient"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, channels, "the mean"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 3, channels, "the variance"));
  return Types{ir::TensorType{ir::DType::kFloat64, {kMoments, channels.shape[0]}}};
}

AxisMap axes_batch_norm_sums(const OpView& op) {
  const std::string x = channel_names(op.inputs[1]);
  return make_axis_map(x + ", " + x + ", c, c -> * c", op.inputs, op.results);
}

Flops flops_batch_norm_sums(const OpView& op) {
  return per_element(op, 1, 5);
}

/// g, x, mean, variance, sums, [weight] → dx.
Result<Types> infer_batch_norm_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"eps", AttributeKind::kNumber}, {"weight", AttributeKind::kFlag, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, affine_of(attributes).weight ? 6 : 5));
  SHARDPLAN_RETURN_IF_ERROR(check_channels(inputs, 1));
  const ir::TensorType channels = channel_type(inputs[1]);
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, inputs[1], "the gradient"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, channels, "the mean"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 3, channels, "the variance"));
  const ir::TensorType sums{ir::DType::kFloat64, {kMoments, channels.shape[0]}};
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 4, sums, "the sums"));
  SHARDPLAN_RETURN_IF_ERROR(check_affine(inputs, 5, channels.shape));
  return Types{inputs[1]};
}

AxisMap axes_batch_norm_backward(const OpView& op) {
  const std::string x = channel_names(op.inputs[1]);
  const std::string weight = op.inputs.size() == 6 ? ", c" : "";
  return make_axis_map(x + ", " + x + ", c, c, * c" + weight + " -> " + x, op.inputs, op.results);
}

/// Row `row` of the sums, in the type of `like`, a vector.
ir::ValueId sum_row(GradientBuilder& b, ir::ValueId sums, std::int64_t row, ir::ValueId like) {
  const ir::ValueId cut = b.emit(
      "slice",
      {sums},
      {{"dim", std::int64_t{0}}, {"start", row}, {"end", row + 1}, {"step", std::int64_t{1}}});
  const ir::ValueId vector = b.emit("reshape", {cut}, {{"shape", b.type(like).shape}});
  return b.type(vector).dtype == b.type(like).dtype ? vector : cast_like(b, vector, like);
}

/// With fixed statistics: g · weight / sqrt(variance + eps).
ir::ValueId gradient_of_fixed(GradientBuilder& b, ir::ValueId g, bool weight) {
  const double eps = b.attributes().number("eps");
  const ir::ValueId shifted = b.emit("add_scalar", {b.input(2)}, {{"value", eps}});
  ir::ValueId factor = b.emit("rsqrt", {shifted});
  if (weight) {
    const bool same = b.type(b.input(3)).dtype == b.type(factor).dtype;
    factor = b.emit("mul", {factor, same ? b.input(3) : cast_like(b, b.input(3), factor)});
  }
  factor = b.type(factor).dtype == b.type(g).dtype ? factor : cast_like(b, factor, g);
  ir::IntList shape(b.type(g).shape.size() - 1, 1);
  shape.front() = b.type(g).shape[1];
  return b.emit("mul", {g, b.emit("reshape", {factor}, {{"shape", shape}})});
}

/// In training, mean and variance are those of this very x: the whole gradient goes to x here.
void gradient_batch_norm(GradientBuilder& b) {
  const Affine affine = affine_of(b.attributes());
  const double eps = b.attributes().number("eps");
  const bool training = b.attributes().flag_or("training", false);
  const ir::ValueId g = b.output_gradient(0);
  const std::size_t bias = affine.weight ? 4 : 3;
  const bool of_weight = affine.weight && b.needed(3);
  const bool of_bias = affine.bias && b.needed(bias);
  ir::ValueId sums;
  if (of_weight || of_bias || (training && b.needed(0))) {
    sums = b.emit("batch_norm_sums", {g, b.input(0), b.input(1), b.input(2)}, {{"eps", eps}});
  }
  if (of_weight) {
    b.set_input_gradient(3, sum_row(b, sums, 2, b.input(3)));
  }
  if (of_bias) {
    b.set_input_gradient(bias, sum_row(b, sums, 1, b.input(bias)));
  }
  if (b.needed(0) && training) {
    std::vector<ir::ValueId> operands{g, b.input(0), b.input(1), b.input(2), sums};
    if (affine.weight) {
      operands.push_back(b.input(3));
    }
    b.set_input_gradient(
        0,
        b.emit(
            "batch_norm_backward", std::move(operands), {{"eps", eps}, {"weight", affine.weight}}));
  } else if (b.needed(0)) {
    b.set_input_gradient(0, gradient_of_fixed(b, g, affine.weight));
  }
}

// group_norm --------------------------------------------------------------------------------------

Status check_group_norm_attributes(const ir::Attributes& attributes) {
  return check_attributes(attributes,
                          {{"eps", AttributeKind::kNumber},
                           {"weight", AttributeKind::kFlag, false},
                           {"bias", AttributeKind::kFlag, false}});
}

/// Operand i is [batch, groups, channels of a group, ...].
Status check_grouped(Inputs inputs, std::size_t i) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
  if (inputs[i].rank() < 3) {
    return invalid_input("operand " + std::to_string(i) + " is " + ir::to_string(inputs[i]) +
                         ", a batch, groups and channels expected");
  }
  return {};
}

ir::TensorType group_type(const ir::TensorType& x) {
  return ir::TensorType{accumulation_dtype(x.dtype), {x.shape[0], x.shape[1]}};
}

ir::TensorType group_affine_type(const ir::TensorType& x) {
  return ir::TensorType{x.dtype, {x.shape[1], x.shape[2]}};
}

Result<Types> infer_group_norm(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_group_norm_attributes(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1 + affine_of(attributes).count()));
  SHARDPLAN_RETURN_IF_ERROR(check_grouped(inputs, 0));
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(
        check_type(inputs, i, group_affine_type(inputs[0]), "weight or bias"));
  }
  const ir::TensorType statistics = group_type(inputs[0]);
  return Types{inputs[0], statistics, statistics};
}

/// g, x, mean, rstd, [weight] → dx, [dweight], [dbias].
Result<Types> infer_group_norm_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_group_norm_attributes(attributes));
  const Affine affine = affine_of(attributes);
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, affine.weight ? 5 : 4));
  SHARDPLAN_RETURN_IF_ERROR(check_grouped(inputs, 1));
  const ir::TensorType& x = inputs[1];
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, x, "the gradient"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, group_type(x), "the mean"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 3, group_type(x), "rstd"));
  if (affine.weight) {
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 4, group_affine_type(x), "the weight"));
  }
  Types types(1 + affine.count(), group_affine_type(x));
  types[0] = x;
  return types;
}

/// "n g * *": groups are normalised whole.
std::string group_names(const ir::TensorType& x, std::string_view batch) {
  std::string names = std::string(batch) + " g";
  for (std::size_t d = 2; d < x.shape.size(); ++d) {
    names += " *";
  }
  return names;
}

AxisMap axes_group_norm(const OpView& op) {
  const std::string x = group_names(op.inputs[0], "n");
  std::string text = x;
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    text += ", g *";
  }
  return make_axis_map(text + " -> " + x + ", n g, n g", op.inputs, op.results);
}

/// dweight and dbias are sums over the batch.
AxisMap axes_group_norm_backward(const OpView& op) {
  const std::string x = group_names(op.inputs[1], "+n");
  std::string text = x + ", " + x + ", n g, n g";
  text += op.inputs.size() == 5 ? ", g *" : "";
  text += " -> " + x;
  for (std::size_t i = 1; i < op.results.size(); ++i) {
    text += ", g *";
  }
  return make_axis_map(text, op.inputs, op.results);
}

Flops flops_group_norm(const OpView& op) {
  return per_element(op, 0, 8);
}
Flops flops_group_norm_backward(const OpView& op) {
  return per_element(op, 1, 14);
}

/// Of a narrow x, weight (ones where there is none) and bias in the wide type.
Bytes workspace_group_norm(const OpView& op) {
  const ir::TensorType& x = op.inputs[0];
  const std::int64_t vectors = op.attributes.flag_or("bias", false) ? 2 : 1;
  return is_narrow(x) ? vectors * x.shape[1] * x.shape[2] * ir::element_bytes(op.results[1].dtype)
                      : 0;
}

/// Sums of g and of g · x for each sample and channel; of a narrow x, the weight and what becomes
/// of the gradients of weight and bias in the wide type.
Bytes workspace_group_norm_backward(const OpView& op) {
  const ir::TensorType& x = op.inputs[1];
  const Bytes wide = ir::element_bytes(op.inputs[2].dtype);
  const std::int64_t channels = x.shape[1] * x.shape[2];
  const Bytes sums = 2 * x.shape[0] * channels * wide;
  const auto gradients = static_cast<std::int64_t>(op.results.size() - 1);
  return sums +
         (is_narrow(x) ? channels * (wide + gradients * (wide - ir::element_bytes(x.dtype))) : 0);
}

void gradient_group_norm(GradientBuilder& b) {
  b.refuse_output_gradient(1, "the gradient of group_norm's mean");
  b.refuse_output_gradient(2, "the gradient of group_norm's rstd");
  if (!b.output_gradient(0).valid()) {
    return;
  }
  std::vector<ir::ValueId> operands{b.output_gradient(0), b.input(0), b.output(1), b.output(2)};
  if (affine_of(b.attributes()).weight) {
    operands.push_back(b.input(1));
  }
  const std::vector<ir::ValueId> gradients =
      b.emit_all("group_norm_backward", std::move(operands), b.attributes());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    b.set_input_gradient(i, gradients[i]);
  }
}

std::vector<OpDef> statistics_ops() {
  return {
      {.name = "batch_moments",
       .summary = "count, sum and sum of squares of each channel",
       .infer = infer_batch_moments,
       .axes = axes_batch_moments,
       .flops = flops_batch_moments,
       .workspace = workspace_batch_moments},
      {.name = "batch_statistics",
       .summary = "mean and variance of each channel from its moments",
       .infer = infer_batch_statistics,
       .axes = axes_batch_statistics,
       .flops = result_elements,
       .workspace = workspace_batch_statistics},
      {.name = "batch_running",
       .summary = "running mean and variance moved towards those of the moments",
       .infer = infer_batch_running,
       .axes = axes_batch_running,
       .flops = result_elements,
       .workspace = workspace_batch_running,
       .stops_gradient = true},
  };
}

}  // namespace

std::vector<OpDef> batch_norm_ops() {
  std::vector<OpDef> table = statistics_ops();
  table.insert(table.end(),
               {{.name = "batch_norm",
                 .summary = "channels to given mean and variance, then weight and bias",
                 .infer = infer_batch_norm,
                 .axes = axes_batch_norm,
                 .flops = flops_batch_norm,
                 .workspace = workspace_batch_norm,
                 .gradient = gradient_batch_norm},
                {.name = "batch_norm_sums",
                 .summary = "count, Σ g and Σ g · normalised x of each channel",
                 .infer = infer_batch_norm_sums,
                 .axes = axes_batch_norm_sums,
                 .flops = flops_batch_norm_sums,
                 .workspace = workspace_batch_norm_sums},
                {.name = "batch_norm_backward",
                 .summary = "gradient of x where mean and variance are its own",
                 .infer = infer_batch_norm_backward,
                 .axes = axes_batch_norm_backward,
                 .flops = flops_batch_norm_sums,
                 .workspace = workspace_batch_norm_backward},
                {.name = "group_norm",
                 .summary = "each group of channels to mean 0 and variance 1, then weight and bias",
                 .infer = infer_group_norm,
                 .axes = axes_group_norm,
                 .flops = flops_group_norm,
                 .workspace = workspace_group_norm,
                 .gradient = gradient_group_norm},
                {.name = "group_norm_backward",
                 .summary = "gradients of group_norm's operands",
                 .infer = infer_group_norm_backward,
                 .axes = axes_group_norm_backward,
                 .flops = flops_group_norm_backward,
                 .workspace = workspace_group_norm_backward}});
  return table;
}

}  // namespace shardplan::ops
