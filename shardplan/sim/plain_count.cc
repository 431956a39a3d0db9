#include "shardplan/sim/plain_count.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::sim {
namespace {

using lower::LocalId;
using lower::Program;
using lower::Step;
using lower::StepKind;

cost::Kernel kernel_of(const Program& program, const ir::Graph& graph, const Step& step) {
  ops::Types inputs;
  for (const LocalId input : step.inputs) {
    inputs.push_back(program.value(input).type);
  }
  ops::Types results;
  for (const LocalId output : step.outputs) {
    results.push_back(program.value(output).type);
  }
  const ops::OpDef& op = ops::get(graph.op(step.op).name);
  return cost::kernel_of(op, inputs, results, step.flops, step.bytes);
}

Error broken(LocalId id, const std::string& what) {
  return {ErrorCode::kNotEqual, "value %" + std::to_string(id.value) + " " + what, "program", {}};
}

}  // namespace

PlainSeconds plain_seconds(const Program& program,
                           const ir::Graph& step,
                           const cost::CostModel& cost,
                           const std::vector<Step>& steps,
                           std::size_t begin,
                           std::size_t end) {
  PlainSeconds out;
  for (std::size_t i = begin; i < end; ++i) {
    const Step& s = steps[i];
    if (s.kind == StepKind::kCollective) {
      const Seconds seconds =
          cost.reshard_step(s.collective, step.type(program.value(s.inputs[0]).global));
      const bool alone = s.collective.kind == sharding::CollectiveKind::kSlice;
      out.all += seconds;
      out.kernels += alone ? seconds : 0;
    } else if (s.kind == StepKind::kCompute && !ops::get(step.op(s.op).name).view) {
      const Seconds seconds = cost.kernel(kernel_of(program, step, s));
      out.all += seconds;
      out.kernels += seconds;
    }
  }
  return out;
}

PlainStorages::PlainStorages(const Program& program, Bytes& sum) : program_(program), sum_(sum) {
  for (const lower::Resident& resident : program.residents) {
    there_[resident.local] =
        std::make_shared<PlainStorage>(sum_, program.value(resident.local).type.bytes());
  }
  for (const std::vector<Step>* const steps : {&program.microbatch, &program.update}) {
    for (const Step& step : *steps) {
      if (step.kind == StepKind::kWrite && there_.count(program.root(step.inputs[0])) == 0) {
        last_read_[program.root(step.inputs[0])] = &step;
      }
    }
  }
  for (const std::vector<Step>* const steps : {&program.microbatch, &program.update}) {
    for (const Step& step : *steps) {
      for (const LocalId input : step.inputs) {
        if (const auto last = last_read_.find(program.root(input)); last != last_read_.end()) {
          last->second = &step;
        }
      }
    }
  }
}

Bytes PlainStorages::workspace_at(const Step& step) {
  const bool communicates = step.kind == StepKind::kCollective &&
                            step.collective.kind != sharding::CollectiveKind::kSlice;
  Bytes shared = communicates ? step.workspace : 0;
  for (const auto& [made, bytes] : in_flight_) {
    shared = std::max(shared, bytes);
  }
  if (step.kind == StepKind::kCollective && step.aside) {
    in_flight_[step.outputs[0]] = step.workspace;
  }
  return shared + (communicates ? 0 : step.workspace);
}

Status PlainStorages::run(const Step& step) {
  SHARDPLAN_RETURN_IF_ERROR(execute(step));
  for (const LocalId input : step.inputs) {
    const LocalId root = program_.root(input);
    const auto last = last_read_.find(root);
    if (last != last_read_.end() && last->second == &step) {
      there_.erase(root);
    }
  }
  return {};
}

Status PlainStorages::execute(const Step& step) {
  for (const LocalId input : step.inputs) {
    if (there_.count(program_.root(input)) == 0) {
      return broken(input, "is used where it is not there");
    }
  }
  switch (step.kind) {
    case StepKind::kCompute:
    case StepKind::kCollective:
      for (const LocalId output : step.outputs) {
        SHARDPLAN_RETURN_IF_ERROR(bring(output));
      }
      return {};
    case StepKind::kFree:
      there_.erase(step.inputs[0]);
      return {};
    case StepKind::kWait:
      in_flight_.erase(step.inputs[0]);
      return {};
    case StepKind::kWrite: {
      const LocalId from = program_.root(step.inputs[0]);
      const LocalId to = program_.root(step.outputs[0]);
      if (from != to) {
        there_[to] = there_.at(from);
      }
      return {};
    }
  }
  return {};
}

/// The loss of a microbatch stays until the next one makes it again.
Status PlainStorages::bring(LocalId id) {
  if (program_.value(id).view_of.valid()) {
    const bool there = there_.count(program_.root(id)) == 1;
    return there ? Status{} : broken(id, "is a part of what is not there");
  }
  there_.erase(id);
  there_[id] = std::make_shared<PlainStorage>(sum_, program_.value(id).type.bytes());
  return {};
}

void PlainStorages::set_aside(std::int64_t microbatch) {
  There& aside = aside_[microbatch];
  aside = std::exchange(there_, {});
  for (const lower::Resident& resident : program_.residents) {
    there_.insert(aside.extract(resident.local));
  }
}

void PlainStorages::bring_back(std::int64_t microbatch) {
  There there = std::move(aside_.at(microbatch));
  aside_.erase(microbatch);
  for (const lower::Resident& resident : program_.residents) {
    there.insert(there_.extract(resident.local));
  }
  there_ = std::move(there);
}

std::map<LocalId, Bytes> PlainStorages::there() const {
  std::map<LocalId, Bytes> out;
  for (const auto& [id, storage] : there_) {
    out[id] = storage->bytes();
  }
  return out;
}

Status PlainStorages::check_rest() const {
  std::set<LocalId> owned;
  if (program_.loss.valid()) {
    owned.insert(program_.root(program_.loss));
  }
  for (const lower::Resident& resident : program_.residents) {
    owned.insert(program_.root(resident.local));
  }
  for (const lower::Resident& gradient : program_.kept_gradients) {
    owned.insert(program_.root(gradient.local));
  }
  for (const auto& [id, storage] : there_) {
    if (owned.count(id) == 0) {
      return broken(id, "is never freed");
    }
  }
  if (!aside_.empty()) {
    return Error{ErrorCode::kNotEqual,
                 "microbatch " + std::to_string(aside_.begin()->first) + " has no end",
                 "program",
                 {}};
  }
  return {};
}

}  // namespace shardplan::sim
