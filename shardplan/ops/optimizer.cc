// Accumulation of gradients, clipping and the updates of parameters: elementwise over tensors of
// the parameter's shape, with scalars beside them. They overwrite their operands.

#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

/// The gradient may be narrower than what it is added to: bf16 gradients, f32 sums.
Status check_gradient(Inputs inputs) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, 1, inputs[0].shape, "the gradient"));
  if (ir::element_bytes(inputs[1].dtype) > ir::element_bytes(inputs[0].dtype)) {
    return invalid_input("the gradient is " + ir::to_string(inputs[1]) + ", wider than " +
                         ir::to_string(inputs[0]));
  }
  return {};
}

Status check_scalar(Inputs inputs, std::size_t i, std::string_view what) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
  return check_shape(inputs, i, {}, what);
}

// accumulate --------------------------------------------------------------------------------------

Result<Types> infer_accumulate(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_gradient(inputs));
  return Types{inputs[0]};
}

/// Partial sums may be accumulated and reduced once, after the last microbatch.
AxisMap axes_accumulate(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results, {{{0, 1}, {0}}});
}

// clip_scale --------------------------------------------------------------------------------------

Result<Types> infer_clip_scale(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"max_norm", AttributeKind::kNumber}}));
  SHARDPLAN_RETURN_IF_ERROR(check_scalar(inputs, 0, "the sum of squares"));
  return Types{inputs[0]};
}

AxisMap axes_elementwise(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results);
}

// sgd_update --------------------------------------------------------------------------------------

/// p, g, [momentum], step, [clip] → p', [momentum'].
Result<Types> infer_sgd_update(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"lr", AttributeKind::kNumber},
                                              {"momentum", AttributeKind::kNumber},
                                              {"dampening", AttributeKind::kNumber},
                                              {"weight_decay", AttributeKind::kNumber},
                                              {"nesterov", AttributeKind::kFlag},
                                              {"has_momentum", AttributeKind::kFlag},
                                              {"clip", AttributeKind::kFlag, false}}));
  const bool momentum = attributes.flag_or("has_momentum", false);
  const bool clip = attributes.flag_or("clip", false);
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3 + (momentum ? 1U : 0U) + (clip ? 1U : 0U)));
  SHARDPLAN_RETURN_IF_ERROR(check_gradient(inputs));
  if (momentum) {
    const ir::TensorType type{accumulation_dtype(inputs[0].dtype), inputs[0].shape};
    SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, type, "the momentum"));
  }
  for (std::size_t i = momentum ? 3 : 2; i < inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(check_scalar(inputs, i, "step or clip"));
  }
  return momentum ? Types{inputs[0], inputs[2]} : Types{inputs[0]};
}

Flops flops_sgd_update(const OpView& op) {
  return 3 * result_elements(op);
}

// adam_update -------------------------------------------------------------------------------------

/// p, g, m, v, step, [clip] → p', m', v'.
Result<Types> infer_adam_update(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"lr", AttributeKind::kNumber},
                                              {"beta1", AttributeKind::kNumber},
                                              {"beta2", AttributeKind::kNumber},
                                              {"eps", AttributeKind::kNumber},
                                              {"weight_decay", AttributeKind::kNumber},
                                              {"decoupled", AttributeKind::kFlag},
                                              {"clip", AttributeKind::kFlag, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, attributes.flag_or("clip", false) ? 6 : 5));
  SHARDPLAN_RETURN_IF_ERROR(check_gradient(inputs));
  const ir::TensorType moment{accumulation_dtype(inputs[0].dtype), inputs[0].shape};
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 2, moment, "the first moment"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 3, moment, "the second moment"));
  for (std::size_t i = 4; i < inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(check_scalar(inputs, i, "step or clip"));
  }
  return Types{inputs[0], inputs[2], inputs[3]};
}

/// Two moments (3 each), bias corrections, root, quotient, step, decay: about 14 an element.
Flops flops_adam_update(const OpView& op) {
  return 14 * static_cast<Flops>(op.inputs[0].numel());
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {
      {.name = "accumulate",
       .summary = "acc + g, in place",
       .infer = infer_accumulate,
       .axes = axes_accumulate,
       .flops = result_elements,
       .in_place = {0}},
      {.name = "clip_scale",
       .summary = "min(1, max_norm / (sqrt(x) + 1e-6))",
       .infer = infer_clip_scale,
       .axes = axes_elementwise},
      {.name = "sgd_update",
       .summary = "stochastic gradient descent with momentum, in place",
       .infer = infer_sgd_update,
       .axes = axes_elementwise,
       .flops = flops_sgd_update,
       .in_place = {0, 2}},
      {.name = "adam_update",
       .summary = "Adam or AdamW, in place",
       .infer = infer_adam_update,
       .axes = axes_elementwise,
       .flops = flops_adam_update,
       .in_place = {0, 2, 3}},
  };
}

}  // namespace shardplan::ops
