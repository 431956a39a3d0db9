#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/cost/curve.h"
#include "shardplan/sharding/reshard.h"

namespace shardplan::cost {

/// Seconds of a message pattern with `bytes` payload: latency + per_byte · bytes.
struct Line {
  Seconds latency = 0;
  double per_byte = 0;  ///< seconds a byte
};

/// Seconds of one collective on one group as a function of the bytes: the measured stages, plus the
/// cheapest of the lines (each the sum over the stages that are not measured).
struct CollectivePrice {
  struct Measured {
    const Curve* curve = nullptr;
    double scale = 1;  ///< of the bytes
  };
  std::vector<Line> lines{};
  std::vector<Measured> measured{};

  [[nodiscard]] Seconds operator()(double bytes) const;
};

/// The part of a group on one link level.
struct GroupPart {
  std::size_t level = 0;  ///< index into Cluster::levels
  std::int64_t size = 1;  ///< members that the level joins, > 1
};

/// How the group spanned by the mesh axes in `axes_mask` lies on the link levels, innermost first;
/// the product of the sizes is the group's size. Every group of a mesh has the same structure. An
/// axis that is not aligned with the levels counts whole on the outermost level that it reaches:
/// never too fast. Example: levels 2 × 8, mesh 4 × 4, axes {0}: 2 on the inner, 2 on the outer
/// level.
[[nodiscard]] std::vector<GroupPart> group_parts(const cluster::Cluster& cluster,
                                                 const cluster::DeviceMesh& mesh,
                                                 std::uint32_t axes_mask);

/// Seconds of one message of so many bytes between two ranks over the outermost level of links that
/// it crosses: by the level's measured curve of a permutation, which is one message for each
/// device, else latency and bandwidth. Nothing from a rank to itself.
[[nodiscard]] Seconds message_seconds(const cluster::Cluster& cluster,
                                      Bytes bytes,
                                      std::int64_t from,
                                      std::int64_t to);

/// Curves of one level by collective name.
using LevelCurves = std::map<std::string, Curve, std::less<>>;

/// The measured curves of the cluster's link levels, one entry a level.
[[nodiscard]] std::vector<LevelCurves> level_curves(const cluster::Cluster& cluster);

/// Price of every collective on groups with these parts. `curves` (one entry a level) must outlive
/// the result. kSlice has no price here.
class CollectivePricer {
 public:
  CollectivePricer(const cluster::Cluster& cluster, const std::vector<LevelCurves>& curves)
      : cluster_(cluster), curves_(curves) {}

  [[nodiscard]] CollectivePrice price(sharding::CollectiveKind kind,
                                      const std::vector<GroupPart>& parts) const;

 private:
  void add_stage(CollectivePrice& price,
                 sharding::CollectiveKind kind,
                 const GroupPart& part,
                 double scale) const;
  [[nodiscard]] std::vector<Line> flat_lines(sharding::CollectiveKind kind,
                                             const std::vector<GroupPart>& parts) const;

  const cluster::Cluster& cluster_;
  const std::vector<LevelCurves>& curves_;
};

}  // namespace shardplan::cost
