#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/types.h"
#include "shardplan/ops/halo.h"

namespace shardplan::ops {

/// What happens to the results when an axis is sharded over a mesh axis.
enum class AxisRole : std::uint8_t {
  kFree,    ///< the axis is in the results: each shard computes its own part
  kSum,     ///< contracted: every result without the axis becomes a partial sum
  kMax,     ///< reduced by maximum: every result without the axis becomes a partial maximum
  kLookup,  ///< indexed by an integer operand (rows of an embedding): partial sum, and the kernel
            ///< needs the global start of its shard
};

struct Axis {
  std::string name{};
  std::int64_t size = 0;
  AxisRole role = AxisRole::kFree;
  /// The kernel needs the global start and size of this axis when it is sharded (always for
  /// kLookup; for dropout and label lookups, whose result depends on the global index).
  bool positional = false;
};

/// "If every input in `inputs` is a partial sum over a mesh axis (all others replicated over it),
/// every result in `results` is": the op is linear in those inputs together.
struct PartialRule {
  std::vector<int> inputs{};
  std::vector<int> results{};
};

/// The op axes of each dimension, major to minor. No axis at all: the dimension is needed whole (or
/// has size 1, broadcast). Several: a merged dimension of a reshape, "(h d)".
using DimAxes = std::vector<std::vector<int>>;

/// The einsum-like naming of the dimensions of an op's operands and results, from which strategies,
/// local shapes, collectives and gradients' layouts are derived. An axis may be sharded by a mesh
/// axis if its size is divisible, or unevenly where no merged dimension has a more minor axis; and
/// in a merged dimension only once all more-major axes there are fully sharded (one element a
/// shard) or have size 1.
struct AxisMap {
  std::vector<Axis> axes{};
  std::vector<DimAxes> inputs{};
  std::vector<DimAxes> results{};
  std::vector<PartialRule> partials{};
  /// Of the axes along which windows slide. Their dimensions may differ in size from tensor to
  /// tensor; every tensor is cut into parts of its own dimension.
  std::vector<Halo> halos{};

  [[nodiscard]] int find(std::string_view axis) const;  ///< -1 when there is none
  /// The smallest of the dimensions that the axis is: what must be large enough to be cut. 1 where
  /// a dimension merges it with one along which a window slides: it stays whole.
  [[nodiscard]] std::int64_t least_size(int axis) const;
};

/// Builds an AxisMap from text and the operand and result types that give the axis sizes.
///
///   "b m k, k n -> b m n"      k is in no result: kSum
///   "(a b) c -> a (b c)"       merged dimensions (sizes of single axes must be inferable from the
///                              other places where they occur)
///   "b s [v] -> b s"           [v]: needed whole
///   "b * -> b *"               *: needed whole, of any size in each place
///   "?v d, b s -> b s d"       ?v: kLookup (positional)
///   "n ^v -> n"                ^v: kMax
///   "@b @s -> b s"             @b: positional
///   "+b d -> b d, d"           +b: kSum although the first result has it (the second is partial)
///   "n ~h -> n ~h"             ~h: a window slides along h, whose dimensions may differ in size
///                              (none of them 1): add_halo() says how
///   "" between commas          a scalar
///
/// A marker is written at one occurrence of the axis. Dimensions whose size is 1 lose their axis,
/// and axes that then have no place left, or size 1, are dropped.
/// SHARDPLAN_CHECKs that the text fits the types: it is written by op definitions, not by users.
[[nodiscard]] AxisMap make_axis_map(std::string_view text,
                                    std::span<const ir::TensorType> inputs,
                                    std::span<const ir::TensorType> results,
                                    std::vector<PartialRule> partials = {});

/// Says how the window slides along an axis that make_axis_map was given with "~"; the axis and its
/// size are set here.
void add_halo(AxisMap& map, std::string_view axis, Halo halo);

/// The map of a broadcasting elementwise op: dimensions aligned at the right, one free axis for
/// each result dimension; operand dimensions that are missing or of size 1 have none. All inputs
/// and results of equal broadcast shape.
[[nodiscard]] AxisMap elementwise_axis_map(std::span<const ir::TensorType> inputs,
                                           std::span<const ir::TensorType> results,
                                           std::vector<PartialRule> partials = {});

/// The map of a reshape: the finest common factorisation of both shapes.
/// [8, 1024, 768] -> [8192, 12, 64] gives "a b (h d) -> (a b) h d".
[[nodiscard]] AxisMap reshape_axis_map(const ir::TensorType& input, const ir::TensorType& result);

/// Readable form, "b m k, k n -> b m n", with the markers of make_axis_map; "*" is a dimension
/// without an axis.
[[nodiscard]] std::string to_string(const AxisMap& map);

}  // namespace shardplan::ops
