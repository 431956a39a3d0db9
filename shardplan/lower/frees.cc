#include "shardplan/lower/frees.h"

#include <array>
#include <limits>
#include <utility>

namespace shardplan::lower {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

std::vector<Step> with_frees(std::vector<Step> steps,
                             const std::vector<std::vector<LocalId>>& keeps,
                             std::size_t first,
                             const Program& program,
                             const std::vector<std::size_t>& last_use) {
  std::vector<Step> out;
  out.reserve(steps.size() * 2);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    std::vector<LocalId> ends;
    const std::array<const std::vector<LocalId>*, 3> used{&step.inputs, &step.outputs, &keeps[i]};
    for (const std::vector<LocalId>* ids : used) {
      for (const LocalId id : *ids) {
        const LocalId root = program.root(id);
        if (last_use[root.index()] == first + i) {
          ends.push_back(root);
        }
      }
    }
    const ir::OpId op = step.op;
    const ir::Phase phase = step.phase;
    out.push_back(std::move(step));
    for (std::size_t e = 0; e < ends.size(); ++e) {
      bool seen = false;
      for (std::size_t before = 0; before < e; ++before) {
        seen = seen || ends[before] == ends[e];
      }
      if (!seen) {
        Step free;
        free.kind = StepKind::kFree;
        free.inputs = {ends[e]};
        free.op = op;
        free.phase = phase;
        out.push_back(std::move(free));
      }
    }
  }
  return out;
}

}  // namespace

void insert_frees(Program& program, const Keeps& keeps) {
  std::vector<std::size_t> last_use(program.values.size(), 0);
  std::size_t index = 0;
  const auto use = [&](const std::vector<Step>& steps,
                       const std::vector<std::vector<LocalId>>& kept) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const auto* ids : {&steps[i].inputs, &steps[i].outputs, &kept[i]}) {
        for (const LocalId id : *ids) {
          last_use[program.root(id).index()] = index;
        }
      }
      ++index;
    }
  };
  use(program.microbatch, keeps.microbatch);
  use(program.update, keeps.update);
  for (const Resident& resident : program.residents) {
    last_use[program.root(resident.local).index()] = kNever;
  }
  for (const Resident& gradient : program.kept_gradients) {
    last_use[program.root(gradient.local).index()] = kNever;
  }
  if (program.loss.valid()) {
    last_use[program.root(program.loss).index()] = kNever;
  }
  for (const std::vector<Step>* steps : {&program.microbatch, &program.update}) {
    for (const Step& step : *steps) {
      if (step.kind == StepKind::kWrite) {
        last_use[program.root(step.inputs[0]).index()] = kNever;
      }
    }
  }
  const std::size_t first = program.microbatch.size();
  program.microbatch =
      with_frees(std::move(program.microbatch), keeps.microbatch, 0, program, last_use);
  program.update = with_frees(std::move(program.update), keeps.update, first, program, last_use);
}

}  // namespace shardplan::lower
