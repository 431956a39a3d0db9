#include "shardplan/sharding/spec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardplan/support/text.h"

namespace shardplan::sharding {
namespace {

constexpr std::string_view kDot = "·";

int axis_count(const cluster::DeviceMesh& mesh) {
  return static_cast<int>(mesh.axes.size());
}

const std::string& axis_name(const cluster::DeviceMesh& mesh, int axis) {
  return mesh.axes[static_cast<std::size_t>(axis)].name;
}

/// Reads the text form from left to right; the first thing that does not fit ends it.
class SpecParser {
 public:
  SpecParser(std::string_view text, std::size_t rank, const cluster::DeviceMesh& mesh)
      : text_(text), rest_(text), rank_(rank), mesh_(mesh) {}

  Result<ShardingSpec> parse() {
    SHARDPLAN_RETURN_IF_ERROR(dimensions());
    while (take("+")) {
      SHARDPLAN_RETURN_IF_ERROR(partial());
    }
    skip_spaces();
    if (!rest_.empty()) {
      return error("unexpected \"" + std::string(rest_) + "\" at the end");
    }
    return spec_;
  }

 private:
  Status dimensions() {
    if (!take("[")) {
      return error("it must start with \"[\"");
    }
    if (take("]")) {
      return rank_ == 0 ? Status{} : wrong_rank(0);
    }
    std::size_t dim = 0;
    do {
      if (!take_dash()) {
        SHARDPLAN_RETURN_IF_ERROR(axes("dimension " + std::to_string(dim), [&](int axis) {
          spec_.shard(static_cast<int>(dim), axis);
        }));
      }
      ++dim;
      // No tensor has that many dimensions, and a spec stores them in a byte.
      if (dim > rank_) {
        return wrong_rank(dim);
      }
    } while (take(","));
    if (!take("]")) {
      return error("\"]\" or \",\" expected after dimension " + std::to_string(dim - 1));
    }
    return dim == rank_ ? Status{} : wrong_rank(dim);
  }

  Status partial() {
    const bool sum = take("sum");
    if (!sum && !take("max")) {
      return error("\"sum(...)\" or \"max(...)\" expected after \"+\"");
    }
    const Reduction reduction = sum ? Reduction::kSum : Reduction::kMax;
    if (!take("(")) {
      return error("\"(\" expected after \"sum\" or \"max\"");
    }
    SHARDPLAN_RETURN_IF_ERROR(
        axes("the partial axes", [&](int axis) { spec_.make_partial(axis, reduction); }));
    return take(")") ? Status{} : error("\")\" is missing");
  }

  /// One or more mesh axes joined by dots.
  template <class Use>
  Status axes(const std::string& place, const Use& use) {
    do {
      SHARDPLAN_ASSIGN_OR_RETURN(const int axis, one_axis(place));
      use(axis);
    } while (take(kDot) || take("*"));
    return {};
  }

  Result<int> one_axis(const std::string& place) {
    skip_spaces();
    const std::size_t end = std::min({rest_.find_first_of(",])(+*[ \t\n"), rest_.find(kDot)});
    const std::string name(rest_.substr(0, end));
    rest_.remove_prefix(name.size());
    if (name.empty()) {
      return error("a mesh axis or \"-\" expected in " + place);
    }
    std::vector<std::string> known;
    for (int axis = 0; axis < axis_count(mesh_); ++axis) {
      known.push_back(axis_name(mesh_, axis));
      if (known.back() != name) {
        continue;
      }
      if (!spec_.is_replicated(axis)) {
        return error("mesh axis \"" + name + "\" is used twice");
      }
      return axis;
    }
    Error unknown = error("no mesh axis is named \"" + name + "\" (" + place + ")");
    const std::string close = suggest(name, known);
    unknown.notes.push_back(close.empty() ? "the mesh is " + cluster::to_string(mesh_)
                                          : "did you mean \"" + close + "\"?");
    return unknown;
  }

  void skip_spaces() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
  }
  bool take(std::string_view token) {
    skip_spaces();
    if (!rest_.starts_with(token)) {
      return false;
    }
    rest_.remove_prefix(token.size());
    return true;
  }
  /// A lone "-": mesh axes may have names that start with one.
  bool take_dash() {
    const std::string_view before = rest_;
    if (take("-")) {
      skip_spaces();
      if (rest_.empty() || rest_.starts_with(",") || rest_.starts_with("]")) {
        return true;
      }
    }
    rest_ = before;
    return false;
  }
  [[nodiscard]] Error error(std::string message) const {
    return invalid_input("layout \"" + std::string(text_) + "\": " + std::move(message));
  }
  [[nodiscard]] Error wrong_rank(std::size_t found) const {
    return error("it has " + (found > rank_ ? std::string("more") : std::to_string(found)) +
                 " dimensions, the tensor has " + std::to_string(rank_));
  }

  std::string_view text_;
  std::string_view rest_;
  std::size_t rank_;
  const cluster::DeviceMesh& mesh_;
  ShardingSpec spec_;
};

}  // namespace

void ShardingSpec::replicate(int mesh_axis) {
  if (const int dim = dim_of(mesh_axis); dim >= 0) {
    for (int other = 0; other < kMaxMeshAxes; ++other) {
      if (at(other) == dim && order_[index(other)] > order_[index(mesh_axis)]) {
        --order_[index(other)];
      }
    }
  }
  where_[index(mesh_axis)] = kReplicated;
  order_[index(mesh_axis)] = 0;
}

std::vector<int> ShardingSpec::axes_of(int dim) const {
  std::vector<int> axes;
  for (int axis = axis_at(dim, 0); axis >= 0; axis = axis_at(dim, static_cast<int>(axes.size()))) {
    axes.push_back(axis);
  }
  return axes;
}

std::vector<int> ShardingSpec::partial_axes() const {
  std::vector<int> axes;
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    if (is_partial(axis)) {
      axes.push_back(axis);
    }
  }
  return axes;
}

std::uint64_t ShardingSpec::hash() const {
  std::uint64_t where = 0;
  std::uint64_t order = 0;
  std::memcpy(&where, where_.data(), where_.size());
  std::memcpy(&order, order_.data(), order_.size());
  // Multiplication by odd constants spreads the few low bits that differ over the word.
  std::uint64_t mixed = where * 0x9E3779B97F4A7C15ULL + order * 0xC2B2AE3D27D4EB4FULL;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9ULL;
  return mixed ^ (mixed >> 32);
}

std::int64_t shard_count(const ShardingSpec& spec, int dim, const cluster::DeviceMesh& mesh) {
  std::int64_t count = 1;
  for (int axis = 0; axis < axis_count(mesh); ++axis) {
    if (spec.dim_of(axis) == dim) {
      count *= mesh.axes[static_cast<std::size_t>(axis)].size;
    }
  }
  return count;
}

std::int64_t shard_count(const ShardingSpec& spec, const cluster::DeviceMesh& mesh) {
  std::int64_t count = 1;
  for (int axis = 0; axis < axis_count(mesh); ++axis) {
    if (spec.dim_of(axis) >= 0) {
      count *= mesh.axes[static_cast<std::size_t>(axis)].size;
    }
  }
  return count;
}

bool fits(const ShardingSpec& spec, const ir::Shape& shape, const cluster::DeviceMesh& mesh) {
  for (int axis = 0; axis < axis_count(mesh); ++axis) {
    const int dim = spec.dim_of(axis);
    if (dim < 0) {
      continue;
    }
    if (dim >= static_cast<int>(shape.size()) ||
        !can_cut(shape[static_cast<std::size_t>(dim)], shard_count(spec, dim, mesh))) {
      return false;
    }
  }
  return true;
}

// Rounding up once for all axes of a dimension is the same as rounding up after each.
ir::Shape local_shape(const ShardingSpec& spec,
                      const ir::Shape& shape,
                      const cluster::DeviceMesh& mesh) {
  ir::Shape local = shape;
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    local[dim] = largest_part(local[dim], shard_count(spec, static_cast<int>(dim), mesh));
  }
  return local;
}

Bytes local_bytes(const ShardingSpec& spec,
                  const ir::TensorType& type,
                  const cluster::DeviceMesh& mesh) {
  Bytes bytes = type.bytes();
  for (std::size_t dim = 0; dim < type.shape.size(); ++dim) {
    const std::int64_t parts = shard_count(spec, static_cast<int>(dim), mesh);
    const std::int64_t size = type.shape[dim];
    if (size % parts == 0) {
      bytes /= parts;
    } else {
      bytes = bytes / size * largest_part(size, parts);
    }
  }
  return bytes;
}

Range chunk(Range whole, std::int64_t parts, std::int64_t number) {
  const std::int64_t length = largest_part(whole.size, parts);
  const std::int64_t offset = std::min(whole.size, number * length);
  return {whole.start + offset, std::min(length, whole.size - offset)};
}

Range part(std::int64_t size,
           const std::vector<int>& axes,
           const cluster::DeviceMesh& mesh,
           std::int64_t rank) {
  Range range{0, size};
  for (const int axis : axes) {
    const auto a = static_cast<std::size_t>(axis);
    range = chunk(range, mesh.axes[a].size, mesh.coordinate(rank, a));
  }
  return range;
}

std::vector<Range> part(const ShardingSpec& spec,
                        const ir::Shape& shape,
                        const cluster::DeviceMesh& mesh,
                        std::int64_t rank) {
  std::vector<Range> ranges;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    ranges.push_back(part(shape[dim], spec.axes_of(static_cast<int>(dim)), mesh, rank));
  }
  return ranges;
}

ir::Shape part_shape(const ShardingSpec& spec,
                     const ir::Shape& shape,
                     const cluster::DeviceMesh& mesh,
                     std::int64_t rank) {
  ir::Shape local;
  for (const Range& range : part(spec, shape, mesh, rank)) {
    local.push_back(range.size);
  }
  return local;
}

std::string to_string(const ShardingSpec& spec, std::size_t rank, const cluster::DeviceMesh& mesh) {
  std::string out = "[";
  for (std::size_t dim = 0; dim < rank; ++dim) {
    out += dim == 0 ? "" : ", ";
    const std::vector<int> axes = spec.axes_of(static_cast<int>(dim));
    for (std::size_t i = 0; i < axes.size(); ++i) {
      out += i == 0 ? "" : kDot;
      out += axis_name(mesh, axes[i]);
    }
    out += axes.empty() ? "-" : "";
  }
  out += "]";
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
    std::string names;
    for (const int axis : spec.partial_axes()) {
      if (spec.reduction(axis) == reduction) {
        names += names.empty() ? "" : kDot;
        names += axis_name(mesh, axis);
      }
    }
    if (!names.empty()) {
      out += (reduction == Reduction::kSum ? " + sum(" : " + max(") + names + ")";
    }
  }
  return out;
}

Result<ShardingSpec> parse_spec(std::string_view text,
                                std::size_t rank,
                                const cluster::DeviceMesh& mesh) {
  return SpecParser(text, rank, mesh).parse();
}

}  // namespace shardplan::sharding
