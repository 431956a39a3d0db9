#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "shardplan/lower/program.h"
#include "shardplan/lower/schedule.h"
#include "shardplan/training/stages.h"

namespace shardplan::lower {

/// A message between the programs of two stages.
struct Link {
  int from = 0;  ///< stage, as PipelineProgram numbers them
  int to = 0;
  ir::Phase phase = ir::Phase::kForward;
  ir::TensorType type{};  ///< whole
  LocalId sent{};         ///< in the program of `from`
  LocalId received{};     ///< in the program of `to`
};

/// The programs of all stages and the order in which their parts run. The forward and backward
/// steps of Program::microbatch are separate tasks; the ranks of a stage are those of its group of
/// devices. Where several pipelines have copies of the stages, each copy is a stage here: stage s
/// of pipeline k is number k · schedule.stages + s.
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
  [[nodiscard]] int stages_with_copies() const { return schedule.pipelines * schedule.stages; }
  [[nodiscard]] int device_of(int stage) const {
    return schedule.device_of[static_cast<std::size_t>(stage / schedule.stages)]
                             [static_cast<std::size_t>(stage % schedule.stages)];
  }
  /// The number of a stage of a task in the list of `device`.
  [[nodiscard]] int stage_of(const Task& task, int device) const {
    return pipeline_of(schedule, task, device) * schedule.stages + task.stage;
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

/// What was sent and may not have been taken, by channel: kept until the next task that sends there
/// begins to, or longer where the channel has more room. The simulator and the runtime keep
/// messages by this one rule; `Sent` is what holds the tensor's memory.
template <class Sent>
class Outbox {
 public:
  explicit Outbox(const PipelineProgram& program) : program_(program) {}

  /// What follows belongs to another task. Not `bounded`: any number may wait (the update's).
  void begin_task(bool bounded) {
    ++task_;
    bounded_ = bounded;
  }
  /// Makes room in the link's channel: gives those that must have been taken to `taken`.
  template <class Taken>
  void make_room(const Link& link, const Taken& taken) {
    std::deque<Entry>& channel = channels_[{link.from, link.to}];
    while (bounded_ && tasks_before(channel) >= program_.room(link)) {
      taken(channel.front().sent);
      channel.pop_front();
    }
  }
  void keep(const Link& link, Sent sent) {
    channels_[{link.from, link.to}].push_back({task_, std::move(sent)});
  }
  /// Gives all to `taken`.
  template <class Taken>
  void clear(const Taken& taken) {
    for (auto& [stages, channel] : channels_) {
      for (const Entry& entry : channel) {
        taken(entry.sent);
      }
      channel.clear();
    }
  }

 private:
  struct Entry {
    std::int64_t task = 0;
    Sent sent;
  };
  [[nodiscard]] std::int64_t tasks_before(const std::deque<Entry>& channel) const {
    std::int64_t tasks = 0;
    for (std::size_t i = 0; i < channel.size(); ++i) {
      const bool another = i == 0 || channel[i].task != channel[i - 1].task;
      tasks += another && channel[i].task != task_ ? 1 : 0;
    }
    return tasks;
  }

  const PipelineProgram& program_;
  std::map<std::pair<int, int>, std::deque<Entry>> channels_{};  ///< by stages
  std::int64_t task_ = 0;
  bool bounded_ = true;
};

/// The first step of Program::microbatch that belongs to the backward pass.
[[nodiscard]] std::size_t backward_begin(const Program& program);

/// Behind the last instruction of the backward pass that belongs to an op before `first`, see
/// training::Stage::weights_begin; its end where there is none.
[[nodiscard]] std::size_t weights_begin(const Program& program, ir::OpId first);

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
