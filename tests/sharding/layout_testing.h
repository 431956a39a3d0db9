#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/sharding/spec.h"

// Slow and obviously right helpers for the tests of the room.
namespace shardplan::sharding {

/// Mesh with axes a, b, c, ... of these sizes.
inline cluster::DeviceMesh make_mesh(const std::vector<std::int64_t>& sizes) {
  cluster::DeviceMesh mesh;
  for (const std::int64_t size : sizes) {
    mesh.axes.push_back({std::string(1, static_cast<char>('a' + mesh.axes.size())), size});
  }
  return mesh;
}

/// Every layout of a tensor of this rank, partial ones included, whether it fits or not.
inline std::vector<ShardingSpec> all_layouts(int rank, int mesh_axes, bool with_max = false) {
  std::set<ShardingSpec> found{ShardingSpec{}};
  // Placing the axes one after the other, in every order, gives every order on every dimension.
  for (int round = 0; round < mesh_axes; ++round) {
    const std::set<ShardingSpec> before = found;
    for (const ShardingSpec& spec : before) {
      for (int axis = 0; axis < mesh_axes; ++axis) {
        if (!spec.is_replicated(axis)) {
          continue;
        }
        for (int dim = 0; dim < rank; ++dim) {
          ShardingSpec more = spec;
          more.shard(dim, axis);
          found.insert(more);
        }
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
          ShardingSpec more = spec;
          more.make_partial(axis, reduction);
          if (reduction == Reduction::kSum || with_max) {
            found.insert(more);
          }
        }
      }
    }
  }
  return {found.begin(), found.end()};
}

inline std::vector<ShardingSpec> fitting_layouts(const ir::Shape& shape,
                                                 const cluster::DeviceMesh& mesh,
                                                 bool with_max = false) {
  std::vector<ShardingSpec> out;
  for (const ShardingSpec& spec :
       all_layouts(static_cast<int>(shape.size()), static_cast<int>(mesh.axes.size()), with_max)) {
    if (fits(spec, shape, mesh)) {
      out.push_back(spec);
    }
  }
  return out;
}

/// Which part of `dim` a rank has: the coordinates along the axes of the dimension read as one
/// mixed-radix number, major first.
inline std::int64_t part_index(const ShardingSpec& spec,
                               int dim,
                               std::int64_t rank,
                               const cluster::DeviceMesh& mesh) {
  std::int64_t part = 0;
  for (const int axis : spec.axes_of(dim)) {
    const auto a = static_cast<std::size_t>(axis);
    part = part * mesh.axes[a].size + mesh.coordinate(rank, a);
  }
  return part;
}

/// A small dense row-major tensor.
struct Dense {
  ir::Shape shape{};
  std::vector<std::int64_t> data{};
  bool operator==(const Dense&) const = default;
};

inline std::int64_t product(const ir::Shape& shape) {
  std::int64_t out = 1;
  for (const std::int64_t size : shape) {
    out *= size;
  }
  return out;
}

/// Multi-index of a flat index.
inline ir::Shape unflatten(std::int64_t flat, const ir::Shape& shape) {
  ir::Shape at(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    at[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return at;
}
inline std::int64_t flatten(const ir::Shape& at, const ir::Shape& shape) {
  std::int64_t flat = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    flat = flat * shape[dim] + at[dim];
  }
  return flat;
}

/// The elements of [0, size) that a rank has when `axes`, major to minor, cut it: what is there is
/// dealt out in runs of as many elements as the first gets, as torch.chunk does, axis by axis.
inline std::vector<std::int64_t> elements_of(std::int64_t size,
                                             const std::vector<int>& axes,
                                             std::int64_t rank,
                                             const cluster::DeviceMesh& mesh) {
  std::vector<std::int64_t> mine;
  for (std::int64_t i = 0; i < size; ++i) {
    mine.push_back(i);
  }
  for (const int axis : axes) {
    const auto a = static_cast<std::size_t>(axis);
    const auto count = static_cast<std::int64_t>(mine.size());
    const std::int64_t run = (count + mesh.axes[a].size - 1) / mesh.axes[a].size;
    std::vector<std::int64_t> kept;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i / run == mesh.coordinate(rank, a)) {
        kept.push_back(mine[static_cast<std::size_t>(i)]);
      }
    }
    mine = kept;
  }
  return mine;
}

/// The rank's part along `dim`, which `axes` cut.
inline Dense slice(const Dense& whole,
                   int dim,
                   const std::vector<int>& axes,
                   std::int64_t rank,
                   const cluster::DeviceMesh& mesh) {
  const auto d = static_cast<std::size_t>(dim);
  const std::vector<std::int64_t> kept = elements_of(whole.shape[d], axes, rank, mesh);
  Dense out{whole.shape, {}};
  out.shape[d] = static_cast<std::int64_t>(kept.size());
  for (std::int64_t i = 0; i < product(out.shape); ++i) {
    ir::Shape at = unflatten(i, out.shape);
    at[d] = kept[static_cast<std::size_t>(at[d])];
    out.data.push_back(whole.data[static_cast<std::size_t>(flatten(at, whole.shape))]);
  }
  return out;
}

inline Dense concat(const std::vector<Dense>& parts, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Dense out{parts.front().shape, {}};
  std::vector<std::pair<std::size_t, std::int64_t>> sources;  // part, place there
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::int64_t i = 0; i < parts[p].shape[d]; ++i) {
      sources.emplace_back(p, i);
    }
  }
  out.shape[d] = static_cast<std::int64_t>(sources.size());
  for (std::int64_t i = 0; i < product(out.shape); ++i) {
    ir::Shape at = unflatten(i, out.shape);
    const auto [p, place] = sources[static_cast<std::size_t>(at[d])];
    at[d] = place;
    out.data.push_back(parts[p].data[static_cast<std::size_t>(flatten(at, parts[p].shape))]);
  }
  return out;
}

inline Dense reduce(const std::vector<Dense>& parts, Reduction reduction) {
  Dense out = parts.front();
  for (std::size_t p = 1; p < parts.size(); ++p) {
    for (std::size_t i = 0; i < out.data.size(); ++i) {
      const std::int64_t value = parts[p].data[i];
      out.data[i] = reduction == Reduction::kSum ? out.data[i] + value
                                                 : (out.data[i] < value ? value : out.data[i]);
    }
  }
  return out;
}

/// The rank's part of a whole tensor, partial axes ignored.
inline Dense part_of_whole(const Dense& whole,
                           const ShardingSpec& spec,
                           std::int64_t rank,
                           const cluster::DeviceMesh& mesh) {
  Dense part = whole;
  for (int dim = 0; dim < static_cast<int>(whole.shape.size()); ++dim) {
    part = slice(part, dim, spec.axes_of(dim), rank, mesh);
  }
  return part;
}

/// A deterministic scramble of a few numbers.
inline std::uint64_t scramble(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL ^ (b + 0x7F4A7C159E3779B9ULL);
  x ^= x >> 31;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 29);
}

/// What every rank holds of `whole` under `spec`: along partial axes the parts are arbitrary but
/// for their sum (maximum). All partial axes have the same reduction.
inline std::vector<Dense> distribute(const Dense& whole,
                                     const ShardingSpec& spec,
                                     const cluster::DeviceMesh& mesh) {
  std::vector<Dense> held;
  const std::vector<int> partial = spec.partial_axes();
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    held.push_back(part_of_whole(whole, spec, rank, mesh));
    if (partial.empty()) {
      continue;
    }
    const std::vector<std::int64_t> group = mesh.group(rank, partial);
    // The noise depends on the place within the group only: replicas along all other axes agree.
    const auto last = group.size() - 1;
    const auto me =
        static_cast<std::size_t>(std::find(group.begin(), group.end(), rank) - group.begin());
    for (std::size_t i = 0; i < held.back().data.size(); ++i) {
      std::int64_t& value = held.back().data[i];
      const auto noise = [&](std::size_t member) {
        return static_cast<std::int64_t>(scramble(member, i) % 1000);
      };
      if (spec.reduction(partial.front()) == Reduction::kMax) {
        value -= me == last ? 0 : noise(me);
      } else if (me != last) {
        value = noise(me);
      } else {
        for (std::size_t m = 0; m < last; ++m) {
          value -= noise(m);
        }
      }
    }
  }
  return held;
}

/// Whether the parts that the ranks hold make up `whole` under `spec`: every rank's part, reduced
/// over the partial axes, is its part of the whole.
inline bool represents(const std::vector<Dense>& held,
                       const Dense& whole,
                       const ShardingSpec& spec,
                       const cluster::DeviceMesh& mesh) {
  const std::vector<int> partial = spec.partial_axes();
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<Dense> parts;
    for (const std::int64_t member : mesh.group(rank, partial)) {
      parts.push_back(held[static_cast<std::size_t>(member)]);
    }
    const Reduction reduction = partial.empty() ? Reduction::kSum : spec.reduction(partial.front());
    if (reduce(parts, reduction) != part_of_whole(whole, spec, rank, mesh)) {
      return false;
    }
  }
  return true;
}

}  // namespace shardplan::sharding
