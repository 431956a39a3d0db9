#include "shardplan/sim/certificate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "shardplan/ops/op.h"

namespace shardplan::sim {
namespace {

using lower::LocalId;
using lower::Program;
using lower::Step;
using lower::StepKind;

class Walk {
 public:
  Walk(const Program& program, const ir::Graph& graph, const cost::CostModel& cost)
      : program_(program), graph_(graph), cost_(cost) {}

  Result<Certificate> run() {
    for (const lower::Resident& resident : program_.residents) {
      SHARDPLAN_RETURN_IF_ERROR(bring(resident.local));
    }
    certificate_.peak_bytes = bytes_;
    count_seconds(program_.microbatch, static_cast<double>(program_.microbatches));
    count_seconds(program_.update, 1);
    for (std::int64_t m = 0; m < program_.microbatches; ++m) {
      const std::map<LocalId, Bytes> before = there_;
      SHARDPLAN_RETURN_IF_ERROR(section(program_.microbatch, false));
      if (there_ == before) {
        break;
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(section(program_.update, true));
    SHARDPLAN_RETURN_IF_ERROR(check_rest());
    return certificate_;
  }

 private:
  void count_seconds(const std::vector<Step>& steps, double times) {
    for (const Step& step : steps) {
      if (step.kind == StepKind::kCollective) {
        const Seconds seconds =
            cost_.reshard_step(step.collective, graph_.type(program_.value(step.inputs[0]).global));
        const bool alone = step.collective.kind == sharding::CollectiveKind::kSlice;
        certificate_.additive_seconds += seconds * times;
        certificate_.kernel_seconds += alone ? seconds * times : 0;
      } else if (step.kind == StepKind::kCompute && !ops::get(graph_.op(step.op).name).view) {
        const Seconds seconds = cost_.kernel(kernel_of(step));
        certificate_.additive_seconds += seconds * times;
        certificate_.kernel_seconds += seconds * times;
      }
    }
  }

  [[nodiscard]] cost::Kernel kernel_of(const Step& step) const {
    ops::Types inputs;
    for (const LocalId input : step.inputs) {
      inputs.push_back(program_.value(input).type);
    }
    ops::Types results;
    for (const LocalId output : step.outputs) {
      results.push_back(program_.value(output).type);
    }
    const ops::OpDef& op = ops::get(graph_.op(step.op).name);
    return cost::kernel_of(op, inputs, results, step.flops, step.bytes);
  }

  Status section(const std::vector<Step>& steps, bool update) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(instruction(steps[i]));
      const Bytes now = bytes_ + workspace_at(steps[i]);
      if (now > certificate_.peak_bytes) {
        certificate_.peak_bytes = now;
        certificate_.peak_in_update = update;
        certificate_.peak_step = i;
      }
    }
    return {};
  }

  /// Of this step, and the one that serves all collectives in flight.
  Bytes workspace_at(const Step& step) {
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

  Status instruction(const Step& step) {
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
        take(step.inputs[0]);
        return {};
      case StepKind::kWait:
        in_flight_.erase(step.inputs[0]);
        return {};
      case StepKind::kWrite: {
        const LocalId from = program_.root(step.inputs[0]);
        const LocalId to = program_.root(step.outputs[0]);
        if (from != to) {
          const Bytes bytes = there_.at(from);
          take(from);
          take(to);
          there_[to] = bytes;
          bytes_ += bytes;
        }
        return {};
      }
    }
    return {};
  }

  /// The loss of a microbatch stays until the next one makes it again.
  Status bring(LocalId id) {
    if (program_.value(id).view_of.valid()) {
      const bool there = there_.count(program_.root(id)) == 1;
      return there ? Status{} : broken(id, "is a part of what is not there");
    }
    take(id);
    there_[id] = program_.value(id).type.bytes();
    bytes_ += there_[id];
    return {};
  }

  void take(LocalId root) {
    const auto found = there_.find(root);
    if (found != there_.end()) {
      bytes_ -= found->second;
      there_.erase(found);
    }
  }

  /// What lives on after a step: residents, the loss, gradients that were asked for.
  [[nodiscard]] Status check_rest() const {
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
    for (const auto& [id, bytes] : there_) {
      if (owned.count(id) == 0) {
        return broken(id, "is never freed");
      }
    }
    return {};
  }

  [[nodiscard]] static Error broken(LocalId id, const std::string& what) {
    return {ErrorCode::kNotEqual, "value %" + std::to_string(id.value) + " " + what, "program", {}};
  }

  const Program& program_;
  const ir::Graph& graph_;
  const cost::CostModel& cost_;
  Certificate certificate_;
  std::map<LocalId, Bytes> there_;      ///< by root
  Bytes bytes_ = 0;                     ///< sum of there_
  std::map<LocalId, Bytes> in_flight_;  ///< workspaces of collectives that run aside
};

}  // namespace

Result<Certificate> certify(const Program& program,
                            const ir::Graph& step,
                            const cost::CostModel& cost) {
  return Walk(program, step, cost).run();
}

}  // namespace shardplan::sim
