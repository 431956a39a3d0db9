#include "shardplan/training/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardplan/ops/op.h"

namespace shardplan::training {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

Placement::Placement(const ir::Graph& step, const std::vector<int>& forward_stage)
    : step_(step),
      forward_stage_(forward_stage),
      stage_(step.ops().size(), kAnywhere),
      owner_(step.values().size(), kNobody),
      written_(step.values().size(), false) {
  for (const ir::Write& write : step.writes) {
    written_[write.target.index()] = true;
  }
}

Status Placement::run() {
  place_forward();
  find_owners();
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    const ir::Op& op = step_.ops()[i];
    if (op.phase == Phase::kBackward) {
      stage_[i] = backward_stage(op);
    } else if (op.phase == Phase::kUpdate) {
      stage_[i] = update_stage(op);
    }
  }
  for (const ir::Write& write : step_.writes) {
    if (owner_[write.target.index()] == kNobody) {
      owner_[write.target.index()] = stage_of_value(write.value);
    }
  }
  return check_order();
}

int Placement::stage_of_value(ValueId value) const {
  const OpId producer = step_.value(value).producer;
  return producer.valid() ? stage_[producer.index()] : kAnywhere;
}

/// Whether every stage can compute it on its own: no weight and nothing that a step changes.
bool Placement::is_anywhere(const ir::Op& op) const {
  return std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
    switch (step_.value(input).kind) {
      case ValueKind::kInput:
      case ValueKind::kConstant:
        return true;
      case ValueKind::kBuffer:
        return !written_[input.index()];
      case ValueKind::kOpResult:
        return stage_of_value(input) == kAnywhere;
      case ValueKind::kParameter:
      case ValueKind::kState:
      case ValueKind::kAccumulator:
        return false;
    }
    return false;
  });
}

void Placement::place_forward() {
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    const ir::Op& op = step_.ops()[i];
    if (op.phase == Phase::kForward && !is_anywhere(op)) {
      stage_[i] = forward_stage_[i];
    }
  }
}

/// A parameter belongs to the first stage that reads it (one that nobody reads: to the first).
/// Its gradient's accumulator and its states follow.
void Placement::find_owners() {
  for (std::size_t i = 0; i < step_.values().size(); ++i) {
    if (step_.values()[i].kind == ValueKind::kParameter) {
      owner_[i] = std::numeric_limits<int>::max();
    }
  }
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    for (const ValueId input : step_.ops()[i].inputs) {
      int& owner = owner_[input.index()];
      if (step_.ops()[i].phase == Phase::kForward && owner >= 0) {
        owner = std::min(owner, stage_[i]);
      }
    }
  }
  for (int& owner : owner_) {
    owner = owner == std::numeric_limits<int>::max() ? 0 : owner;
  }
  for (std::size_t i = 0; i < step_.values().size(); ++i) {
    const ValueId from = step_.values()[i].init_from;
    if (from.valid()) {
      owner_[i] = owner_[from.index()];
    }
  }
  for (const ir::Write& gradient : step_.gradients) {
    if (step_.value(gradient.target).kind == ValueKind::kParameter) {
      gradient_of_[gradient.value] = gradient.target;
    }
  }
}

int Placement::first_stage_of_inputs(const ir::Op& op) const {
  int first = std::numeric_limits<int>::max();
  for (const ValueId input : op.inputs) {
    const int stage = stage_of_value(input);
    first = stage == kAnywhere ? first : std::min(first, stage);
  }
  return first == std::numeric_limits<int>::max() ? kAnywhere : first;
}

int Placement::backward_stage(const ir::Op& op) const {
  for (const ValueId output : op.outputs) {
    const auto parameter = gradient_of_.find(output);
    if (parameter != gradient_of_.end() && op.name == "accumulate") {
      return owner_[parameter->second.index()];
    }
  }
  if (op.source.valid() && stage_[op.source.index()] != kAnywhere) {
    return stage_[op.source.index()];
  }
  return first_stage_of_inputs(op);
}

int Placement::update_stage(const ir::Op& op) const {
  for (const ValueId input : op.inputs) {
    if (owner_[input.index()] >= 0) {
      return owner_[input.index()];
    }
  }
  return first_stage_of_inputs(op);
}

Status Placement::check_order() const {
  for (std::size_t i = 0; i < step_.ops().size(); ++i) {
    const ir::Op& op = step_.ops()[i];
    for (const ValueId input : op.inputs) {
      if (op.phase == Phase::kForward && stage_[i] >= 0 && stage_of_value(input) > stage_[i]) {
        return invalid_input(
            fmt::format(
                "is in stage {} and reads a value of stage {}", stage_[i], stage_of_value(input)),
            ops::describe(op));
      }
    }
  }
  return {};
}

}  // namespace shardplan::training
