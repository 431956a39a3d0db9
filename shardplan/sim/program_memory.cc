#include "shardplan/sim/program_memory.h"

#include <algorithm>

namespace shardplan::sim {

using lower::LocalId;
using lower::Step;
using lower::StepKind;
using sharding::CollectiveKind;

ProgramMemory::ProgramMemory(const lower::Program& program,
                             const ir::Graph& step,
                             MemoryMeter& meter)
    : program_(program),
      meter_(meter),
      classes_(memory_classes(step)),
      resident_(program.values.size(), false),
      storage_(program.values.size()) {
  for (const lower::Resident& resident : program.residents) {
    resident_[resident.local.index()] = true;
    storage_[resident.local.index()] = std::make_shared<Charge>(
        meter_, classes_[resident.global.index()], program.value(resident.local).type.bytes());
  }
  find_gradient_ends();
}

void ProgramMemory::find_gradient_ends() {
  for (const lower::Resident& gradient : program_.kept_gradients) {
    const LocalId root = program_.root(gradient.local);
    const auto touches = [&](LocalId id) { return program_.root(id) == root; };
    const Step* last = nullptr;
    for (const std::vector<Step>* steps : {&program_.microbatch, &program_.update}) {
      for (const Step& step : *steps) {
        const bool here = std::any_of(step.inputs.begin(), step.inputs.end(), touches) ||
                          std::any_of(step.outputs.begin(), step.outputs.end(), touches);
        last = here ? &step : last;
      }
    }
    if (last != nullptr && !resident_[root.index()]) {
      handed_over_[last].push_back(root);
    }
  }
}

void ProgramMemory::run(const Step& step) {
  execute(step);
  const auto ended = handed_over_.find(&step);
  if (ended != handed_over_.end()) {
    std::for_each(ended->second.begin(), ended->second.end(), [&](LocalId root) { drop(root); });
  }
}

void ProgramMemory::execute(const Step& step) {
  if (step.kind == StepKind::kFree) {
    drop(step.inputs[0]);
    return;
  }
  if (step.kind == StepKind::kWait) {
    finish(step.inputs[0]);
    return;
  }
  if (step.kind == StepKind::kWrite) {
    write(program_.root(step.outputs[0]), program_.root(step.inputs[0]));
    return;
  }
  for (const LocalId output : step.outputs) {
    if (!program_.value(output).view_of.valid()) {
      allocate(output, step);
    }
  }
  if (step.kind == StepKind::kCompute || step.collective.kind == CollectiveKind::kSlice) {
    meter_.touch(MemoryClass::kTemporary, step.workspace);
    return;
  }
  in_flight_.push_back({step.outputs[0], step.workspace});
  reserve();
  if (!step.aside) {
    finish(step.outputs[0]);
  }
}

/// One workspace serves all collectives that have not been waited for.
void ProgramMemory::reserve() {
  Bytes most = 0;
  for (const InFlight& collective : in_flight_) {
    most = std::max(most, collective.workspace);
  }
  if (most > reserved_) {
    meter_.add(MemoryClass::kTemporary, most - reserved_);
  } else {
    meter_.remove(MemoryClass::kTemporary, reserved_ - most);
  }
  reserved_ = most;
}

void ProgramMemory::finish(LocalId made) {
  std::erase_if(in_flight_, [&](const InFlight& collective) { return collective.made == made; });
  reserve();
}

/// A value of an earlier microbatch that is still there (the loss) goes when it is made again.
void ProgramMemory::allocate(LocalId id, const Step& step) {
  drop(id);
  const lower::LocalValue& value = program_.value(id);
  MemoryClass what = classes_[value.global.index()];
  if (step.kind == StepKind::kCollective && what != MemoryClass::kGradients &&
      what != MemoryClass::kActivations) {
    what = MemoryClass::kTemporary;
  }
  storage_[id.index()] = std::make_shared<Charge>(meter_, what, value.type.bytes());
}

void ProgramMemory::write(LocalId target, LocalId value) {
  if (target == value) {
    return;
  }
  drop(target);
  storage_[target.index()] = std::move(storage_[value.index()]);
  storage_[target.index()]->turn_into(classes_[program_.value(target).global.index()]);
}

void ProgramMemory::keep(std::int64_t microbatch) {
  std::vector<std::shared_ptr<Charge>>& kept = kept_[microbatch];
  kept.resize(storage_.size());
  for (std::size_t i = 0; i < storage_.size(); ++i) {
    if (!resident_[i]) {
      kept[i] = std::move(storage_[i]);
    }
  }
}

void ProgramMemory::bring_back(std::int64_t microbatch) {
  std::vector<std::shared_ptr<Charge>>& kept = kept_.at(microbatch);
  for (std::size_t i = 0; i < storage_.size(); ++i) {
    if (!resident_[i]) {
      storage_[i] = std::move(kept[i]);
    }
  }
  kept_.erase(microbatch);
}

}  // namespace shardplan::sim
