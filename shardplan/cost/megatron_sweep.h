#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/cost/megatron.h"
#include "shardplan/support/ids.h"
#include "shardplan/support/progress.h"
#include "shardplan/support/result.h"

/// Every Megatron-style configuration of a model on a cluster, with its memory. All that takes time
/// in a prediction depends on few of the integers: seconds and bytes of a layer on (tensor,
/// microbatch, sequence parallelism, recomputation), sending on (placement of the pipeline,
/// microbatch), gradients and update on (tensor, pipeline, data, split optimizer). These terms are
/// tabulated, each outside the loops that it does not depend on, so that a configuration in the
/// innermost loop costs some twenty multiplications and additions and no allocation:
///     seconds = (m + (p-1)/v) · (l/p · layer + v · exchange) + m · ends + after
///     bytes   = resident + in flight · l/p · layer + working + ends
/// with `layer`, `exchange`, `ends`, `after`, `resident`, `working` read from the tables.
namespace shardplan::cost {

struct MegatronSweepOptions {
  std::int64_t batch = 1;          ///< samples an iteration
  std::size_t keep = 10;           ///< best configurations to return
  std::int64_t most_tensor = 0;    ///< tensor-parallel ranks at most; 0 = no limit
  double memory = 0;               ///< bytes a device may hold; 0 = what it has
  bool overlap_gradients = false;  ///< as in MegatronConfig, for all
  MegatronSoftware software{};
  Control control{};  ///< asked for each (tensor, pipeline, data)
};

struct MegatronCandidate {
  MegatronConfig config{};
  Seconds seconds = 0;
  double bytes = 0;  ///< of the fullest device
};

struct MegatronSweep {
  std::int64_t examined = 0;  ///< configurations whose time and memory were computed
  std::int64_t fitting = 0;   ///< within the memory
  /// The fastest that fit, best first; equal times by fewer devices, then by fewer bytes.
  std::vector<MegatronCandidate> best{};
  MegatronCandidate smallest{};  ///< the fewest bytes of all that were examined
  bool interrupted = false;      ///< before all were examined
};

/// Examines every configuration that check_megatron accepts with at most the cluster's devices, but
/// for two that only repeat others: sequence parallelism on one tensor rank, and a split optimizer
/// on one replica. Deterministic. Errors: check_megatron(model, cluster), a batch below 1.
[[nodiscard]] Result<MegatronSweep> sweep_megatron(const MegatronModel& model,
                                                   const cluster::Cluster& cluster,
                                                   const MegatronSweepOptions& options);

/// The same sweep, showing every candidate, in the order in which they are examined.
[[nodiscard]] Result<MegatronSweep> sweep_megatron(
    const MegatronModel& model,
    const cluster::Cluster& cluster,
    const MegatronSweepOptions& options,
    const std::function<void(const MegatronCandidate&)>& show);

}  // namespace shardplan::cost
