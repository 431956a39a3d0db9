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

/// Merak (Lai et al., 2023): the time of 1F1B over twice as many microbatches as stages, without
/// transfers.
[[nodiscard]] Result<double> merak_objective(const LayerGraph& graph,
                                             const LayerMachines& machines,
                                             const LayerPlan& plan,
                                             const PublishedOptions& options);

/// DistIR (Santhanam et al., 2021): the time of one batch by 1F1B in each of plan.pipelines copies,
/// with transfers beside computation and the sum of gradients over the copies at the end.
[[nodiscard]] Result<double> distir_objective(const LayerGraph& graph,
                                              const LayerMachines& machines,
                                              const LayerPlan& plan,
                                              const PublishedOptions& options);

/// Chimera (Li and Hoefler, 2021): the time of one batch by pipelines in both directions in each of
/// plan.pipelines copies, with each stage's sum of gradients from its last backward pass on.
/// plan.schedule is "chimera:concatenation", "chimera:doubling" or "chimera:halving".
[[nodiscard]] Result<double> chimera_objective(const LayerGraph& graph,
                                               const LayerMachines& machines,
                                               const LayerPlan& plan,
                                               const PublishedOptions& options);

/// Alpa (Zheng et al., 2022): sum of stage times + (microbatches - 1) x the largest, of stages on
/// submeshes that together are all devices: a power of two within a host, or whole hosts.
[[nodiscard]] Result<double> alpa_objective(const LayerGraph& graph,
                                            const LayerMachines& machines,
                                            const LayerPlan& plan,
                                            const PublishedOptions& options);

/// vPipe (Zhao et al., 2021): the slowest stage's time, with what swapping and recomputing add;
/// each stage's weights and activations fit the memory, with as many microbatches in flight as
/// stages remain.
[[nodiscard]] Result<double> vpipe_objective(const LayerGraph& graph,
                                             const LayerMachines& machines,
                                             const LayerPlan& plan,
                                             const PublishedOptions& options);

}  // namespace shardplan::problem
