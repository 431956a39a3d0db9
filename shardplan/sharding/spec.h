#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/types.h"
#include "shardplan/support/result.h"

namespace shardplan::sharding {

inline constexpr int kMaxMeshAxes = 6;

/// How partial results over a mesh axis combine.
enum class Reduction : std::uint8_t { kSum, kMax };

/// How one tensor lies on a mesh: for every tensor dimension the mesh axes that cut it, major to
/// minor (first axis = outermost cut), plus the mesh axes over which the tensor is a partial sum
/// (or maximum). A cut need not be even, see part(). Mesh axes are indices into DeviceMesh::axes. A
/// mesh axis is used at most once; unused = replicated. A small value type: 12 bytes, compared and
/// hashed as such, never allocates but in the functions that return vectors.
///
/// Text form, for mesh axes named data and tensor: "[data, -, tensor]", two on one dimension
/// "[data·tensor, -]", partial sum "[-, -] + sum(tensor)", a scalar "[]".
class ShardingSpec {
 public:
  ShardingSpec() { where_.fill(kReplicated); }  ///< replicated

  /// Appends `mesh_axis` as the most minor cut of `dim`. Precondition: the axis is unused.
  void shard(int dim, int mesh_axis) {
    SHARDPLAN_CHECK(is_replicated(mesh_axis)) << "mesh axis " << mesh_axis << " is used twice";
    order_[index(mesh_axis)] = static_cast<std::int8_t>(count_of(dim));
    where_[index(mesh_axis)] = static_cast<std::int8_t>(dim);
  }
  /// Precondition: the axis is unused.
  void make_partial(int mesh_axis, Reduction reduction) {
    SHARDPLAN_CHECK(is_replicated(mesh_axis)) << "mesh axis " << mesh_axis << " is used twice";
    where_[index(mesh_axis)] = reduction == Reduction::kMax ? kPartialMax : kPartialSum;
  }
  /// Drops the axis from wherever it is; more minor axes of its dimension move up.
  void replicate(int mesh_axis);

  [[nodiscard]] bool is_replicated(int mesh_axis) const { return at(mesh_axis) == kReplicated; }
  [[nodiscard]] bool is_partial(int mesh_axis) const { return at(mesh_axis) <= kPartialSum; }
  [[nodiscard]] Reduction reduction(int mesh_axis) const {
    return at(mesh_axis) == kPartialMax ? Reduction::kMax : Reduction::kSum;
  }
  /// Dimension that the axis cuts, -1 when it cuts none.
  [[nodiscard]] int dim_of(int mesh_axis) const { return at(mesh_axis) >= 0 ? at(mesh_axis) : -1; }
  /// Number of mesh axes that cut `dim`.
  [[nodiscard]] int count_of(int dim) const {
    int count = 0;
    for (const std::int8_t where : where_) {
      count += where == dim ? 1 : 0;
    }
    return count;
  }
  /// The mesh axis at `position` (0 = most major) among those that cut `dim`; -1 past the end.
  [[nodiscard]] int axis_at(int dim, int position) const {
    for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
      if (at(axis) == dim && order_[index(axis)] == position) {
        return axis;
      }
    }
    return -1;
  }
  /// Mesh axes that cut `dim`, major to minor.
  [[nodiscard]] std::vector<int> axes_of(int dim) const;
  [[nodiscard]] std::vector<int> partial_axes() const;
  [[nodiscard]] bool fully_replicated() const { return *this == ShardingSpec{}; }
  [[nodiscard]] bool has_partial() const {
    for (const std::int8_t where : where_) {
      if (where <= kPartialSum) {
        return true;
      }
    }
    return false;
  }

  auto operator<=>(const ShardingSpec&) const = default;
  [[nodiscard]] std::uint64_t hash() const;

 private:
  static constexpr std::int8_t kReplicated = -1;
  static constexpr std::int8_t kPartialSum = -2;
  static constexpr std::int8_t kPartialMax = -3;
  [[nodiscard]] static std::size_t index(int axis) { return static_cast<std::size_t>(axis); }
  [[nodiscard]] std::int8_t at(int axis) const { return where_[index(axis)]; }

  std::array<std::int8_t, kMaxMeshAxes> where_{};  ///< tensor dimension, or one of the marks above
  std::array<std::int8_t, kMaxMeshAxes> order_{};  ///< position among the axes of that dimension
};

struct ShardingSpecHash {
  std::size_t operator()(const ShardingSpec& spec) const { return spec.hash(); }
};

// In this room a mesh has at most kMaxMeshAxes axes of positive size.

/// Number of parts that `dim` is cut into; 1 = whole. Does not allocate.
[[nodiscard]] std::int64_t shard_count(const ShardingSpec& spec,
                                       int dim,
                                       const cluster::DeviceMesh& mesh);
/// Number of parts that the whole tensor is cut into. Does not allocate.
[[nodiscard]] std::int64_t shard_count(const ShardingSpec& spec, const cluster::DeviceMesh& mesh);
/// Whether a dimension of this size may be cut into so many parts: evenly, or into parts less than
/// twice as large as even ones would be (sizes beyond half the parts).
[[nodiscard]] constexpr bool can_cut(std::int64_t size, std::int64_t parts) {
  return parts > 0 && (size % parts == 0 || parts < 2 * size);
}
/// Size of the largest of so many parts: the first.
[[nodiscard]] constexpr std::int64_t largest_part(std::int64_t size, std::int64_t parts) {
  return size / parts + (size % parts == 0 ? 0 : 1);
}
/// Whether every cut dimension exists and can_cut(). Does not allocate.
[[nodiscard]] bool fits(const ShardingSpec& spec,
                        const ir::Shape& shape,
                        const cluster::DeviceMesh& mesh);
/// Shape of the largest part, which rank 0 has. Precondition: fits().
[[nodiscard]] ir::Shape local_shape(const ShardingSpec& spec,
                                    const ir::Shape& shape,
                                    const cluster::DeviceMesh& mesh);
/// Bytes of the largest part. Precondition: fits(). Does not allocate.
[[nodiscard]] Bytes local_bytes(const ShardingSpec& spec,
                                const ir::TensorType& type,
                                const cluster::DeviceMesh& mesh);

/// A run of elements along one dimension.
struct Range {
  std::int64_t start = 0;
  std::int64_t size = 0;
  bool operator==(const Range&) const = default;
};
/// Part `number` of `whole` cut into `parts`: chunks of largest_part(), of which the last may be
/// smaller or empty.
[[nodiscard]] Range chunk(Range whole, std::int64_t parts, std::int64_t number);
/// The range of a rank along a dimension of `size` elements that `axes` cut, major to minor: the
/// chunk of the chunk of ..., so that the parts along the minor axes make up those along the major
/// ones.
[[nodiscard]] Range part(std::int64_t size,
                         const std::vector<int>& axes,
                         const cluster::DeviceMesh& mesh,
                         std::int64_t rank);
/// The range of a rank in every dimension.
[[nodiscard]] std::vector<Range> part(const ShardingSpec& spec,
                                      const ir::Shape& shape,
                                      const cluster::DeviceMesh& mesh,
                                      std::int64_t rank);
/// The sizes of that part: never more than local_shape().
[[nodiscard]] ir::Shape part_shape(const ShardingSpec& spec,
                                   const ir::Shape& shape,
                                   const cluster::DeviceMesh& mesh,
                                   std::int64_t rank);

[[nodiscard]] std::string to_string(const ShardingSpec& spec,
                                    std::size_t rank,
                                    const cluster::DeviceMesh& mesh);
/// Inverse of to_string ("*" is taken for "·" too); errors name the axis or the dimension. Does not
/// check that it fits() the tensor.
[[nodiscard]] Result<ShardingSpec> parse_spec(std::string_view text,
                                              std::size_t rank,
                                              const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
