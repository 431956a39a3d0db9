#pragma once

#include <map>
#include <string>
#include <vector>

#include "shardplan/problem/layer_graph.h"
#include "shardplan/problem/layer_plan.h"
#include "shardplan/support/result.h"

/// What publications minimise, computed anew from a plan by the formulas of the papers: shares no
/// code with the planners. Each checks that the plan is one that the publication allows (every
/// layer in one stage, its order, devices, memory) and returns an Error that names what is broken.
/// In the graph's unit of time. Linear time in the graph for each stage.
namespace shardplan::problem {

/// The options that a plan was asked with; empty = the defaults.
using PublishedOptions = std::map<std::string, std::string>;

/// The stage of each layer, when every layer is in one, by a choice that it has, and none runs
/// before what it needs.
[[nodiscard]] Result<std::vector<int>> stages_in_order(const LayerGraph& graph,
                                                       const LayerPlan& plan);

/// GPipe and torchgpipe: the largest sum of layer times of a stage, in a chain that is a
/// topological order of the graph. One device a stage; no transfers, no memory.
[[nodiscard]] Result<double> largest_block_objective(const LayerGraph& graph,
                                                     const LayerMachines& machines,
                                                     const LayerPlan& plan,
                                                     const PublishedOptions& options);

/// Piper (Tarnawski, Narayanan, Phanishayee, 2021): the largest time a microbatch of a stage in the
/// steady state of an asynchronous pipeline, data-parallel synchronisation and transfers included.
[[nodiscard]] Result<double> piper_objective(const LayerGraph& graph,
                                             const LayerMachines& machines,
                                             const LayerPlan& plan,
                                             const PublishedOptions& options);

/// DNN-partitioning (Tarnawski et al., 2020), throughput: the largest load of a device, its layers'
/// times and its transfers (an edge's transfer time; where there is none, the output's bytes by the
/// bandwidth, twice: one layer stands for both passes). With the option contiguous = "yes" (the
/// default) no path of forward layers leaves a device and comes back to it.
[[nodiscard]] Result<double> dnn_partitioning_objective(const LayerGraph& graph,
                                                        const LayerMachines& machines,
                                                        const LayerPlan& plan,
                                                        const PublishedOptions& options);

/// DNN-partitioning, latency of one query: when the last layer is done. A stage on an accelerator
/// is a subgraph, and names its device; those of one device run in the order of the plan. A
/// subgraph starts when all that it needs is in the host's memory, moves that in, runs, and moves
/// out what others need; layers on CPUs run as soon as they can.
[[nodiscard]] Result<double> dnn_partitioning_latency_objective(const LayerGraph& graph,
                                                                const LayerMachines& machines,
                                                                const LayerPlan& plan,
                                                                const PublishedOptions& options);

}  // namespace shardplan::problem
