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
#include "shardplan/support/result.h"

namespace shardplan::runtime {

/// Told before every instruction whether it waits for other ranks (a collective).
using Heartbeat = std::function<void(bool waiting)>;

/// The whole content (all ranks') of a user input for one microbatch.
using InputSource = std::function<at::Tensor(ir::ValueId input, std::int64_t microbatch)>;

struct ExecutorSetup {
  const ir::Graph& step;          ///< must outlive the executor
  const lower::Program& program;  ///< must outlive the executor
  std::int64_t rank = 0;
  std::uint64_t seed = 0;
  GroupSource* groups = nullptr;  ///< used in create() only; may be null when no group is needed
  Heartbeat heartbeat{};
};

/// One rank that executes a lowered program, one training step after the other, on libtorch's CPU
/// kernels. Holds only its own parts of the residents. Tensors are freed exactly where the program
/// says, and every tensor of a step is charged to `memory()`. Collectives that the program puts
/// aside are carried out by a thread of the executor's own.
class Executor {
 public:
  /// Makes the groups (all ranks together) and the first content of the residents. Errors: an op
  /// without a kernel, ranks that do not meet.
  static Result<std::unique_ptr<Executor>> create(const ExecutorSetup& setup);

  /// Runs a whole step: every microbatch, then the update. Returns the step's loss. Errors name the
  /// rank, the op and its layer. After an error the executor must not be used again.
  Result<double> run_step(const InputSource& inputs);
  /// The two halves of run_step: forward and backward of every microbatch (returns the loss), and
  /// the update.
  Result<double> run_microbatches(const InputSource& inputs);
  Status run_update();

  /// Parameters, buffers and states by graph value: this rank's part and its layout.
  struct Part {
    at::Tensor tensor;
    sharding::ShardingSpec spec;
  };
  [[nodiscard]] Part resident(ir::ValueId value) const;
  /// Overwrites this rank's part with its part of `full`.
  void set_resident(ir::ValueId value, const at::Tensor& full);
  /// Gradients of the last step by parameter, when the program keeps them. Not counted in
  /// memory(): they would be freed after their last use. Dropped by the next step.
  [[nodiscard]] const std::map<ir::ValueId, Part>& gradients() const { return gradients_; }
  /// The same between run_microbatches and run_update: the tensors that the update will read.
  [[nodiscard]] std::map<ir::ValueId, Part> gradients_before_update() const;

  [[nodiscard]] const MemoryCounter& memory() const { return memory_; }
  void reset_peak() { memory_.reset_peak(); }
  /// Seconds that this rank spent in every instruction of a section, by its place there, summed
  /// over all calls since the last reset.
  struct Times {
    std::vector<Seconds> microbatch{};
    std::vector<Seconds> update{};
  };
  [[nodiscard]] const Times& times() const { return times_; }
  void reset_times();
  [[nodiscard]] std::int64_t steps_done() const { return steps_done_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  /// Goes on as after so many steps from this seed: all that random numbers depend on.
  void resume(std::int64_t steps_done, std::uint64_t seed) {
    steps_done_ = steps_done;
    seed_ = seed;
  }
  /// Whether a step failed because another rank is gone or does not answer.
  [[nodiscard]] bool lost_a_peer() const { return lost_a_peer_; }
  /// The group of all ranks; null when there is one rank.
  [[nodiscard]] Group* world() const { return world_.get(); }
  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] const lower::Program& program() const { return program_; }
  /// All ranks' parts put together, on every rank. All ranks must call. Temporary: the world's
  /// parts once more.
  [[nodiscard]] at::Tensor gather(const Part& part, const ir::TensorType& type) const;

 private:
  explicit Executor(const ExecutorSetup& setup);

  /// What a step of the program needs, found once.
  struct Prepared {
    Kernel kernel = nullptr;
    std::vector<ir::TensorType> results{};  ///< of this rank's parts
    bool nothing = false;  ///< an uneven cut leaves this rank no elements along an axis of the op
    std::vector<GlobalAxis> positions{};
    std::vector<ops::CutWindow> cut{};
    std::shared_ptr<Group> group{};
    std::vector<lower::LocalId> last_uses{};  ///< kept gradients that are not read after this
  };
  Status prepare_groups(GroupSource* groups);
  Status prepare(const std::vector<lower::Step>& steps, std::vector<Prepared>& prepared);
  /// Type of this rank's part of a value.
  [[nodiscard]] ir::TensorType part_type(lower::LocalId id) const;
  [[nodiscard]] bool cut_to_nothing(const lower::Step& step) const;
  [[nodiscard]] std::vector<GlobalAxis> global_axes(const lower::Step& step) const;
  void fill_residents();
  void find_gradient_ends();

  /// May leave collectives in flight that the update waits for.
  Result<double> forward_and_backward(const InputSource& inputs);
  Status run_section(const std::vector<lower::Step>& steps,
                     const std::vector<Prepared>& prepared,
                     std::vector<Seconds>& times);
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
  [[nodiscard]] Error failure(const lower::Step& step, const std::string& what) const;
  [[nodiscard]] at::Tensor& tensor(lower::LocalId id) { return tensors_[id.index()]; }

  MemoryCounter memory_{};  // first: outlives the tensors
  const ir::Graph& step_;
  const lower::Program& program_;
  std::int64_t rank_;
  std::uint64_t seed_;
  Heartbeat heartbeat_;
  std::map<Ranks, std::shared_ptr<Group>> groups_{};
  std::shared_ptr<Group> world_{};
  std::vector<Prepared> microbatch_{};
  std::vector<Prepared> update_{};
  std::vector<std::vector<lower::LocalId>> views_{};  ///< by root: it and all its views
  std::vector<at::Tensor> tensors_{};                 ///< by LocalId
  std::map<ir::ValueId, Part> gradients_{};
  Times times_{};
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
