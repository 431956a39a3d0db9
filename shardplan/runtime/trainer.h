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
  /// In an order that is the same on all ranks.
  [[nodiscard]] virtual std::vector<LocatedPart> parameters() const = 0;
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

}  // namespace shardplan::runtime
