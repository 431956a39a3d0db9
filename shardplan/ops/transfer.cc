// The two ends of a message between pipeline stages. training/stages.h puts them into the graphs of
// stages; the link between two ends, whose layouts may differ, is lower/pipeline.h's.

#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

Result<Types> infer_send(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"message", AttributeKind::kInteger}, {"to", AttributeKind::kInteger}}));
  return Types{};
}

/// Any part may be sent from where it is; a partial sum may not.
AxisMap axes_send(const OpView& op) {
  AxisMap map = elementwise_axis_map(op.inputs, op.inputs);
  map.results.clear();
  return map;
}

Result<Types> infer_receive(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"message", AttributeKind::kInteger},
                                              {"from", AttributeKind::kInteger},
                                              {"shape", AttributeKind::kInts},
                                              {"dtype", AttributeKind::kText}}));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::DType dtype, named_dtype(attributes));
  const Types result{ir::TensorType{dtype, attributes.ints("shape")}};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result[0]));
  return result;
}

AxisMap axes_receive(const OpView& op) {
  return elementwise_axis_map(op.inputs, op.results);
}

}  // namespace

std::vector<OpDef> transfer_ops() {
  return {{.name = "receive",
           .summary = "what another pipeline stage sends as `message`",
           .infer = infer_receive,
           .axes = axes_receive},
          {.name = "send",
           .summary = "hands the operand to another pipeline stage as `message`",
           .infer = infer_send,
           .axes = axes_send}};
}

}  // namespace shardplan::ops
