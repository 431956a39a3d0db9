#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

#include "shardplan/lower/program.h"
#include "shardplan/lower/schedule.h"
#include "shardplan/training/stages.h"

namespace shardplan::lower {

/// A message between the programs of two stages.
struct Link {
  int from = 0;  ///< stage
  int to = 0;
  ir::Phase phase = ir::Phase::kForward;
  ir::TensorType type{};  ///< whole
  LocalId sent{};         ///< in the program of `from`
  LocalId received{};     ///< in the program of `to`
};

/// The programs of all stages and the order in which their parts run. The forward and backward
/// steps of Program::microbatch are separate tasks; the ranks of a stage are those of its group of
/// devices.
struct PipelineProgram {
  Schedule schedule{};
  std::vector<training::Stage> stages{};
  std::vector<std::size_t>
      weights_begin{};              ///< by stage: where the second part of the backward pass
                                    ///< begins in Program::microbatch; its end: nowhere
  std::vector<Program> programs{};  ///< by stage
  std::vector<std::int64_t>
      first_rank{};           ///< by group of devices, and one more: the number of ranks
  std::vector<Link> links{};  ///< by message

  [[nodiscard]] std::int64_t ranks() const { return first_rank.back(); }
  [[nodiscard]] int device_of(int stage) const {
    return schedule.device_of[0][static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] std::int64_t first_rank_of(int stage) const {
    return first_rank[static_cast<std::size_t>(device_of(stage))];
  }
  [[nodiscard]] int device_of_rank(std::int64_t rank) const;
  /// Tasks whose messages may wait in the channel of a link: the schedule's for neighbours, as many
  /// times more as there are stages between.
  [[nodiscard]] std::int64_t room(const Link& link) const {
    return schedule.channel_capacity * std::max(1, std::abs(link.to - link.from));
  }
};

/// The first step of Program::microbatch that belongs to the backward pass.
[[nodiscard]] std::size_t backward_begin(const Program& program);

/// What one rank sends to another of a message: a box of the tensor.
struct Piece {
  std::int64_t sender = 0;             ///< rank among those of the stage
  std::int64_t receiver = 0;           ///< likewise
  std::vector<sharding::Range> box{};  ///< by dimension, of the whole tensor
};

/// All pieces of a message, by receiver and then sender, at most one for each pair, none without
/// elements. Every element of a receiver's part comes from one of the senders that hold it: equal
/// senders serve receivers in turn. O(senders · receivers).
[[nodiscard]] std::vector<Piece> pieces(const PipelineProgram& program, int message);

/// Some of the update's instructions of a stage.
struct UpdateRun {
  int stage = 0;
  std::size_t begin = 0;  ///< in Program::update
  std::size_t end = 0;
};

/// The updates of all stages of a group of devices, in the order of the whole step: in a norm of
/// all gradients they wait for each other.
[[nodiscard]] std::vector<UpdateRun> update_runs(const PipelineProgram& program, int device);

/// Prices of changes of layout in a stage.
using PriceOf = std::function<sharding::StepPrice(const plan::Plan& stage)>;

/// Cuts the step as plan.pipeline says, lowers every stage with its own plan, and links the
/// messages. Precondition: plan::check. Errors: an unknown schedule or one that has no such shape;
/// meshes of different sizes in one group.
[[nodiscard]] Result<PipelineProgram> lower_pipeline(const ir::Graph& step,
                                                     const plan::Plan& plan,
                                                     const PriceOf& price,
                                                     const LowerOptions& options = {});

}  // namespace shardplan::lower
