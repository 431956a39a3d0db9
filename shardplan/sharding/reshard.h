#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/sharding/spec.h"

namespace shardplan::sharding {

enum class CollectiveKind : std::uint8_t {
  kSlice,              ///< local: each device keeps its part of `dim`; no communication
  kAllGather,          ///< concatenates the parts along `dim`
  kReduceScatter,      ///< reduces partial values, each device keeps its part of `dim`
  kAllReduce,          ///< reduces partial values on all devices
  kAllToAll,           ///< splits `split_dim`, concatenates along `dim`
  kCollectivePermute,  ///< each device sends its part to one other (change of axis order)
};

/// "all_gather", ...
[[nodiscard]] std::string_view collective_name(CollectiveKind kind);

/// One step of a change of layout. `axes` (mesh axes, major to minor) span the group. In an
/// all-gather the axes are the most minor cuts of `dim`; in an all-to-all they leave the minor end
/// of `dim` and join the minor end of `split_dim`; in a reduce-scatter and a slice they join the
/// minor end of `dim`.
struct ReshardStep {
  CollectiveKind kind = CollectiveKind::kSlice;
  std::vector<int> axes{};
  int dim = -1;
  int split_dim = -1;
  Reduction reduction = Reduction::kSum;
  ShardingSpec from{};
  ShardingSpec to{};
};

struct ReshardPath {
  std::vector<ReshardStep> steps{};
  double price = 0;      ///< sum of the prices of the steps
  Bytes temporary = 0;   ///< largest sum of local bytes of input and output over the steps, minus
                         ///< those of the path's own input and output where they take part
  bool possible = true;  ///< false: no path (for example from replicated to partial)
};

/// Price of one step for a tensor of `type`, in any unit (seconds in practice).
using StepPrice = std::function<double(const ReshardStep& step, const ir::TensorType& type)>;

/// Finds cheapest changes of layout by Dijkstra's algorithm over layouts, and remembers them.
/// Layouts reached on the way have every cut dimension divisible. Several mesh axes may move in one
/// collective. Never throws away a partial sum. Not thread-safe.
class Resharder {
 public:
  Resharder(cluster::DeviceMesh mesh, StepPrice price);

  [[nodiscard]] const ReshardPath& path(const ShardingSpec& from,
                                        const ShardingSpec& to,
                                        const ir::TensorType& type);
  [[nodiscard]] const cluster::DeviceMesh& mesh() const { return mesh_; }

 private:
  struct Key {
    ShardingSpec from, to;
    ir::Shape shape;
    ir::DType dtype;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  cluster::DeviceMesh mesh_;
  StepPrice price_;
  std::unordered_map<Key, ReshardPath, KeyHash> memo_;
};

/// Every single step that leads from `spec` to another layout of the tensor.
[[nodiscard]] std::vector<ReshardStep> one_step_reshards(const ShardingSpec& spec,
                                                         const ir::TensorType& type,
                                                         const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
