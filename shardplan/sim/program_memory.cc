#include "shardplan/sim/program_memory.h"

#include <algorithm>

namespace shardplan::sim {

using lower::LocalId;
using lower::Step;
using lower::StepKind;
using sharding::CollectiveKind;

ops::Types types_of(const lower::Program& program, const std::vector<LocalId>& ids) {
  ops::Types out;
  out.reserve(ids.size());
  for (const LocalId id : ids) {
    out.push_back(program.value(id).type);
  }
  return out;
}

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
  find_last_uses();
}

void ProgramMemory::find_last_uses() {
  std::vector<const Step*> last(program_.values.size(), nullptr);  // by root
  for (const std::vector<Step>* steps : {&program_.microbatch, &program_.update}) {
    for (const Step& step : *steps) {
      for (const auto* ids : {&step.inputs, &step.outputs}) {
        for (const LocalId id : *ids) {
          last[program_.root(id).index()] = &step;
        }
      }
    }
  }
  const auto ends = [&](LocalId root) {
    if (const Step* const use = last[root.index()]; use != nullptr && !resident_[root.index()]) {
      ended_after_[use].push_back(root);
    }
  };
  for (const lower::Resident& gradient : program_.kept_gradients) {
    ends(program_.root(gradient.local));
  }
  for (const std::vector<Step>* steps : {&program_.microbatch, &program_.update}) {
    for (const Step& step : *steps) {
      if (step.kind == StepKind::kWrite) {
        ends(program_.root(step.inputs[0]));
      }
    }
  }
}

void ProgramMemory::run(const Step& step) {
  execute(step);
  const auto ended = ended_after_.find(&step);
  if (ended != ended_after_.end()) {
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
  storage_[target.index()] = storage_[value.index()];
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
