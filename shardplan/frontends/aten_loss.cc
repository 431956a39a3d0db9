// Losses.

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// torch's numbers: 0 none, 1 mean, 2 sum.
Reduction reduction_of(AtenCall& c) {
  const std::int64_t number = c.integer("reduction", 1);
  return number == 0 ? Reduction::kNone : number == 2 ? Reduction::kSum : Reduction::kMean;
}

ValueId reduced(AtenCall& c, ValueId x) {
  return frontends::reduced(c.builder(), x, reduction_of(c));
}

/// What `x` was reshaped from when that keeps its last dimension and only merged the others, so
/// that batch and sequence stay dimensions of their own; else `x`.
ValueId unflattened(AtenCall& c, ValueId x) {
  const ir::Graph& graph = c.builder().graph();
  const ir::Value& value = graph.value(x);
  if (!value.producer.valid() || graph.op(value.producer).name != "reshape") {
    return x;
  }
  const ValueId source = graph.op(value.producer).inputs[0];
  const Shape& shape = graph.type(source).shape;
  const bool merges =
      value.type.shape.size() == 2 && shape.size() > 2 && shape.back() == value.type.shape.back();
  return merges ? source : x;
}

void finish_cross_entropy(AtenCall& c, ValueId logits, double smoothing) {
  if (c.given("weight")) {
    c.unsupported("with weights of classes is not supported");
    return;
  }
  ValueId target = c.tensor("target");
  if (!c.ok() || ir::is_floating(c.builder().type(target).dtype)) {
    c.unsupported("with class probabilities as target is not supported, only with class indices");
    return;
  }
  logits = unflattened(c, classes_last(c.builder(), logits));
  Shape rows = c.builder().type(logits).shape;
  if (!c.ok() || rows.empty()) {
    c.invalid("its logits have no classes");
    return;
  }
  rows.pop_back();
  target = c.reshape(target, rows);
  const ValueId loss = cross_entropy(c.builder(),
                                     logits,
                                     target,
                                     {.ignore_index = c.integer("ignore_index", -100),
                                      .reduction = reduction_of(c),
                                      .label_smoothing = smoothing});
  const TensorType type = c.result_type();
  c.result(c.cast(c.reshape(loss, type.shape), type.dtype));
}

void map_cross_entropy(AtenCall& c) {
  finish_cross_entropy(c, c.tensor("self"), c.real("label_smoothing", 0.0));
}

/// nll_loss of a log_softmax over the classes; of anything else its gradient would be another.
void map_nll_loss(AtenCall& c) {
  const ValueId x = c.tensor("self");
  if (!c.ok()) {
    return;
  }
  const auto known = c.state().log_softmax_operand.find(x);
  if (known == c.state().log_softmax_operand.end() || c.builder().type(x).rank() > 2) {
    c.unsupported("is supported only on the result of log_softmax over the last dimension");
    return;
  }
  finish_cross_entropy(c, known->second, 0.0);
}

void map_mse(AtenCall& c) {
  const ir::DType dtype = c.result_type().dtype;
  const ValueId difference =
      c.builder().emit("sub", {c.tensor_as("self", dtype), c.tensor_as("target", dtype)});
  c.result(reduced(c, c.builder().emit("mul", {difference, difference})));
}

void map_l1(AtenCall& c) {
  const ir::DType dtype = c.result_type().dtype;
  const ValueId difference =
      c.builder().emit("sub", {c.tensor_as("self", dtype), c.tensor_as("target", dtype)});
  c.result(reduced(c, c.builder().emit("abs", {difference})));
}

void map_binary_cross_entropy(AtenCall& c) {
  if (c.given("weight") || c.given("pos_weight")) {
    c.unsupported("with weights is not supported");
    return;
  }
  const ValueId x = c.tensor("self");
  const ValueId target = c.tensor_as("target", c.result_type().dtype);
  c.result(reduced(c, binary_cross_entropy_with_logits(c.builder(), x, target)));
}

}  // namespace

std::vector<AtenOp> aten_loss() {
  return {{"aten.cross_entropy_loss.default", map_cross_entropy},
          {"aten.nll_loss_nd.default", map_nll_loss},
          {"aten.nll_loss.default", map_nll_loss},
          {"aten.mse_loss.default", map_mse},
          {"aten.l1_loss.default", map_l1},
          {"aten.binary_cross_entropy_with_logits.default", map_binary_cross_entropy}};
}

}  // namespace shardplan::frontends
