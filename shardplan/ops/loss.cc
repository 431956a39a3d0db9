// The pieces of softmax cross-entropy over classes that may be sharded: with m = max(logits),
// lse = log(sum_exp(logits, m)) + m, the log-probability of a label is logits[label] - lse. Sums
// are kept in f32 (f64 for f64) whatever the type of the logits. Classes are the last dimension.

#include <algorithm>
#include <cstdint>
#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

Status check_rows(Inputs inputs, std::size_t logits) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, logits));
  if (inputs[logits].rank() < 1) {
    return invalid_input("operand " + std::to_string(logits) + " is a scalar, its last dimension " +
                         "should be the classes");
  }
  return {};
}

/// The type of one number a row of `logits`.
ir::TensorType row_type(const ir::TensorType& logits) {
  return ir::TensorType{accumulation_dtype(logits.dtype),
                        ir::Shape(logits.shape.begin(), logits.shape.end() - 1)};
}

/// x, m → Σ exp(x - m).
Result<Types> infer_sum_exp(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_rows(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, 1, row_type(inputs[0]).shape, "the maximum"));
  return Types{row_type(inputs[0])};
}

/// Sums over a shard of the classes are partial sums: the maximum is whole.
AxisMap axes_sum_exp(const OpView& op) {
  const std::string rows = axis_names("n", op.results[0].shape.size());
  return make_axis_map(rows + " v, " + rows + " -> " + rows, op.inputs, op.results);
}

/// Difference, exponential, sum.
Flops flops_sum_exp(const OpView& op) {
  return 3 * static_cast<Flops>(op.inputs[0].numel());
}

/// Checks logits, target, lse at `first`, first + 1, first + 2.
Status check_label_operands(Inputs inputs, std::size_t first) {
  SHARDPLAN_RETURN_IF_ERROR(check_rows(inputs, first));
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, first + 1));
  const ir::TensorType row = row_type(inputs[first]);
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, first + 1, row.shape, "the target"));
  return check_type(inputs, first + 2, row, "lse");
}

Result<Types> infer_label_score(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3));
  SHARDPLAN_RETURN_IF_ERROR(
      check_attributes(attributes, {{"ignore_index", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_label_operands(inputs, 0));
  return Types{inputs[2]};
}

/// For each row its label in the shard's classes (i64) and two booleans, or one and a narrow score.
Bytes workspace_label_score(const OpView& op) {
  constexpr Bytes kLabelBytes = 9;
  const Bytes score = op.inputs[0].dtype == op.results[0].dtype
                          ? 1
                          : std::max<Bytes>(1, ir::element_bytes(op.inputs[0].dtype));
  return op.results[0].numel() * (kLabelBytes + score);
}

/// The shard that holds the label gives its score, the others zero: a partial sum.
AxisMap axes_label_score(const OpView& op) {
  const std::string rows = axis_names("n", op.results[0].shape.size());
  return make_axis_map(rows + " ?v, " + rows + ", " + rows + " -> " + rows, op.inputs, op.results);
}

/// The whole gradient goes to the logits: lse is the logsumexp of these very logits.
void gradient_label_score(GradientBuilder& b) {
  if (b.needed(0)) {
    b.set_input_gradient(0,
                         b.emit("label_score_backward",
                                {b.output_gradient(0), b.input(0), b.input(1), b.input(2)},
                                b.attributes()));
  }
}

/// g, logits, target, lse → dlogits.
Result<Types> infer_label_score_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 4));
  SHARDPLAN_RETURN_IF_ERROR(
      check_attributes(attributes, {{"ignore_index", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_label_operands(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, row_type(inputs[1]), "the gradient"));
  return Types{inputs[1]};
}

AxisMap axes_label_score_backward(const OpView& op) {
  const std::string rows = axis_names("n", op.inputs[0].shape.size());
  return make_axis_map(rows + ", " + rows + " @v, " + rows + ", " + rows + " -> " + rows + " v",
                       op.inputs,
                       op.results,
                       {{{0}, {0}}});
}

/// For each row its label in the shard's classes (i64) and a boolean.
Bytes workspace_label_score_backward(const OpView& op) {
  constexpr Bytes kKeptLabelBytes = 9;
  return op.inputs[0].numel() * kKeptLabelBytes;
}

/// Difference, exponential, one-hot, product.
Flops flops_label_score_backward(const OpView& op) {
  return 4 * result_elements(op);
}

}  // namespace

std::vector<OpDef> loss_ops() {
  return {
      {.name = "sum_exp",
       .summary = "sum of e^(x - m) over the last dimension",
       .infer = infer_sum_exp,
       .axes = axes_sum_exp,
       .flops = flops_sum_exp},
      {.name = "label_score",
       .summary = "logits[target] - lse, 0 where target is ignore_index",
       .infer = infer_label_score,
       .axes = axes_label_score,
       .flops = result_elements,
       .workspace = workspace_label_score,
       .gradient = gradient_label_score},
      {.name = "label_score_backward",
       .summary = "g · (onehot(target) - e^(logits - lse))",
       .infer = infer_label_score_backward,
       .axes = axes_label_score_backward,
       .flops = flops_label_score_backward,
       .workspace = workspace_label_score_backward},
  };
}

}  // namespace shardplan::ops
