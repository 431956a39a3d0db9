#include "shardplan/lower/recompute.h"

#include "shardplan/ops/op.h"

namespace shardplan::lower {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;

bool runs_again(const ir::Op& op, plan::Recompute how) {
  switch (how) {
    case plan::Recompute::kNone:
      return false;
    case plan::Recompute::kSelective:
      return !ops::get(op.name).matmul;
    case plan::Recompute::kWhole:
      return true;
  }
  return false;
}

class Scheduler {
 public:
  Scheduler(const ir::Graph& step, RerunSchedule& schedule)
      : step_(step), schedule_(schedule), missing_(schedule.dropped) {}

  void run() {
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (step_.ops()[i].phase == Phase::kBackward) {
        bring_back(OpId(i));
      }
    }
  }

 private:
  /// Depth first through the operands, in their order; a stack of its own, since a block may be
  /// deep.
  void bring_back(OpId reader) {
    struct Frame {
      OpId op;
      std::size_t next = 0;
    };
    std::vector<Frame> stack{{reader}};
    while (!stack.empty()) {
      Frame& frame = stack.back();
      const ir::Op& op = step_.op(frame.op);
      if (frame.next < op.inputs.size()) {
        const ValueId input = op.inputs[frame.next++];
        if (missing_[input.index()]) {
          stack.push_back({step_.value(input).producer});
        }
        continue;
      }
      if (frame.op != reader && missing_results(op)) {
        schedule_.before[reader.index()].push_back(frame.op);
      }
      stack.pop_back();
    }
  }

  /// Whether some result was missing; none is from now on.
  bool missing_results(const ir::Op& op) {
    bool any = false;
    for (const ValueId output : op.outputs) {
      any = any || missing_[output.index()];
      missing_[output.index()] = false;
    }
    return any;
  }

  const ir::Graph& step_;
  RerunSchedule& schedule_;
  std::vector<bool> missing_;
};

}  // namespace

RerunSchedule rerun_schedule(const ir::Graph& step,
                             const std::function<plan::Recompute(std::string_view block)>& how) {
  RerunSchedule schedule;
  schedule.member.assign(step.ops().size(), false);
  schedule.dropped.assign(step.values().size(), false);
  schedule.before.resize(step.ops().size());
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::Op& op = step.ops()[i];
    const std::string_view block = plan::block_of(op.layer);
    if (op.phase != Phase::kForward || block.empty() || !runs_again(op, how(block))) {
      continue;
    }
    schedule.member[i] = true;
    for (const ValueId output : op.outputs) {
      schedule.dropped[output.index()] = true;
    }
  }
  for (const ir::Op& op : step.ops()) {
    if (op.phase != Phase::kForward) {
      continue;
    }
    const std::string_view block = plan::block_of(op.layer);
    for (const ValueId input : op.inputs) {
      const OpId producer = step.value(input).producer;
      if (producer.valid() && plan::block_of(step.op(producer).layer) != block) {
        schedule.dropped[input.index()] = false;
      }
    }
  }
  for (const ValueId output : step.outputs) {
    schedule.dropped[output.index()] = false;
  }
  Scheduler(step, schedule).run();
  return schedule;
}

}  // namespace shardplan::lower
