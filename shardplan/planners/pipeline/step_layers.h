#pragma once

#include <vector>

#include "shardplan/planners/pipeline/stage_plans.h"
#include "shardplan/problem/layer_graph.h"

namespace shardplan::planners {

/// A training step as the published planners of pipelines see a model, and where its layers are in
/// the step. `segments` has one for each layer.
struct StepLayers {
  problem::LayerGraph graph{};
  std::vector<Segment> segments{};
};

/// Segments each of which can be a stage: those without an op that some stage must have (masks,
/// positions, views of inputs) go to the next one, the last ones to the one before.
[[nodiscard]] std::vector<Segment> stage_segments(const ir::Graph& step,
                                                  const std::vector<Segment>& segments);

/// The layers of a step on a cluster: its blocks, or its ops where there are fewer blocks than
/// devices. All numbers are of one microbatch.
///
/// - Time: the kernels of the layer's forward and backward ops by the cost model.
/// - Edges: what training::split_into_stages would send forward between the two layers.
/// - Degree t (powers of 2 that divide the devices; 1 only where nothing is like Megatron's
///   products): ops with an axis that tensor or sequence parallelism cuts take 1/t of the time
///   above their launch; a product that contracts a cut axis adds an all-reduce of its result
///   forward and one backward, over t neighbours. Bytes are 1/t.
/// - Recomputation, where layers are blocks: the forward pass again; a microbatch in flight leaves
///   what the layer receives, and all else is there once. Layers outside of blocks never recompute
///   and have the plain numbers under that name as well.
/// - Constant bytes: weights, their gradients, optimizer state. In flight: what the backward pass
///   reads of the forward pass.
/// - Defaults: the devices, the request's memory limit, the bandwidth of the outermost links, the
///   step's microbatches.
///
/// Errors: those of training::split_into_stages, a buffer that layers share among them.
/// O(graph · layers).
[[nodiscard]] Result<StepLayers> layers_of(const PlanRequest& request);

/// The name of the choice with recomputation.
inline constexpr std::string_view kRecomputed = "recomputed";

/// What methods that know several levels of machines are told: the levels with more than one
/// member, from the innermost out, and the bandwidth within each.
struct MachineLevels {
  std::vector<int> sizes{};
  std::vector<double> bandwidths{};
};
[[nodiscard]] MachineLevels machine_levels(const cluster::Cluster& cluster);

}  // namespace shardplan::planners
