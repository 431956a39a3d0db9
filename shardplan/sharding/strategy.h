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

/// Layouts of a strategy, or nothing when it is not possible: an op axis not divisible, a minor
/// part of a merged dimension cut before the major one, two mesh axes in conflict. Mesh axes on one
/// dimension follow mesh order within an op axis.
[[nodiscard]] std::optional<OpLayouts> layouts(const ops::AxisMap& map,
                                               const Strategy& strategy,
                                               const cluster::DeviceMesh& mesh);

/// All possible strategies, in a fixed order, the fully replicated one first. Exponential in mesh
/// axes: (op axes + partial rules + 1)^(mesh axes).
[[nodiscard]] std::vector<Strategy> enumerate_strategies(const ops::AxisMap& map,
                                                         const cluster::DeviceMesh& mesh);

/// "data=b tensor=n", "replicated" when nothing is sharded; partial rule r is "partial:r".
[[nodiscard]] std::string to_string(const Strategy& strategy,
                                    const ops::AxisMap& map,
                                    const cluster::DeviceMesh& mesh);
[[nodiscard]] Result<Strategy> parse_strategy(std::string_view text,
                                              const ops::AxisMap& map,
                                              const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
