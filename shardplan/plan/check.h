#pragma once

#include "shardplan/plan/plan.h"

// The parts of check() that reading a file needs one by one.
namespace shardplan::plan {

/// At most kMaxMeshAxes axes with distinct, writable names and positive sizes whose product is the
/// number of devices.
[[nodiscard]] Status check_mesh(const cluster::DeviceMesh& mesh, const cluster::Cluster& cluster);

/// Whether the plan was made for this training step.
[[nodiscard]] Status check_graph_hash(const Plan& plan, const ir::Graph& step);

}  // namespace shardplan::plan
