#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/ops/halo.h"
#include "shardplan/sharding/spec.h"

namespace shardplan::sharding {

enum class CollectiveKind : std::uint8_t {
  kSlice,              ///< local: each device keeps its part of `dim`; no communication
  kAllGather,          ///< concatenates the parts along `dim`
  kReduceScatter,      ///< reduces partial values, each device keeps its part of `dim`
  kAllReduce,          ///< reduces partial values on all devices
  kAllToAll,           ///< splits `split_dim`, concatenates along `dim`
  kCollectivePermute,  ///< each device sends its part to one other (change of axis order)
  kHaloExchange,       ///< each device gets the rows that windows need beside its part (halo.h); a
                       ///< step of an op and of no change of layout
};

/// "all_gather", ...
[[nodiscard]] std::string_view collective_name(CollectiveKind kind);

/// One step of a change of layout. `axes` (mesh axes, major to minor) span the group: its members
/// are in the order of DeviceMesh::group(rank, axes), and member i holds, receives or reduces part
/// i. In an all-gather the axes are the most minor cuts of `dim`; in an all-to-all they leave the
/// minor end of `dim` and join the minor end of `split_dim` in the same order; in a reduce-scatter
/// and a slice they join the minor end of `dim`. An all-reduce has its axes in mesh order, and so
/// has a permute, whose axes are those whose coordinate means another part afterwards, and a halo
/// exchange, whose axes are those that cut the dimensions of its halos.
struct ReshardStep {
  CollectiveKind kind = CollectiveKind::kSlice;
  std::vector<int> axes{};
  int dim = -1;
  int split_dim = -1;
  Reduction reduction = Reduction::kSum;
  ShardingSpec from{};
  ShardingSpec to{};
  std::vector<ops::Halo> halos{};  ///< kHaloExchange: of the tensor, one a dimension at most
  bool operator==(const ReshardStep&) const = default;
};

struct ReshardPath {
  std::vector<ReshardStep> steps{};
  double price = 0;      ///< sum of the prices of the steps
  Bytes temporary = 0;   ///< largest sum of local bytes of input and output over the steps, minus
                         ///< those of the path's own input and output where they take part
  bool possible = true;  ///< false: no path (for example from replicated to partial)
};

/// What a path costs, without its steps.
struct ReshardCost {
  double price = 0;      ///< infinite when not possible
  Bytes temporary = 0;   ///< as in ReshardPath
  bool possible = true;  ///< as in ReshardPath
};

/// Price of one step for a tensor of `type`, in any unit (seconds in practice). Not negative, not
/// NaN; infinite forbids the step.
using StepPrice = std::function<double(const ReshardStep& step, const ir::TensorType& type)>;

/// Finds cheapest changes of layout by Dijkstra's algorithm over layouts, exactly, and remembers
/// them. Layouts on the way, the ends included, fit the tensor (spec.h: fits). Several mesh axes
/// may move in one collective (see one_step_reshards). Never throws away a partial sum. Of equally
/// cheap paths one with the fewest steps. Not thread-safe; pointers into it stay valid.
///
/// Cost: the first question about a source layout and a type runs the search as far as the target,
/// and each step is priced once for each type; asking again is two hash lookups. Steps are made
/// once for all types that the mesh cuts alike.
class Resharder {
 public:
  Resharder(cluster::DeviceMesh mesh, StepPrice price);
  ~Resharder();
  Resharder(Resharder&&) noexcept;
  Resharder& operator=(Resharder&&) noexcept;

  [[nodiscard]] const ReshardPath& path(const ShardingSpec& from,
                                        const ShardingSpec& to,
                                        const ir::TensorType& type);
  /// The same search without building the steps: for tables of many pairs.
  [[nodiscard]] ReshardCost cost(const ShardingSpec& from,
                                 const ShardingSpec& to,
                                 const ir::TensorType& type);
  /// The price alone, infinite when there is no path: for many questions about one type.
  [[nodiscard]] double price(const ShardingSpec& from,
                             const ShardingSpec& to,
                             const ir::TensorType& type);
  /// Prices of all pairs, by source and target, infinite where there is no path: for whole tables.
  /// The sources that are new are searched from together, with vectors of prices.
  [[nodiscard]] std::vector<double> prices(std::span<const ShardingSpec> from,
                                           std::span<const ShardingSpec> to,
                                           const ir::TensorType& type);
  /// Drops all that is remembered, and its memory; references to paths end here.
  void forget();
  [[nodiscard]] const cluster::DeviceMesh& mesh() const;

 private:
  class Search;     // everything known about one tensor type
  class StepGraph;  // steps, shared by types that the mesh cuts alike
  struct Context;   // mesh and price, shared by the searches
  struct TypeHash {
    std::size_t operator()(const ir::TensorType& type) const;
  };
  [[nodiscard]] Search& search(const ir::TensorType& type);

  std::unique_ptr<Context> context_;
  std::map<std::vector<std::int64_t>, std::unique_ptr<StepGraph>> graphs_;
  std::unordered_map<ir::TensorType, std::unique_ptr<Search>, TypeHash> searches_;
};

/// Every single step that leads from `spec` to another layout that fits the tensor: any set and
/// order of mesh axes that the kind allows. Partial maxima can only be all-reduced. A permute leads
/// to every layout with the same parts and the same partial axes. Fixed order.
[[nodiscard]] std::vector<ReshardStep> one_step_reshards(const ShardingSpec& spec,
                                                         const ir::TensorType& type,
                                                         const cluster::DeviceMesh& mesh);

/// For every rank, the rank from which it gets its part in a permute (itself, where it already has
/// it): a permutation within each group of step.axes. Precondition: step.kind is
/// kCollectivePermute.
[[nodiscard]] std::vector<std::int64_t> permute_sources(const ReshardStep& step,
                                                        const cluster::DeviceMesh& mesh);

}  // namespace shardplan::sharding
