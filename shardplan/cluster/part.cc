#include "shardplan/cluster/cluster.h"

namespace shardplan::cluster {
namespace {

Error does_not_fill(const Cluster& cluster, std::int64_t devices, const std::string& why) {
  return Error{ErrorCode::kInvalidInput,
               std::to_string(devices) + " devices are no part of " + cluster.name + ": " + why,
               "",
               {}};
}

/// "dgx-a100:2" for two whole boxes of dgx-a100:8, "4 of 8xA100-80GB" for what has no such name.
std::string part_name(const Cluster& whole, const Cluster& part) {
  const std::size_t colon = whole.name.rfind(':');
  if (colon != std::string::npos) {
    const std::string unit = whole.name.substr(0, colon + 1);
    std::string name = unit + std::to_string(part.levels.front().fanout);
    const Result<Cluster> preset = load_cluster(name);
    if (preset && preset->levels == part.levels) {
      return name;
    }
  }
  return std::to_string(part.device_count()) + " of " + whole.name;
}

}  // namespace

Result<Cluster> part_of(const Cluster& cluster, std::int64_t devices) {
  if (devices < 1 || devices > cluster.device_count()) {
    return does_not_fill(
        cluster, devices, "it has " + std::to_string(cluster.device_count()) + " devices");
  }
  if (devices == cluster.device_count()) {
    return cluster;
  }
  // Processes on one machine share its cores and memory: fewer of them are faster ones.
  const std::size_t colon = cluster.name.rfind(':');
  if (cluster.local && colon != std::string::npos) {
    const Result<Cluster> preset = load_cluster(cluster.name);
    if (preset && *preset == cluster) {
      return load_cluster(cluster.name.substr(0, colon + 1) + std::to_string(devices));
    }
  }
  Cluster part = cluster;
  std::int64_t rest = devices;
  for (auto level = part.levels.rbegin(); level != part.levels.rend(); ++level) {
    if (rest <= level->fanout) {
      level->fanout = rest;
      rest = 1;
      continue;
    }
    if (rest % level->fanout != 0) {
      return does_not_fill(
          cluster,
          devices,
          "they do not fill groups of " + std::to_string(level->fanout) + " on " + level->name);
    }
    rest /= level->fanout;
  }
  part.name = part_name(cluster, part);
  return part;
}

}  // namespace shardplan::cluster
