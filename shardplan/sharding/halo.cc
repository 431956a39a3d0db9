#include "shardplan/sharding/halo.h"

#include <algorithm>

namespace shardplan::sharding {
namespace {

ops::Rows rows(const Range& range) {
  return {range.start, range.size};
}

/// The parts of a dimension in the order of their numbers.
std::vector<ops::Rows> all_parts(std::int64_t size,
                                 const std::vector<int>& axes,
                                 const cluster::DeviceMesh& mesh) {
  std::vector<Range> parts{{0, size}};
  for (const int axis : axes) {
    const std::int64_t count = mesh.axes[static_cast<std::size_t>(axis)].size;
    std::vector<Range> finer;
    finer.reserve(parts.size() * static_cast<std::size_t>(count));
    for (const Range& part : parts) {
      for (std::int64_t i = 0; i < count; ++i) {
        finer.push_back(chunk(part, count, i));
      }
    }
    parts = std::move(finer);
  }
  std::vector<ops::Rows> out;
  out.reserve(parts.size());
  std::transform(parts.begin(), parts.end(), std::back_inserter(out), rows);
  return out;
}

/// Rows of one part along the dimension of a halo.
struct PartRows {
  std::int64_t needed = 0;  ///< of those that there are
  std::int64_t kept = 0;    ///< of them in the part itself
  std::int64_t wanted = 0;  ///< summed over all parts: what they need of this one
};

std::vector<PartRows> count_rows(const ops::Halo& halo,
                                 const std::vector<int>& axes,
                                 const cluster::DeviceMesh& mesh) {
  const std::vector<ops::Rows> own = all_parts(halo.own_size, axes, mesh);
  const std::vector<ops::Rows> held = all_parts(halo.size, axes, mesh);
  std::vector<PartRows> counts(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const ops::Rows needed = halo.needed(own[i]).within({0, halo.size});
    counts[i].needed = needed.size;
    counts[i].kept = needed.within(held[i]).size;
    auto from = std::partition_point(
        held.begin(), held.end(), [&](const ops::Rows& h) { return h.end() <= needed.start; });
    for (; from != held.end() && from->start < needed.end(); ++from) {
      counts[static_cast<std::size_t>(from - held.begin())].wanted += needed.within(*from).size;
    }
  }
  return counts;
}

bool needs_others(const ops::Halo& halo,
                  const std::vector<int>& axes,
                  const cluster::DeviceMesh& mesh) {
  const std::vector<ops::Rows> own = all_parts(halo.own_size, axes, mesh);
  const std::vector<ops::Rows> held = all_parts(halo.size, axes, mesh);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const ops::Rows needed = halo.needed(own[i]);
    if (needed != held[i] && (needed.size > 0 || held[i].size > 0)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<ops::Halo> cut_halos(const ops::AxisMap& map, const OpLayouts& layouts) {
  std::vector<ops::Halo> cut;
  for (const ops::Halo& halo : map.halos) {
    if (layouts.inputs[static_cast<std::size_t>(halo.input)].count_of(halo.dim) > 0) {
      cut.push_back(halo);
    }
  }
  return cut;
}

ops::CutWindow cut_window(const ops::Halo& halo,
                          const ShardingSpec& spec,
                          const cluster::DeviceMesh& mesh,
                          std::int64_t rank) {
  const ops::Rows own = rows(part(halo.own_size, spec.axes_of(halo.dim), mesh, rank));
  return {halo, own, halo.needed(own)};
}

ir::Shape widened_shape(const std::vector<ops::Halo>& halos,
                        const ShardingSpec& spec,
                        const ir::Shape& shape,
                        const cluster::DeviceMesh& mesh) {
  ir::Shape wide = local_shape(spec, shape, mesh);
  for (const ops::Halo& halo : halos) {
    wide[static_cast<std::size_t>(halo.dim)] =
        halo.needed_size(largest_part(halo.own_size, shard_count(spec, halo.dim, mesh)));
  }
  return wide;
}

ir::Shape widened_part_shape(const std::vector<ops::Halo>& halos,
                             const ShardingSpec& spec,
                             const ir::Shape& shape,
                             const cluster::DeviceMesh& mesh,
                             std::int64_t rank) {
  ir::Shape wide = part_shape(spec, shape, mesh, rank);
  for (const ops::Halo& halo : halos) {
    wide[static_cast<std::size_t>(halo.dim)] = cut_window(halo, spec, mesh, rank).needed.size;
  }
  return wide;
}

std::optional<ReshardStep> halo_exchange(const std::vector<ops::Halo>& halos,
                                         int input,
                                         const ShardingSpec& spec,
                                         const cluster::DeviceMesh& mesh) {
  ReshardStep step;
  step.kind = CollectiveKind::kHaloExchange;
  step.from = step.to = spec;
  for (const ops::Halo& halo : halos) {
    const std::vector<int> axes = spec.axes_of(halo.dim);
    if (halo.input == input && needs_others(halo, axes, mesh)) {
      step.halos.push_back(halo);
      step.axes.insert(step.axes.end(), axes.begin(), axes.end());
    }
  }
  if (step.halos.empty()) {
    return std::nullopt;
  }
  step.dim = step.halos.front().dim;
  std::sort(step.axes.begin(), step.axes.end());
  return step;
}

HaloTraffic halo_traffic(const ReshardStep& step,
                         const ir::TensorType& type,
                         const cluster::DeviceMesh& mesh) {
  // Boxes of rows, one for each combination of parts of the dimensions.
  std::vector<PartRows> boxes{{1, 1, 1}};
  Bytes line = ir::element_bytes(type.dtype);
  const ir::Shape local = local_shape(step.from, type.shape, mesh);
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    const auto halo = std::find_if(step.halos.begin(), step.halos.end(), [&](const ops::Halo& h) {
      return h.dim == static_cast<int>(dim);
    });
    if (halo == step.halos.end()) {
      line *= local[dim];
      continue;
    }
    const std::vector<PartRows> counts = count_rows(*halo, step.from.axes_of(halo->dim), mesh);
    std::vector<PartRows> finer;
    finer.reserve(boxes.size() * counts.size());
    for (const PartRows& box : boxes) {
      for (const PartRows& count : counts) {
        finer.push_back(
            {box.needed * count.needed, box.kept * count.kept, box.wanted * count.wanted});
      }
    }
    boxes = std::move(finer);
  }
  HaloTraffic traffic;
  for (const PartRows& box : boxes) {
    const Bytes received = line * (box.needed - box.kept);
    traffic.received = std::max(traffic.received, received);
    traffic.packed = std::max(traffic.packed, received + line * (box.wanted - box.kept));
  }
  return traffic;
}

}  // namespace shardplan::sharding
