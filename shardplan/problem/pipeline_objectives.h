#pragma once

#include "shardplan/problem/published_objectives.h"

/// More of what publications minimise, of planners for pipelines with replicated stages; what
/// published_objectives.h says holds here too.
namespace shardplan::problem {

/// PipeDream (Narayanan et al., 2019): the slowest stage's time, of computation with the
/// synchronisation of replicas or of a transfer; stages of a hierarchy hold stages of the next
/// lower level. With a memory limit, the stashed weights and activations of each stage fit it.
[[nodiscard]] Result<double> pipedream_objective(const LayerGraph& graph,
                                                 const LayerMachines& machines,
                                                 const LayerPlan& plan,
                                                 const PublishedOptions& options);

/// DAPPLE (Fan et al., 2021): the latency of one batch of `machines.microbatches` microbatches,
/// with transfers as stages of their own, around the pivot stage. Each stage names its devices.
[[nodiscard]] Result<double> dapple_objective(const LayerGraph& graph,
                                              const LayerMachines& machines,
                                              const LayerPlan& plan,
                                              const PublishedOptions& options);

}  // namespace shardplan::problem
