#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shardplan/lower/pipeline.h"
#include "shardplan/runtime/background.h"
#include "shardplan/runtime/groups.h"
#include "shardplan/support/result.h"

namespace shardplan::runtime {

/// The groups between stages, in the order in which ranks make them: for every pair of stages with
/// a message that goes to another rank.
[[nodiscard]] std::vector<NeededGroup> message_groups(const lower::PipelineProgram& program);

/// Carries the messages of a pipeline for one rank. A send goes on beside what follows: its tensor
/// is kept until the next task that sends on the same channel (pair of stages) begins to send, or
/// longer where the channel has more room (PipelineProgram::room), or until finish(). A receive
/// blocks.
class Messenger {
 public:
  /// Makes the groups, of all ranks together. `program` must outlive the messenger.
  static Result<std::unique_ptr<Messenger>> create(const lower::PipelineProgram& program,
                                                   std::int64_t rank,
                                                   GroupSource* groups);

  /// What follows belongs to another task of the schedule. `bounded`: at most as many tasks'
  /// messages wait on a channel as the schedule says; else any number (the update's).
  void begin_task(bool bounded) { sent_.begin_task(bounded); }
  /// Hands this rank's part to the ranks that need some of it. Throws PeerLost of an earlier send.
  void send(int message, const at::Tensor& part);
  /// Fills this rank's part. Throws PeerLost.
  void receive(int message, const at::Tensor& part);
  /// Until everything that was sent has been taken.
  void finish();

 private:
  Messenger(const lower::PipelineProgram& program, std::int64_t rank)
      : program_(program), rank_(rank), sent_(program) {}

  using Channel = std::pair<int, int>;  ///< stages
  struct Sent {
    std::uint64_t number = 0;
    Background* thread = nullptr;  ///< null: nothing is sent to other ranks
    at::Tensor part{};
  };
  struct Line {
    std::shared_ptr<Group> group{};
    std::unique_ptr<Background> thread{};  ///< of senders
  };
  [[nodiscard]] Line* line(int message);
  void find_pieces();
  static void wait_for(const Sent& sent);

  const lower::PipelineProgram& program_;
  std::int64_t rank_;
  std::vector<std::vector<lower::Piece>> sends_{};  ///< by message: this rank's
  std::vector<std::vector<lower::Piece>> receives_{};
  std::vector<std::vector<sharding::Range>> sent_part_{};  ///< by message: this rank's part
  std::vector<std::vector<sharding::Range>> received_part_{};
  std::map<int, std::deque<at::Tensor>> to_itself_{};  ///< by message: a later stage of this rank
  lower::Outbox<Sent> sent_;
  std::map<Channel, Line> lines_{};  ///< last: its threads use tensors
};

}  // namespace shardplan::runtime
