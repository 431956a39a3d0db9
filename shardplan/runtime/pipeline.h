#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/lower/pipeline.h"
#include "shardplan/runtime/executor.h"
#include "shardplan/runtime/messages.h"
#include "shardplan/runtime/trainer.h"

namespace shardplan::runtime {

struct PipelineSetup {
  const lower::PipelineProgram& program;  ///< must outlive the trainer
  std::int64_t rank = 0;
  std::uint64_t seed = 0;
  GroupSource* groups = nullptr;  ///< used in create() only; may be null for one rank
  Heartbeat heartbeat{};
};

/// The groups that the ranks of a pipeline make, as needed_groups() of a program.
[[nodiscard]] std::vector<NeededGroup> needed_groups(const lower::PipelineProgram& program);

/// One rank of a pipeline: an executor for each stage of its group of devices, which work off the
/// group's list of tasks. All stages are charged to one memory.
class PipelineTrainer final : public Trainer {
 public:
  /// Makes the groups (all ranks together) and the first content of the residents.
  static Result<std::unique_ptr<Trainer>> create(const PipelineSetup& setup);

  Result<double> run_step(const InputSource& inputs) override;
  [[nodiscard]] std::vector<LocatedPart> residents() const override;
  void set_resident(ir::ValueId value, const at::Tensor& full) override;
  [[nodiscard]] std::int64_t steps_done() const override { return steps_done_; }
  [[nodiscard]] std::uint64_t seed() const override { return seed_; }
  void resume(std::int64_t steps_done, std::uint64_t seed) override;
  [[nodiscard]] std::vector<LocatedPart> trained_gradients() const override;
  [[nodiscard]] const MemoryCounter& memory() const override { return memory_; }
  void reset_peak() override { memory_.reset_peak(); }
  [[nodiscard]] std::map<std::string, Seconds> seconds_by_name() const override;
  void reset_times() override;
  [[nodiscard]] bool lost_a_peer() const override;
  [[nodiscard]] Group* world() const override { return world_.get(); }
  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t ranks() const override { return program_.ranks(); }
  [[nodiscard]] std::int64_t steps_a_run() const override;

 private:
  PipelineTrainer(const lower::PipelineProgram& program, std::int64_t rank)
      : program_(program),
        rank_(rank),
        uses_(program.schedule.tasks[static_cast<std::size_t>(program.device_of_rank(rank))]) {}
  Status set_up(const PipelineSetup& setup);
  Result<double> run_task(const lower::Task& task, const InputSource& inputs);
  static Result<double> run_pass(Executor& executor,
                                 const lower::Task& task,
                                 const InputSource& of_stage);
  Status run_updates();
  Status run_stale_update(std::size_t task, int stage);
  [[nodiscard]] double loss_everywhere(double mine) const;
  /// What a stage of this or another rank holds, with the values of the whole step.
  [[nodiscard]] LocatedPart located(int stage, const lower::Resident& resident) const;

  const lower::PipelineProgram& program_;
  std::int64_t rank_;
  std::uint64_t seed_ = 0;
  MemoryCounter memory_{};  // outlives the tensors of all that follows
  std::shared_ptr<Group> world_{};
  std::unique_ptr<Messenger> messenger_{};
  std::vector<lower::UpdateRun> update_runs_{};
  std::map<int, std::unique_ptr<Executor>> stages_{};  ///< of this rank
  bool lost_a_peer_ = false;
  // Of an asynchronous schedule:
  lower::WeightUses uses_;
  std::map<int, std::int64_t> version_{};  ///< by stage: the newest
  std::int64_t steps_done_ = 0;
};

}  // namespace shardplan::runtime
