#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/lower/program.h"
#include "shardplan/runtime/allocator.h"
#include "shardplan/runtime/background.h"
#include "shardplan/runtime/groups.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/messages.h"
#include "shardplan/runtime/trainer.h"
#include "shardplan/support/result.h"

namespace shardplan::runtime {

struct ExecutorSetup {
  const ir::Graph& step;          ///< must outlive the executor
  const lower::Program& program;  ///< must outlive the executor
  std::int64_t rank = 0;          ///< in the program's mesh
  std::uint64_t seed = 0;
  GroupSource* groups = nullptr;  ///< used in create() only; may be null when no group is needed
  Heartbeat heartbeat{};
  // Of a pipeline stage:
  std::size_t weights_begin = 0;    ///< see lower::PipelineProgram
  std::string group_purpose{};      ///< of the stage's own groups
  std::int64_t first_rank = 0;      ///< of the mesh, among all ranks
  Messenger* messenger = nullptr;   ///< for its ops send and receive; must outlive the executor
  MemoryCounter* memory = nullptr;  ///< shared with other stages; null: one of its own
};

/// One rank that executes a lowered program, one training step after the other, on libtorch's CPU
/// kernels. Holds only its own parts of the residents. Tensors are freed exactly where the program
/// says, and every tensor of a step is charged to `memory()`. Collectives that the program puts
/// aside are carried out by a thread of the executor's own.
class Executor final : public Trainer {
 public:
  /// Makes the groups (all ranks together) and the first content of the residents. Errors: an op
  /// without a kernel, ranks that do not meet.
  static Result<std::unique_ptr<Executor>> create(const ExecutorSetup& setup);

  /// Runs a whole step: every microbatch, then the update. Returns the step's loss. Errors name the
  /// rank, the op and its layer. After an error the executor must not be used again.
  Result<double> run_step(const InputSource& inputs) override;
  /// The two halves of run_step: forward and backward of every microbatch (returns the loss), and
  /// the update.
  Result<double> run_microbatches(const InputSource& inputs);
  Status run_update();
  /// Puts the weights aside as version `version`, which passes may compute with, and goes on with a
  /// copy of them (weight stashing, Narayanan et al., PipeDream, SOSP 2019).
  void stash_weights(std::int64_t version);
  void drop_weights(std::int64_t version) { stashed_.erase(version); }
  void drop_all_weights() { stashed_.clear(); }
  /// Computes with a version that was put aside, or again with the newest: its own inverse.
  void exchange_weights(std::int64_t version);
  /// From now on random numbers are those of this step, which passes of several steps in flight
  /// need; run_update() ends it.
  void set_random_step(std::int64_t step) { random_step_ = step; }
  /// Some of its instructions; the step ends with those at its end.
  Status run_update(std::size_t begin, std::size_t end);
  /// The pieces of run_microbatches, for one microbatch of several that are in flight: what the
  /// forward pass leaves for the backward pass is kept under the microbatch's number.
  void begin_step();
  void clear_accumulators();
  Status run_forward(const InputSource& inputs, std::int64_t microbatch);
  /// Returns the microbatch's loss; 0 in a stage that does not have it.
  Result<double> run_backward(const InputSource& inputs, std::int64_t microbatch);
  /// The two parts of run_backward, where the program has them.
  Status run_backward_inputs(const InputSource& inputs, std::int64_t microbatch);
  Result<double> run_backward_weights(const InputSource& inputs, std::int64_t microbatch);

  using Part = runtime::Part;
  [[nodiscard]] Part resident(ir::ValueId value) const;
  /// Overwrites this rank's part with its part of `full`.
  void set_resident(ir::ValueId value, const at::Tensor& full) override;
  /// Gradients of the last step by parameter, when the program keeps them. Not counted in
  /// memory(): they would be freed after their last use. Dropped by the next step.
  [[nodiscard]] const std::map<ir::ValueId, Part>& gradients() const { return gradients_; }
  /// The same between run_microbatches and run_update: the tensors that the update will read.
  [[nodiscard]] std::map<ir::ValueId, Part> gradients_before_update() const;

  [[nodiscard]] std::vector<LocatedPart> residents() const override;
  [[nodiscard]] std::vector<LocatedPart> trained_gradients() const override;
  [[nodiscard]] const MemoryCounter& memory() const override { return memory_; }
  void reset_peak() override { memory_.reset_peak(); }
  [[nodiscard]] std::map<std::string, Seconds> seconds_by_name() const override;
  void reset_times() override;
  [[nodiscard]] std::int64_t steps_done() const override { return steps_done_; }
  [[nodiscard]] std::uint64_t seed() const override { return seed_; }
  void resume(std::int64_t steps_done, std::uint64_t seed) override {
    steps_done_ = steps_done;
    seed_ = seed;
  }
  /// Whether a step failed because another rank is gone or does not answer.
  [[nodiscard]] bool lost_a_peer() const override { return lost_a_peer_; }
  [[nodiscard]] Group* world() const override { return world_.get(); }
  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t ranks() const override { return program_.mesh.size(); }
  [[nodiscard]] const lower::Program& program() const { return program_; }

 private:
  explicit Executor(const ExecutorSetup& setup);

  /// What a step of the program needs, found once.
  struct Prepared {
    Kernel kernel = nullptr;                ///< null: a send or a receive
    int message = -1;                       ///< of these
    std::vector<ir::TensorType> results{};  ///< of this rank's parts
    bool nothing = false;  ///< an uneven cut leaves this rank no elements along an axis of the op
    std::vector<GlobalAxis> positions{};
    std::vector<ops::CutWindow> cut{};
    std::shared_ptr<Group> group{};
    std::vector<lower::LocalId> last_uses{};  ///< kept gradients that are not read after this
    std::vector<lower::LocalId> written{};    ///< written to residents, and not read after this
  };
  Status prepare_groups(GroupSource* groups, const std::string& purpose);
  Status prepare(const std::vector<lower::Step>& steps, std::vector<Prepared>& prepared);
  /// Type of this rank's part of a value.
  [[nodiscard]] ir::TensorType part_type(lower::LocalId id) const;
  [[nodiscard]] bool cut_to_nothing(const lower::Step& step) const;
  [[nodiscard]] std::vector<GlobalAxis> global_axes(const lower::Step& step) const;
  void fill_residents();
  void find_last_uses();

  /// May leave collectives in flight that the update waits for.
  Result<double> forward_and_backward(const InputSource& inputs);
  struct Section {
    const std::vector<lower::Step>& steps;
    const std::vector<Prepared>& prepared;
    std::vector<Seconds>& times;
  };
  Status run_section(const Section& section, std::size_t begin, std::size_t end);
  void run_message(const lower::Step& step, const Prepared& prepared);
  /// `kept`: whether the microbatch was in flight before; `keeps`: whether it is after it.
  Status run_part(const InputSource& inputs,
                  std::int64_t microbatch,
                  std::size_t begin,
                  std::size_t end,
                  bool kept,
                  bool keeps);
  void find_views_of_residents();
  /// Makes those again that steps before `end` have made: since then residents have got the content
  /// of another microbatch (inputs) or version (weights).
  Status renew_views(std::size_t end);
  [[nodiscard]] std::vector<lower::LocalId> written_weights() const;
  void keep(std::int64_t microbatch);
  void bring_back(std::int64_t microbatch);
  void run_instruction(const lower::Step& step, const Prepared& prepared);
  void run_compute(const lower::Step& step, const Prepared& prepared);
  void run_collective_step(const lower::Step& step, const Prepared& prepared);
  void start_collective(const lower::Step& step, const Prepared& prepared);
  /// Until the collective in flight that makes this storage is done, if there is one.
  void finish(lower::LocalId root);
  void finish_all();
  void reserve();
  void drop(lower::LocalId root);
  void write(lower::LocalId target, lower::LocalId value);
  void keep_gradient(lower::LocalId local);
  void fill_inputs(const InputSource& inputs);
  [[nodiscard]] std::string name_of(const lower::Step& step) const;
  [[nodiscard]] Error failure(const lower::Step& step, const std::string& what) const;
  [[nodiscard]] at::Tensor& tensor(lower::LocalId id) { return tensors_[id.index()]; }

  MemoryCounter own_memory_{};  // first: outlives the tensors
  MemoryCounter& memory_;
  const ir::Graph& step_;
  const lower::Program& program_;
  std::int64_t rank_;
  std::int64_t first_rank_;
  Messenger* messenger_;
  std::uint64_t seed_;
  Heartbeat heartbeat_;
  std::map<Ranks, std::shared_ptr<Group>> groups_{};
  std::shared_ptr<Group> world_{};
  std::vector<Prepared> microbatch_{};
  std::vector<Prepared> update_{};
  std::vector<std::vector<lower::LocalId>> views_{};  ///< by root: it and all its views
  std::vector<at::Tensor> tensors_{};                 ///< by LocalId
  std::map<ir::ValueId, Part> gradients_{};
  struct Times {
    std::vector<Seconds> microbatch{};
    std::vector<Seconds> update{};
  };
  Times times_{};  ///< of every instruction, summed over all calls since the last reset
  std::size_t backward_begin_ = 0;
  std::size_t weights_begin_ = 0;
  std::vector<std::size_t> resident_views_{};  ///< steps of Program::microbatch that make them
  std::vector<bool> resident_root_{};          ///< by local
  std::map<std::int64_t, std::vector<at::Tensor>> stashed_{};  ///< by version: written weights
  std::int64_t random_step_ = -1;                              ///< -1: steps_done_
  std::map<std::int64_t, std::vector<at::Tensor>> kept_{};     ///< by microbatch in flight
  bool lost_a_peer_ = false;
  /// Collectives that have not been waited for, in program order. Their workspace is charged from
  /// the start to the wait, the largest for all, since one is carried out at a time.
  struct InFlight {
    lower::LocalId made;
    std::uint64_t number = 0;
    Bytes workspace = 0;
  };
  std::vector<InFlight> in_flight_{};
  Bytes reserved_ = 0;
  std::int64_t steps_done_ = 0;
  std::int64_t microbatch_number_ = 0;
  std::unique_ptr<Background> communication_{};  // last: its work uses the tensors; null: in line
};

}  // namespace shardplan::runtime
