#pragma once

#include <optional>
#include <vector>

#include "shardplan/ops/halo.h"
#include "shardplan/sharding/reshard.h"
#include "shardplan/sharding/strategy.h"

namespace shardplan::sharding {

// A halo belongs to an operand: `spec` is the operand's layout, whose mesh axes on halo.dim also
// cut the own rows of the op, in the same order.

/// The halos of the axes that these layouts cut.
[[nodiscard]] std::vector<ops::Halo> cut_halos(const ops::AxisMap& map, const OpLayouts& layouts);

/// What a rank computes along the axis of a halo, and what it needs for it.
[[nodiscard]] ops::CutWindow cut_window(const ops::Halo& halo,
                                        const ShardingSpec& spec,
                                        const cluster::DeviceMesh& mesh,
                                        std::int64_t rank);

/// Shape of the largest part of a tensor together with its halos (of one operand), which rank 0
/// has.
[[nodiscard]] ir::Shape widened_shape(const std::vector<ops::Halo>& halos,
                                      const ShardingSpec& spec,
                                      const ir::Shape& shape,
                                      const cluster::DeviceMesh& mesh);
/// Shape of a rank's part together with its halos.
[[nodiscard]] ir::Shape widened_part_shape(const std::vector<ops::Halo>& halos,
                                           const ShardingSpec& spec,
                                           const ir::Shape& shape,
                                           const cluster::DeviceMesh& mesh,
                                           std::int64_t rank);

/// The step that widens the part of operand `input` by its halos, one of `halos` at least; nothing
/// where every rank has just what it needs.
[[nodiscard]] std::optional<ReshardStep> halo_exchange(const std::vector<ops::Halo>& halos,
                                                       int input,
                                                       const ShardingSpec& spec,
                                                       const cluster::DeviceMesh& mesh);

/// The most that a rank takes part in, in an exchange of a tensor of `type`.
struct HaloTraffic {
  Bytes received = 0;
  Bytes packed = 0;  ///< received and sent
};
/// Linear in the group.
[[nodiscard]] HaloTraffic halo_traffic(const ReshardStep& step,
                                       const ir::TensorType& type,
                                       const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
