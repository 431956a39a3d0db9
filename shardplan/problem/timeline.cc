#include "shardplan/problem/timeline.h"

namespace shardplan::problem {

Timeline::Timeline(const ir::Graph& step) {
  for (std::size_t how = 0; how < kRecomputes.size(); ++how) {
    reruns_[how] =
        lower::rerun_schedule(step, [how](std::string_view) { return kRecomputes[how]; });
    again_[how].assign(step.ops().size(), -1);
    for (std::size_t i = 0; i < step.ops().size(); ++i) {
      const std::vector<ir::OpId>& before = reruns_[how].before[i];
      for (std::size_t order = 0; order < before.size(); ++order) {
        again_[how][before[order].index()] = (static_cast<Moment>(i) << kOpShift) |
                                             (static_cast<Moment>(order) << kSlotBits) | kRunSlot;
      }
    }
  }
}

Moment Timeline::at(const lower::ProgramPoint& point, int how) const {
  const Moment start = point.again ? again(point.op, how) : run(point.op);
  switch (point.what) {
    case lower::ProgramPoint::What::kRun:
      return start;
    case lower::ProgramPoint::What::kOperand:
      return operand(start, point.index);
    case lower::ProgramPoint::What::kHalo:
      return halo(start, point.index);
    case lower::ProgramPoint::What::kResult:
      return result(start, point.index);
    case lower::ProgramPoint::What::kWrite:
      return write(start);
  }
  return start;
}

}  // namespace shardplan::problem
