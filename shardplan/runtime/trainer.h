#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/graph.h"
#include "shardplan/runtime/allocator.h"
#include "shardplan/runtime/groups.h"
#include "shardplan/sharding/spec.h"
#include "shardplan/support/result.h"

namespace shardplan::runtime {

/// Told before every instruction whether it waits for other ranks (a collective).
using Heartbeat = std::function<void(bool waiting)>;

/// The whole content (all ranks') of a user input for one microbatch.
using InputSource = std::function<at::Tensor(ir::ValueId input, std::int64_t microbatch)>;

/// A rank's part of a tensor, and its layout.
struct Part {
  at::Tensor tensor{};
  sharding::ShardingSpec spec{};
};

/// A tensor of the whole step that some of the ranks hold: those from `first_rank` on, as many as
/// the mesh has. Every rank knows of it; on a rank that does not hold it the tensor is undefined.
struct LocatedPart {
  ir::ValueId value{};  ///< of the whole step
  Part part{};
  const cluster::DeviceMesh* mesh = nullptr;
  std::int64_t first_rank = 0;
};

/// Whether it is a parameter, a buffer or optimizer state: what a checkpoint keeps.
[[nodiscard]] inline bool lives_on(const ir::Value& value) {
  return value.kind == ir::ValueKind::kParameter || value.kind == ir::ValueKind::kBuffer ||
         value.kind == ir::ValueKind::kState;
}

/// One rank of a run, whether all ranks run one program or the stages of a pipeline.
class Trainer {
 public:
  Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  Trainer(Trainer&&) = delete;
  Trainer& operator=(Trainer&&) = delete;
  virtual ~Trainer() = default;

  /// A whole training step, or as many as steps_a_run() says: microbatches are then numbered
  /// through all of them. Returns the (mean) loss, on every rank. After an error the trainer must
  /// not be used again.
  virtual Result<double> run_step(const InputSource& inputs) = 0;
  [[nodiscard]] virtual std::int64_t steps_a_run() const { return 1; }
  /// Parameters, buffers and optimizer state: all that lives from step to step. In an order that is
  /// the same on all ranks; several times where several stages hold a value.
  [[nodiscard]] virtual std::vector<LocatedPart> residents() const = 0;
  /// Overwrites this rank's parts of a resident with those of `full`.
  virtual void set_resident(ir::ValueId value, const at::Tensor& full) = 0;
  /// All that random numbers depend on, but for names and places; resume() goes on as after so many
  /// steps from this seed.
  [[nodiscard]] virtual std::int64_t steps_done() const = 0;
  [[nodiscard]] virtual std::uint64_t seed() const = 0;
  virtual void resume(std::int64_t steps_done, std::uint64_t seed) = 0;
  /// Of the last step, of trained parameters, when the program keeps them.
  [[nodiscard]] virtual std::vector<LocatedPart> trained_gradients() const = 0;

  [[nodiscard]] virtual const MemoryCounter& memory() const = 0;
  virtual void reset_peak() = 0;
  /// Seconds since reset_times() by what this rank did: the name of an op or a collective, "free",
  /// "write" and "wait".
  [[nodiscard]] virtual std::map<std::string, Seconds> seconds_by_name() const = 0;
  virtual void reset_times() = 0;
  /// Whether a step failed because another rank is gone or does not answer.
  [[nodiscard]] virtual bool lost_a_peer() const = 0;
  /// The group of all ranks; null when there is one rank.
  [[nodiscard]] virtual Group* world() const = 0;
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t ranks() const = 0;
};

/// All ranks' parts put together, on every rank. All ranks must call. `type`: of the whole tensor.
/// Temporary: the parts once more.
[[nodiscard]] at::Tensor gather(const Trainer& trainer,
                                const LocatedPart& located,
                                const ir::TensorType& type);

}  // namespace shardplan::runtime
