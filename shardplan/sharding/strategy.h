#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ops/axis_map.h"
#include "shardplan/sharding/spec.h"

namespace shardplan::sharding {

/// One choice for one op: what each mesh axis does. Values >= 0 are op axes of its AxisMap, kNone
/// is "replicated: every device along the axis does the same", and kPartialBase - r is partial rule
/// r of the AxisMap.
struct Strategy {
  static constexpr std::int8_t kNone = -1;
  static constexpr std::int8_t kPartialBase = -2;

  std::array<std::int8_t, kMaxMeshAxes> axis{};  ///< one entry a mesh axis

  Strategy() { axis.fill(kNone); }
  [[nodiscard]] int at(int mesh_axis) const { return axis[static_cast<std::size_t>(mesh_axis)]; }
  void set(int mesh_axis, int choice) {
    axis[static_cast<std::size_t>(mesh_axis)] = static_cast<std::int8_t>(choice);
  }
  auto operator<=>(const Strategy&) const = default;
};

/// The layouts that a strategy needs of each operand and gives to each result.
struct OpLayouts {
  std::vector<ShardingSpec> inputs{};
  std::vector<ShardingSpec> results{};
};

/// Whether an op axis may be cut into so many parts: as spec.h: can_cut(), but evenly where a
/// merged dimension has a more minor axis, whose elements would lie elsewhere than in an uneven cut
/// of the merged dimension.
[[nodiscard]] bool can_cut_axis(const ops::AxisMap& map, int axis, std::int64_t parts);

/// Layouts of a strategy, or nothing when it is not possible:
/// - an op axis that does not exist, or that can_cut_axis() denies to the mesh axes that cut it
///   together;
/// - a merged dimension ("(h d)", in operands and results) where a minor op axis is cut although a
///   more major one is not fully cut (one element a shard) or of size 1;
/// - an op axis that cuts one operand twice;
/// - a partial rule that leaves out a result (its layout would be unknown).
/// Mesh axes on one op axis follow mesh order, those of a more major op axis of a merged dimension
/// come first. An op axis of role kSum, kLookup (kMax) makes the results without it partial sums
/// (maxima); a partial rule leaves all operands but its own replicated. O(operand dims · mesh
/// axes); allocates only the two vectors.
[[nodiscard]] std::optional<OpLayouts> layouts(const ops::AxisMap& map,
                                               const Strategy& strategy,
                                               const cluster::DeviceMesh& mesh);

/// Whether layouts() gives some; the error says which op axis, mesh axis or operand stands against
/// it.
[[nodiscard]] Status check_strategy(const ops::AxisMap& map,
                                    const Strategy& strategy,
                                    const cluster::DeviceMesh& mesh);

/// All possible strategies, in a fixed order (that of the choices kNone, op axes, partial rules;
/// the last mesh axis varies fastest), so the fully replicated one comes first. Mesh axes of size 1
/// stay kNone. Exponential in mesh axes: (op axes + partial rules + 1)^(mesh axes).
[[nodiscard]] std::vector<Strategy> enumerate_strategies(const ops::AxisMap& map,
                                                         const cluster::DeviceMesh& mesh);

/// "data=b tensor=n", "replicated" when nothing is sharded; partial rule r is "partial:r".
/// Precondition: the choices exist.
[[nodiscard]] std::string to_string(const Strategy& strategy,
                                    const ops::AxisMap& map,
                                    const cluster::DeviceMesh& mesh);
/// Inverse of to_string. Errors name the unknown mesh axis or op axis, with a suggestion. Does not
/// check that the strategy is possible.
[[nodiscard]] Result<Strategy> parse_strategy(std::string_view text,
                                              const ops::AxisMap& map,
                                              const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
