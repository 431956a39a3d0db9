#pragma once

#include <string_view>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/types.h"
#include "shardplan/sharding/reshard.h"
#include "shardplan/support/ids.h"

namespace shardplan::cost {

/// One kernel on one device, in local shapes.
struct Kernel {
  std::string_view op;
  ir::DType dtype = ir::DType::kFloat32;  ///< of the arithmetic
  Flops flops = 0;
  Bytes bytes = 0;      ///< read and written
  bool matmul = false;  ///< runs on matrix units (einsum, attention)
};

/// Seconds of kernels and collectives on one cluster under one mesh. Immutable; cheap to copy.
class CostModel {
 public:
  CostModel(cluster::Cluster cluster, cluster::DeviceMesh mesh);

  /// Roofline: overhead + max(flops / (peak · efficiency), bytes / (bandwidth · efficiency)), or
  /// the measured curves where the cluster has them. Views cost nothing (callers do not ask).
  [[nodiscard]] Seconds kernel(const Kernel& kernel) const;

  /// A collective over the group spanned by `axes`. `bytes` is the size of the full tensor on one
  /// device: the gathered output of an all-gather, the unreduced input of a reduce-scatter or
  /// all-reduce, the local tensor of an all-to-all or permute. α–β cost of the best of ring, tree
  /// (recursive halving and doubling), and hierarchical algorithms on the link levels that the
  /// group crosses (Thakur, Rabenseifner, Gropp 2005); kSlice is a local copy.
  [[nodiscard]] Seconds collective(sharding::CollectiveKind kind,
                                   Bytes bytes,
                                   const std::vector<int>& axes) const;

  /// A step of a change of layout, for sharding::Resharder.
  [[nodiscard]] Seconds reshard_step(const sharding::ReshardStep& step,
                                     const ir::TensorType& type) const;

  [[nodiscard]] const cluster::Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const cluster::DeviceMesh& mesh() const { return mesh_; }

 private:
  cluster::Cluster cluster_;
  cluster::DeviceMesh mesh_;
};

}  // namespace shardplan::cost
