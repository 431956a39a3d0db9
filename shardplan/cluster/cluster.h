#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/ids.h"
#include "shardplan/support/result.h"

namespace shardplan::cluster {

/// One point of a measured curve: a size (bytes, or floating-point operations) and the seconds it
/// took.
struct CurvePoint {
  double size = 0;
  Seconds seconds = 0;
  bool operator==(const CurvePoint&) const = default;
};

/// One accelerator (or one local process). Keys of the maps are dtype names ("f32", "bf16", ...).
struct Device {
  std::string name{};
  Bytes memory = 0;
  std::map<std::string, double> peak_flops{};  ///< FLOP/s of dense matrix products by dtype
  double memory_bandwidth = 0;                 ///< bytes/s
  double matmul_efficiency = 0.8;              ///< reachable part of peak_flops for large products
  double memory_efficiency = 0.8;              ///< reachable part of memory_bandwidth
  Seconds kernel_overhead = 5e-6;              ///< launch or dispatch cost of one kernel
  /// Measured (probe): seconds of square matrix products by FLOPs, by dtype. Empty = roofline.
  std::map<std::string, std::vector<CurvePoint>> matmul_curve{};
  /// Measured (probe): seconds of memory-bound ops by bytes moved. Empty = roofline.
  std::vector<CurvePoint> memory_curve{};
  /// Measured (probe): seconds of one kind of op, by its name, by the bytes that it reads and
  /// writes; of attention and other ops of matrix products by FLOPs. Ops without a curve follow the
  /// two above.
  std::map<std::string, std::vector<CurvePoint>> kernel_curves{};
  bool operator==(const Device&) const = default;
};

/// One level of the hierarchy: `fanout` children joined by links of this kind.
struct LinkLevel {
  std::string name{};       ///< "NVLink", "InfiniBand", "loopback"
  std::int64_t fanout = 1;  ///< children a group at this level joins
  double bandwidth = 0;     ///< bytes/s a direction that one device gets when all use the level
  Seconds latency = 0;      ///< alpha of one message
  /// Measured (probe): by collective name, seconds by the bytes of the full (gathered, reduced)
  /// tensor, over all devices of the level. Empty = alpha-beta formulas.
  std::map<std::string, std::vector<CurvePoint>> collective_curves{};
  double efficiency = 1.0;  ///< reachable part of bandwidth
  bool operator==(const LinkLevel&) const = default;
};

/// A homogeneous cluster: devices are the leaves of a tree with `levels`, outermost first. Device
/// ranks are row-major over the levels, so ranks that differ only in the last index share the
/// innermost links.
struct Cluster {
  std::string name{};
  Device device{};
  std::vector<LinkLevel> levels{};
  bool local = false;  ///< processes on this machine (preset local:N)

  [[nodiscard]] std::int64_t device_count() const;
  bool operator==(const Cluster&) const = default;
};

/// One named dimension of a logical device grid.
struct MeshAxis {
  std::string name{};
  std::int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// A logical grid over the devices of a cluster; ranks are row-major over the axes (the last axis
/// varies fastest, so it sits on the innermost links).
struct DeviceMesh {
  std::vector<MeshAxis> axes{};

  [[nodiscard]] std::int64_t size() const;
  /// Distance in ranks between neighbours along the axis.
  [[nodiscard]] std::int64_t stride(std::size_t axis) const;
  /// Position of `rank` along the axis.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank, std::size_t axis) const;
  /// Ranks that differ from `rank` only along `axes` (a list of axis indices, major to minor), in
  /// the order of their coordinates along these axes.
  [[nodiscard]] std::vector<std::int64_t> group(std::int64_t rank,
                                                const std::vector<int>& axes) const;
  bool operator==(const DeviceMesh&) const = default;
};

/// "data 2 × tensor 4".
[[nodiscard]] std::string to_string(const DeviceMesh& mesh);

struct Preset {
  std::string form{};  ///< "dgx-a100:N"
  std::string summary{};
};
[[nodiscard]] std::vector<Preset> presets();

/// A preset ("8xA100-80GB", "dgx-a100:2", "dgx-h100:4", "p3.16xlarge:2", "pairs8", "local:4") or a
/// path to a YAML file; unknown names get a suggestion.
[[nodiscard]] Result<Cluster> load_cluster(const std::string& name_or_path);
[[nodiscard]] Result<Cluster> parse_cluster_yaml(std::string_view text, const std::string& where);
[[nodiscard]] std::string to_yaml(const Cluster& cluster);

/// The first `devices` devices of a cluster, which fill whole groups of its inner levels before a
/// second group is begun: 4 of 8xA100-80GB are half a box, 16 of dgx-a100:8 are two boxes. Of
/// local:N the preset with fewer processes, which have more of the machine each. Errors: more
/// devices than there are, groups that are not full (12 of dgx-a100:2).
[[nodiscard]] Result<Cluster> part_of(const Cluster& cluster, std::int64_t devices);

/// All ordered factorisations of the device count into at most `max_axes` axes of size > 1, such
/// that no axis straddles a level partly where it could lie within one. One mesh without axes for a
/// single device. Sorted, deterministic. Axes are named "m0", "m1", ... outermost first.
[[nodiscard]] std::vector<DeviceMesh> enumerate_meshes(const Cluster& cluster, int max_axes);

}  // namespace shardplan::cluster
