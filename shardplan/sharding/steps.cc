#include "shardplan/sharding/steps.h"

#include <algorithm>

namespace shardplan::sharding {
namespace {

/// Enumerates the steps from one layout. Each function fills `step_` for one kind and emits it for
/// every dimension, set and order of axes that the kind allows.
class StepGenerator {
 public:
  StepGenerator(const ShardingSpec& spec,
                const ir::Shape& shape,
                const cluster::DeviceMesh& mesh,
                const std::function<void(const ReshardStep&)>& visit)
      : spec_(spec),
        shape_(shape),
        mesh_(mesh),
        visit_(visit),
        rank_(static_cast<int>(shape.size())),
        axis_count_(static_cast<int>(mesh.axes.size())) {
    step_.from = spec;
  }

  void run() {
    for (int dim = 0; dim < rank_; ++dim) {
      gathers(dim);
      begin(CollectiveKind::kSlice, dim);
      appends(spec_, shard_count(spec_, dim, mesh_));
      begin(CollectiveKind::kReduceScatter, dim);
      appends(spec_, shard_count(spec_, dim, mesh_));
      for (int split_dim = 0; split_dim < rank_; ++split_dim) {
        if (split_dim != dim) {
          all_to_alls(dim, split_dim);
        }
      }
    }
    all_reduces(Reduction::kSum);
    all_reduces(Reduction::kMax);
    permutes();
  }

 private:
  [[nodiscard]] std::int64_t size(int axis) const {
    return mesh_.axes[static_cast<std::size_t>(axis)].size;
  }
  [[nodiscard]] bool can_have(int dim, std::int64_t parts) const {
    return can_cut(shape_[static_cast<std::size_t>(dim)], parts);
  }

  void begin(CollectiveKind kind, int dim, int split_dim = -1) {
    step_.kind = kind;
    step_.axes.clear();
    step_.dim = dim;
    step_.split_dim = split_dim;
    step_.reduction = Reduction::kSum;
  }
  void emit(const ShardingSpec& to) {
    step_.to = to;
    visit_(step_);
  }

  void gathers(int dim) {
    begin(CollectiveKind::kAllGather, dim);
    ShardingSpec to = spec_;
    for (int position = spec_.count_of(dim) - 1; position >= 0; --position) {
      const int axis = spec_.axis_at(dim, position);
      to.replicate(axis);
      step_.axes.insert(step_.axes.begin(), axis);
      emit(to);
    }
  }

  /// Slices and reduce-scatters: every sequence of unused (partial sum) axes that can cut the
  /// dimension further; `parts`: into which it is cut already.
  void appends(const ShardingSpec& reached, std::int64_t parts) {
    const bool scatter = step_.kind == CollectiveKind::kReduceScatter;
    for (int axis = 0; axis < axis_count_; ++axis) {
      const bool free = scatter
                            ? reached.is_partial(axis) && reached.reduction(axis) == Reduction::kSum
                            : reached.is_replicated(axis);
      if (!free || !can_have(step_.dim, parts * size(axis))) {
        continue;
      }
      ShardingSpec to = reached;
      to.replicate(axis);
      to.shard(step_.dim, axis);
      step_.axes.push_back(axis);
      emit(to);
      appends(to, parts * size(axis));
      step_.axes.pop_back();
    }
  }

  void all_to_alls(int dim, int split_dim) {
    begin(CollectiveKind::kAllToAll, dim, split_dim);
    ShardingSpec without = spec_;
    std::int64_t parts = shard_count(spec_, split_dim, mesh_);
    for (int position = spec_.count_of(dim) - 1; position >= 0; --position) {
      const int axis = spec_.axis_at(dim, position);
      without.replicate(axis);
      step_.axes.insert(step_.axes.begin(), axis);
      parts *= size(axis);
      if (!can_have(split_dim, parts)) {
        return;
      }
      ShardingSpec to = without;
      for (const int moved : step_.axes) {
        to.shard(split_dim, moved);
      }
      emit(to);
    }
  }

  void all_reduces(Reduction reduction) {
    begin(CollectiveKind::kAllReduce, -1);
    step_.reduction = reduction;
    reduce_subsets(spec_, 0);
  }
  void reduce_subsets(const ShardingSpec& reached, int first) {
    for (int axis = first; axis < axis_count_; ++axis) {
      if (!reached.is_partial(axis) || reached.reduction(axis) != step_.reduction) {
        continue;
      }
      ShardingSpec to = reached;
      to.replicate(axis);
      step_.axes.push_back(axis);
      emit(to);
      reduce_subsets(to, axis + 1);
      step_.axes.pop_back();
    }
  }

  void permutes() {
    begin(CollectiveKind::kCollectivePermute, -1);
    ShardingSpec uncut = spec_;
    for (int axis = 0; axis < axis_count_; ++axis) {
      if (!uncut.is_partial(axis)) {
        uncut.replicate(axis);
      }
    }
    const bool cut = shard_count(spec_, mesh_) > 1;
    if (cut) {
      arrange(uncut, 0, shard_count(spec_, 0, mesh_));
    }
  }

  /// Cuts dimension `dim` into `rest` further parts and all later ones as the source does, in every
  /// possible way. Parts that are not all equal have their places only in the source's sequence of
  /// axis sizes.
  void arrange(const ShardingSpec& reached, int dim, std::int64_t rest) {
    if (rest == 1) {
      if (dim + 1 < rank_) {
        arrange(reached, dim + 1, shard_count(spec_, dim + 1, mesh_));
      } else if (reached != spec_) {
        find_moved(reached);
        emit(reached);
      }
    }
    for (int axis = 0; axis < axis_count_; ++axis) {
      if (reached.is_replicated(axis) && rest % size(axis) == 0 &&
          keeps_parts(reached, dim, axis)) {
        ShardingSpec to = reached;
        to.shard(dim, axis);
        arrange(to, dim, rest / size(axis));
      }
    }
  }

  [[nodiscard]] bool keeps_parts(const ShardingSpec& reached, int dim, int axis) const {
    const int own = spec_.axis_at(dim, reached.count_of(dim));
    return shape_[static_cast<std::size_t>(dim)] % shard_count(spec_, dim, mesh_) == 0 ||
           (own >= 0 && size(own) == size(axis));
  }

  /// Distance in parts between neighbours along the axis, in the dimension that it cuts.
  [[nodiscard]] std::int64_t weight(const ShardingSpec& spec, int axis) const {
    const int dim = spec.dim_of(axis);
    std::int64_t product = 1;
    for (int position = spec.count_of(dim) - 1; spec.axis_at(dim, position) != axis; --position) {
      product *= size(spec.axis_at(dim, position));
    }
    return product;
  }
  void find_moved(const ShardingSpec& to) {
    step_.axes.clear();
    for (int axis = 0; axis < axis_count_; ++axis) {
      const int dim = spec_.dim_of(axis);
      if (dim != to.dim_of(axis) || (dim >= 0 && weight(spec_, axis) != weight(to, axis))) {
        step_.axes.push_back(axis);
      }
    }
  }

  const ShardingSpec& spec_;
  const ir::Shape& shape_;
  const cluster::DeviceMesh& mesh_;
  const std::function<void(const ReshardStep&)>& visit_;
  int rank_;
  int axis_count_;
  ReshardStep step_;
};

/// Part index of a rank in every dimension, as one number.
std::int64_t part_of(std::int64_t rank,
                     const ShardingSpec& spec,
                     int max_dim,
                     const cluster::DeviceMesh& mesh) {
  std::int64_t part = 0;
  for (int dim = 0; dim <= max_dim; ++dim) {
    for (int position = 0; position < spec.count_of(dim); ++position) {
      const auto axis = static_cast<std::size_t>(spec.axis_at(dim, position));
      part = part * mesh.axes[axis].size + mesh.coordinate(rank, axis);
    }
  }
  return part;
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kSlice:
      return "slice";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kCollectivePermute:
      return "collective_permute";
    case CollectiveKind::kHaloExchange:
      return "halo_exchange";
  }
  return "";
}

void for_each_step(const ShardingSpec& spec,
                   const ir::Shape& shape,
                   const cluster::DeviceMesh& mesh,
                   const std::function<void(const ReshardStep&)>& visit) {
  StepGenerator(spec, shape, mesh, visit).run();
}

std::vector<ReshardStep> one_step_reshards(const ShardingSpec& spec,
                                           const ir::TensorType& type,
                                           const cluster::DeviceMesh& mesh) {
  std::vector<ReshardStep> steps;
  for_each_step(spec, type.shape, mesh, [&](const ReshardStep& step) { steps.push_back(step); });
  return steps;
}

std::vector<std::int64_t> permute_sources(const ReshardStep& step,
                                          const cluster::DeviceMesh& mesh) {
  int max_dim = -1;
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    max_dim = std::max({max_dim, step.from.dim_of(axis), step.to.dim_of(axis)});
  }
  std::vector<std::int64_t> sources(static_cast<std::size_t>(mesh.size()), -1);
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<std::int64_t> group = mesh.group(rank, step.axes);
    if (group.front() != rank) {
      continue;
    }
    // A part has as many holders as readers: the i-th reader takes it from the i-th holder.
    std::vector<bool> taken(group.size(), false);
    for (const std::int64_t reader : group) {
      const std::int64_t wanted = part_of(reader, step.to, max_dim, mesh);
      std::size_t holder = 0;
      while (holder < group.size() &&
             (taken[holder] || part_of(group[holder], step.from, max_dim, mesh) != wanted)) {
        ++holder;
      }
      SHARDPLAN_CHECK(holder < group.size()) << "a permute between layouts that are no permutation";
      taken[holder] = true;
      sources[static_cast<std::size_t>(reader)] = group[holder];
    }
  }
  return sources;
}

}  // namespace shardplan::sharding
