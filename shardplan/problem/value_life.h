#pragma once

#include <array>
#include <span>
#include <vector>

#include "shardplan/problem/timeline.h"

namespace shardplan::problem {

inline constexpr std::size_t kHows = kRecomputes.size();

/// One read of a value, through operand `operand` of an op.
struct ValueRead {
  ir::Phase phase = ir::Phase::kForward;
  int reader = -1;     ///< who shares changed copies, see lower::reader_of
  Moment change = -1;  ///< when its layout would change
  Moment end = -1;     ///< when the read is done
  int operand = 0;     ///< -1: written back
  /// Forward ops, by the way the reader's block is recomputed: its second run (-1 = none), and
  /// whether its operands' changed copies are dropped with its results.
  std::array<Moment, kHows> again{-1, -1, -1};
  std::array<bool, kHows> member{};
  /// The read makes a view: until when ops read that, in each phase (-1 = never), and whether it is
  /// dropped after the forward pass.
  bool view = false;
  Moment view_forward = -1;
  std::array<Moment, kHows> view_backward{-1, -1, -1};
  Moment view_update = -1;
  std::array<bool, kHows> view_dropped{};
};

/// A value as one node reads it: when it is made, when it is read, what lower() does in between.
struct ValueUse {
  ir::ValueId value{};
  bool parameter = false;  ///< changed copies are not kept from the forward to the backward pass
  bool made_by_op = false;
  bool settles = false;  ///< brought into the layout of its only reader as soon as it is made
  /// The bytes of the value as it was made are counted here; otherwise only those of its copies.
  bool accounted = false;
  Moment made = -1;
  int result = 0;
  ir::Phase made_in = ir::Phase::kForward;
  std::array<bool, kHows> dropped{};  ///< by the way the producer's block is recomputed
  std::array<Moment, kHows> again{-1, -1, -1};
  Moment own_end = -1;  ///< last read by backward ops of the producer's own node
  std::vector<ValueRead> reads{};

  /// Every moment above, for comparing uses.
  [[nodiscard]] std::vector<Moment> moments() const;
};

/// A copy in another layout than the value was made in.
struct CopyLife {
  std::size_t read = 0;  ///< a read whose layout it has
  Moment change = -1;    ///< when it is made
  Moment end = -1;
  bool in_update = false;  ///< made once a step, not once a microbatch
};

/// When the value as it was made, and its changed copies, are there.
struct ValueLife {
  std::array<std::pair<Moment, Moment>, 2> original{{{-1, -2}, {-1, -2}}};
  std::vector<CopyLife> copies{};
};

/// Layouts as numbers, equal for equal layouts: as the value was made, and by read. `no_larger`:
/// whether the value takes no more in the first read's layout than as it was made. `producer`,
/// `reader`: how their blocks are recomputed, as indices into kRecomputes.
[[nodiscard]] ValueLife life_of(const ValueUse& use,
                                int made,
                                std::span<const int> layouts,
                                bool no_larger,
                                int producer,
                                int reader);

}  // namespace shardplan::problem
