#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/lower/program.h"
#include "shardplan/lower/recompute.h"
#include "shardplan/plan/plan.h"

namespace shardplan::problem {

/// A moment of a step in the order of its program, as a number; -1 = never. Every op has room for
/// the runs of other ops just before it, and every run for the changes of layout around it.
using Moment = std::int64_t;

/// The ways in which a block may be recomputed, in the order of the choices of its variable.
inline constexpr std::array<plan::Recompute, 3> kRecomputes{
    plan::Recompute::kNone, plan::Recompute::kSelective, plan::Recompute::kWhole};
inline constexpr int kWhole = 2;  ///< index of plan::Recompute::kWhole

/// When the ops of a step run, for the first time and (by the way in which their block is
/// recomputed) again. As lower() does it.
class Timeline {
 public:
  explicit Timeline(const ir::Graph& step);

  [[nodiscard]] static Moment run(ir::OpId op) {
    return (Moment{op.value} << kOpShift) | (kOwnRun << kSlotBits) | kRunSlot;
  }
  /// `how`: index into kRecomputes.
  [[nodiscard]] Moment again(ir::OpId op, int how) const {
    return again_[static_cast<std::size_t>(how)][op.index()];
  }
  /// While operand `index` changes layout for a run; while it gets its halos, when all are in their
  /// layouts; while a result changes layout after the run; when results are written back.
  [[nodiscard]] static Moment operand(Moment run, int index) {
    return run - kRunSlot + std::min<Moment>(index, kRunSlot - kHalos - 1);
  }
  [[nodiscard]] static Moment halo(Moment run, int index) {
    return run - kHalos + std::min<Moment>(index, kHalos - 1);
  }
  [[nodiscard]] static Moment result(Moment run, int index) {
    return run + 1 + std::min<Moment>(index, kWriteSlot - kRunSlot - 2);
  }
  [[nodiscard]] static Moment write(Moment run) { return run - kRunSlot + kWriteSlot; }
  /// The op that runs at a moment, or before which another runs again.
  [[nodiscard]] static ir::OpId op_at(Moment moment) {
    return ir::OpId(static_cast<std::size_t>(moment >> kOpShift));
  }
  [[nodiscard]] Moment at(const lower::ProgramPoint& point, int how) const;

  /// Whether a value is not kept from the forward to the backward pass.
  [[nodiscard]] bool dropped(ir::ValueId value, int how) const {
    return reruns_[static_cast<std::size_t>(how)].dropped[value.index()];
  }
  /// Whether the results of an op are dropped (where no other block reads them).
  [[nodiscard]] bool member(ir::OpId op, int how) const {
    return reruns_[static_cast<std::size_t>(how)].member[op.index()];
  }

 private:
  static constexpr int kSlotBits = 6;
  static constexpr int kOpShift = 24;
  static constexpr Moment kOwnRun = (Moment{1} << (kOpShift - kSlotBits)) - 1;
  static constexpr Moment kRunSlot = 30;
  static constexpr Moment kHalos = 2;  ///< operands that may have some: the first ones
  static constexpr Moment kWriteSlot = 63;

  std::array<lower::RerunSchedule, kRecomputes.size()> reruns_;
  std::array<std::vector<Moment>, kRecomputes.size()> again_;  ///< by op
};

}  // namespace shardplan::problem
