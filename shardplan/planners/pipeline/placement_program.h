#pragma once

#include <vector>

#include "shardplan/planners/pipeline/placement_groups.h"
#include "shardplan/solvers/mixed_program.h"

namespace shardplan::planners {

/// What the integer programs of DNN-partitioning (2020) share: binaries x[g,m], group g is on
/// device m.
struct PlacementColumns {
  int first = 0;    ///< of the binaries; group by group
  int devices = 0;  ///< binaries of a group

  [[nodiscard]] int operator()(int group, int device) const {
    return first + group * devices + device;
  }
};

/// For each layer that sends something: the groups, other than its own, that receive it.
[[nodiscard]] std::vector<std::vector<int>> receivers_of(const problem::LayerGraph& graph,
                                                         const PlacementGroups& groups);

/// Keeps contiguous what is on a device, by columns z[g] that say that g or something behind it is
/// on the device; they fall along edges, and are 0 on what follows its groups outside of it:
///
///   z[v] >= x[v],   z[v] <= z[u],   z[v] <= x[v] - x[u] + 1   for each edge (u,v)
void add_contiguity(const PlacementGroups& groups,
                    const PlacementColumns& x,
                    int device,
                    solvers::MixedProgram& program);

}  // namespace shardplan::planners
