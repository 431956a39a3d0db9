#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/types.h"
#include "shardplan/ops/op.h"
#include "shardplan/sharding/reshard.h"
#include "shardplan/support/ids.h"

namespace shardplan::cost {

/// One kernel on one device, in local shapes.
struct Kernel {
  std::string_view op;
  ir::DType dtype = ir::DType::kFloat32;  ///< of the arithmetic
  Flops flops = 0;
  Bytes bytes = 0;      ///< read and written
  bool matmul = false;  ///< runs on matrix units, see ops::OpDef
};

/// The kernel of an op in local shapes. Its arithmetic has the dtype of the first floating operand,
/// or of the first result where no operand is floating.
[[nodiscard]] Kernel kernel_of(const ops::OpDef& op,
                               std::span<const ir::TensorType> inputs,
                               std::span<const ir::TensorType> results,
                               Flops flops,
                               Bytes bytes);

/// Seconds of kernels and collectives on one cluster under one mesh. Immutable; cheap to copy (a
/// shared pointer); every call takes constant time and allocates nothing. More bytes or FLOPs never
/// cost less, and a faster device or link never costs more. docs/models.md has the formulas.
class CostModel {
 public:
  /// Precondition: at most sharding::kMaxMeshAxes axes. A mesh smaller than the cluster uses its
  /// first devices.
  CostModel(cluster::Cluster cluster, cluster::DeviceMesh mesh);

  /// Roofline: overhead + max(flops / (peak · efficiency), bytes / (bandwidth · efficiency)), or
  /// the measured curves where the cluster has them (of the op itself first). Views cost nothing
  /// (callers do not ask). A dtype without a rate runs at the fp32 rate (fp64: too), else at the
  /// slowest rate given.
  [[nodiscard]] Seconds kernel(const Kernel& kernel) const;

  /// A collective over the group spanned by `axes`. `bytes` is the size of the full tensor on one
  /// device: the gathered output of an all-gather, the unreduced input of a reduce-scatter or
  /// all-reduce, the local tensor of an all-to-all or permute, the output of a slice, the rows that
  /// a device receives in a halo exchange (priced as a permute of them). α–β cost of the best of
  /// ring, tree (recursive halving and doubling), and hierarchical algorithms on the link levels
  /// that the group crosses (Thakur, Rabenseifner, Gropp 2005); kSlice is a local copy. Groups of
  /// one device cost nothing. Example: all-reduce of B bytes over 8 devices of one level: 6 α + 7/4
  /// B / bandwidth.
  [[nodiscard]] Seconds collective(sharding::CollectiveKind kind,
                                   Bytes bytes,
                                   const std::vector<int>& axes) const;

  /// A step of a change of layout, for sharding::Resharder, or a halo exchange: the collective, and
  /// the local copies that it needs (the runtime keeps the input, and packs parts that do not lie
  /// one after the other in memory).
  [[nodiscard]] Seconds reshard_step(const sharding::ReshardStep& step,
                                     const ir::TensorType& type) const;

  [[nodiscard]] const cluster::Cluster& cluster() const;
  [[nodiscard]] const cluster::DeviceMesh& mesh() const;

 private:
  [[nodiscard]] Seconds halo_exchange(const sharding::ReshardStep& step,
                                      const ir::TensorType& type) const;
  [[nodiscard]] double measured_copies(const sharding::ReshardStep& step) const;

  struct Tables;
  std::shared_ptr<const Tables> tables_;
};

/// The model's prices of changes of layout, for lowering; keeps a copy of it.
[[nodiscard]] sharding::StepPrice step_price(const CostModel& cost);

}  // namespace shardplan::cost
