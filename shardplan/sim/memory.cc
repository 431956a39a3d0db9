#include "shardplan/sim/memory.h"

#include "shardplan/ops/op.h"

namespace shardplan::sim {
namespace {

MemoryClass class_of(const ir::Graph& step, const ir::Value& value) {
  switch (value.kind) {
    case ir::ValueKind::kParameter:
      return MemoryClass::kParameters;
    case ir::ValueKind::kState:
      return MemoryClass::kOptimizer;
    case ir::ValueKind::kAccumulator:
      return MemoryClass::kGradients;
    case ir::ValueKind::kInput:
    case ir::ValueKind::kBuffer:
    case ir::ValueKind::kConstant:
      return MemoryClass::kInputs;
    case ir::ValueKind::kOpResult:
      break;
  }
  return step.op(value.producer).phase == ir::Phase::kForward ? MemoryClass::kActivations
                                                              : MemoryClass::kTemporary;
}

bool reads_accumulator(const ir::Graph& step, const ir::Op& op) {
  for (const ir::ValueId input : op.inputs) {
    if (step.value(input).kind == ir::ValueKind::kAccumulator) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<MemoryClass> memory_classes(const ir::Graph& step) {
  std::vector<MemoryClass> classes;
  classes.reserve(step.values().size());
  for (const ir::Value& value : step.values()) {
    classes.push_back(class_of(step, value));
  }
  const auto mark = [&](ir::ValueId value) {
    const ir::OpId producer = step.value(value).producer;
    if (producer.valid() && step.op(producer).phase == ir::Phase::kBackward) {
      classes[value.index()] = MemoryClass::kGradients;
    }
  };
  for (const ir::Write& gradient : step.gradients) {
    if (step.value(gradient.target).kind == ir::ValueKind::kParameter) {
      mark(gradient.value);
    }
  }
  // Backwards, so that a chain of views is followed to its storage.
  for (std::size_t i = step.ops().size(); i-- > 0;) {
    const ir::Op& op = step.ops()[i];
    if (op.phase == ir::Phase::kForward) {
      break;
    }
    if (op.phase == ir::Phase::kUpdate || reads_accumulator(step, op)) {
      for (const ir::ValueId input : op.inputs) {
        mark(input);
      }
    }
    if (ops::get(op.name).view && classes[op.outputs[0].index()] == MemoryClass::kGradients) {
      mark(op.inputs[0]);
    }
  }
  return classes;
}

MemoryBreakdown MemoryMeter::at_peak() const {
  const auto bytes = [&](MemoryClass c) { return at_peak_[static_cast<std::size_t>(c)]; };
  MemoryBreakdown out;
  out.parameters = bytes(MemoryClass::kParameters);
  out.gradients = bytes(MemoryClass::kGradients);
  out.optimizer = bytes(MemoryClass::kOptimizer);
  out.activations = bytes(MemoryClass::kActivations);
  out.inputs = bytes(MemoryClass::kInputs);
  out.temporary = bytes(MemoryClass::kTemporary);
  return out;
}

}  // namespace shardplan::sim
