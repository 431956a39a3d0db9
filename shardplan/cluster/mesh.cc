#include <algorithm>
#include <numeric>
#include <set>

#include "shardplan/cluster/cluster.h"

namespace shardplan::cluster {
namespace {

/// Divisors greater than 1, in no special order. O(sqrt(n)).
std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) {
      continue;
    }
    if (d > 1) {
      out.push_back(d);
    }
    if (n / d != d) {
      out.push_back(n / d);
    }
  }
  return out;
}

/// Grows a mesh from the outermost level inwards. `sizes` are the axes chosen so far, `level` the
/// level in progress and `left` the part of its fanout that no axis covers yet.
class MeshSearch {
 public:
  MeshSearch(std::vector<std::int64_t> fanouts, int max_axes)
      : fanouts_(std::move(fanouts)), max_axes_(static_cast<std::size_t>(std::max(max_axes, 0))) {}

  std::set<std::vector<std::int64_t>> run() {
    grow(0, fanouts_.empty() ? 1 : fanouts_.front());
    return std::move(found_);
  }

 private:
  void grow(std::size_t level, std::int64_t left) {
    if (level == fanouts_.size()) {
      found_.insert(sizes_);
      return;
    }
    if (sizes_.size() == max_axes_) {
      return;
    }
    // An axis within the level.
    for (const std::int64_t size : divisors(left)) {
      take(size, level, left / size);
    }
    // An axis over this whole level and one or more whole levels below.
    if (left != fanouts_[level]) {
      return;
    }
    std::int64_t size = left;
    for (std::size_t last = level + 1; last < fanouts_.size(); ++last) {
      size *= fanouts_[last];
      take(size, last, 1);
    }
  }

  void take(std::int64_t size, std::size_t level, std::int64_t left) {
    sizes_.push_back(size);
    if (left > 1) {
      grow(level, left);
    } else {
      grow(level + 1, level + 1 < fanouts_.size() ? fanouts_[level + 1] : 1);
    }
    sizes_.pop_back();
  }

  std::vector<std::int64_t> fanouts_;
  std::size_t max_axes_;
  std::vector<std::int64_t> sizes_;
  std::set<std::vector<std::int64_t>> found_;
};

}  // namespace

std::int64_t Cluster::device_count() const {
  return std::accumulate(
      levels.begin(), levels.end(), std::int64_t{1}, [](std::int64_t n, const LinkLevel& level) {
        return n * level.fanout;
      });
}

std::int64_t DeviceMesh::size() const {
  return std::accumulate(
      axes.begin(), axes.end(), std::int64_t{1}, [](std::int64_t n, const MeshAxis& axis) {
        return n * axis.size;
      });
}

std::int64_t DeviceMesh::stride(std::size_t axis) const {
  std::int64_t stride = 1;
  for (std::size_t i = axis + 1; i < axes.size(); ++i) {
    stride *= axes[i].size;
  }
  return stride;
}

std::int64_t DeviceMesh::coordinate(std::int64_t rank, std::size_t axis) const {
  return rank / stride(axis) % axes[axis].size;
}

std::vector<std::int64_t> DeviceMesh::group(std::int64_t rank, const std::vector<int>& list) const {
  std::int64_t base = rank;
  for (const int axis : list) {
    const auto a = static_cast<std::size_t>(axis);
    base -= coordinate(rank, a) * stride(a);
  }
  std::vector<std::int64_t> ranks{base};
  for (const int axis : list) {
    const auto a = static_cast<std::size_t>(axis);
    std::vector<std::int64_t> next;
    next.reserve(ranks.size() * static_cast<std::size_t>(axes[a].size));
    for (const std::int64_t r : ranks) {
      for (std::int64_t i = 0; i < axes[a].size; ++i) {
        next.push_back(r + i * stride(a));
      }
    }
    ranks = std::move(next);
  }
  return ranks;
}

std::string to_string(const DeviceMesh& mesh) {
  if (mesh.axes.empty()) {
    return "one device";
  }
  std::string out;
  for (const MeshAxis& axis : mesh.axes) {
    out += (out.empty() ? "" : " × ") + axis.name + " " + std::to_string(axis.size);
  }
  return out;
}

std::vector<DeviceMesh> enumerate_meshes(const Cluster& cluster, int max_axes) {
  std::vector<std::int64_t> fanouts;
  for (const LinkLevel& level : cluster.levels) {
    if (level.fanout > 1) {
      fanouts.push_back(level.fanout);
    }
  }
  const std::set<std::vector<std::int64_t>> found = MeshSearch(std::move(fanouts), max_axes).run();
  std::vector<std::vector<std::int64_t>> sorted(found.begin(), found.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.size() < b.size();
  });
  std::vector<DeviceMesh> meshes;
  meshes.reserve(sorted.size());
  for (const std::vector<std::int64_t>& sizes : sorted) {
    DeviceMesh mesh;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      mesh.axes.push_back({"m" + std::to_string(i), sizes[i]});
    }
    meshes.push_back(std::move(mesh));
  }
  return meshes;
}

}  // namespace shardplan::cluster
