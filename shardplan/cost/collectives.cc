#include "shardplan/cost/collectives.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// Collectives in the alpha-beta model: a message of m bytes takes alpha + m · beta, a device sends
// and receives one message at a time. With n devices and B bytes of the full tensor (R. Thakur,
// R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
// Int. J. High Performance Computing Applications 19(1), 2005; the cost of the arithmetic is left
// out):
//
//   all-gather      ring                          (n-1) α + (n-1)/n B β
//                   recursive doubling, Bruck     ⌈log n⌉ α + (n-1)/n B β
//   reduce-scatter  ring, pairwise exchange       (n-1) α + (n-1)/n B β
//                   recursive halving             log n α + (n-1)/n B β          n = 2^k
//   all-reduce      a reduce-scatter, then an all-gather: 2(n-1) α + 2(n-1)/n B β by rings,
//                   2 log n α + 2(n-1)/n B β by halving and doubling (n = 2^k)
//                   recursive doubling            log n (α + B β)                n = 2^k
//   all-to-all      pairwise exchange             (n-1) α + (n-1)/n B β
//                   Bruck                         ⌈log n⌉ (α + B/2 β)
//   permute         one message                   α + B β
//
// For other n, halving and doubling run on the largest power of two below: before it the devices
// left over send their data (α + B β), after it they get their result (α + B/n β of a
// reduce-scatter, α + B β of an all-reduce).
//
// A group over several link levels has two ways. Flat: the ring (or every message) at the pace of
// the slowest level; recursive doubling and pairwise exchange level by level. Hierarchical: reduce
// and scatter from the innermost level outwards, so that outer links carry only the scattered part
// of the tensor, and gather back inwards.
//
// Every way is a line in B; read collective() of a level as the lower envelope of its lines. Levels
// with measured curves use the curve of the whole level, at (p-1)/p · f/(f-1) of the bytes when the
// group has only p of its f members there.

namespace shardplan::cost {
namespace {

using sharding::CollectiveKind;

/// The points where lines can be cheapest for some bytes >= 0; ties dropped.
std::vector<Line> without_dominated(std::vector<Line> lines) {
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.latency != b.latency ? a.latency < b.latency : a.per_byte < b.per_byte;
  });
  std::vector<Line> kept;
  for (const Line& line : lines) {
    if (kept.empty() || line.per_byte < kept.back().per_byte) {
      kept.push_back(line);
    }
  }
  return kept;
}

std::vector<Line> sums(const std::vector<Line>& a, const std::vector<Line>& b) {
  std::vector<Line> out;
  out.reserve(a.size() * b.size());
  for (const Line& x : a) {
    for (const Line& y : b) {
      out.push_back({x.latency + y.latency, x.per_byte + y.per_byte});
    }
  }
  return without_dominated(std::move(out));
}

/// One level: n members, alpha seconds a message, beta seconds a byte.
struct Links {
  double n;
  Seconds alpha;
  double beta;

  [[nodiscard]] double rest() const { return (n - 1) / n; }
  /// Steps of recursive halving or doubling on the largest power of two.
  [[nodiscard]] double log_floor() const { return std::floor(std::log2(n)); }
  [[nodiscard]] double log_ceil() const { return std::ceil(std::log2(n)); }
  [[nodiscard]] bool power_of_two() const {
    return std::has_single_bit(static_cast<std::uint64_t>(n));
  }
};

std::vector<Line> reduce_scatter_lines(const Links& l) {
  const Line ring{(l.n - 1) * l.alpha, l.rest() * l.beta};
  Line halving{l.log_floor() * l.alpha, l.rest() * l.beta};
  if (!l.power_of_two()) {
    halving.latency += 2 * l.alpha;
    halving.per_byte += (1 + 1 / l.n) * l.beta;
  }
  return {ring, halving};
}

std::vector<Line> all_gather_lines(const Links& l) {
  return {{(l.n - 1) * l.alpha, l.rest() * l.beta}, {l.log_ceil() * l.alpha, l.rest() * l.beta}};
}

/// The ring first, recursive doubling last.
std::vector<Line> all_reduce_lines(const Links& l) {
  const Line ring{2 * (l.n - 1) * l.alpha, 2 * l.rest() * l.beta};
  Line doubling{l.log_floor() * l.alpha, l.log_floor() * l.beta};
  if (!l.power_of_two()) {
    doubling.latency += 2 * l.alpha;
    doubling.per_byte += 2 * l.beta;
  }
  std::vector<Line> lines{ring};
  for (const Line& line : sums(reduce_scatter_lines(l), all_gather_lines(l))) {
    lines.push_back(line);
  }
  lines.push_back(doubling);
  return lines;
}

std::vector<Line> one_level_lines(CollectiveKind kind, const Links& l) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return {{(l.n - 1) * l.alpha, l.rest() * l.beta},
              {l.log_ceil() * l.alpha, l.rest() * l.beta}};
    case CollectiveKind::kReduceScatter:
      return reduce_scatter_lines(l);
    case CollectiveKind::kAllReduce:
      return all_reduce_lines(l);
    case CollectiveKind::kAllToAll:
      return {{(l.n - 1) * l.alpha, l.rest() * l.beta},
              {l.log_ceil() * l.alpha, l.log_ceil() / 2 * l.beta}};
    case CollectiveKind::kCollectivePermute:
    case CollectiveKind::kHaloExchange:
      return {{l.alpha, l.beta}};
    case CollectiveKind::kSlice:
      break;
  }
  return {{0, 0}};
}

/// Members of a group along one mesh axis on each level. The axis counts ranks in units of `begin`
/// up to `end`, a level in units of `low` up to `high`; they are aligned when of each two bounds
/// one divides the other. An axis that is not goes whole on the outermost level in use.
std::vector<std::int64_t> axis_shares(const cluster::Cluster& cluster,
                                      const cluster::DeviceMesh& mesh,
                                      std::size_t axis) {
  const std::int64_t begin = mesh.stride(axis);
  const std::int64_t end = begin * mesh.axes[axis].size;
  std::vector<std::int64_t> shares(cluster.levels.size(), 1);
  std::size_t outermost = cluster.levels.size() - 1;
  std::int64_t left = mesh.axes[axis].size;
  std::int64_t low = 1;
  bool aligned = true;
  for (std::size_t i = cluster.levels.size(); i-- > 0 && low < mesh.size();) {
    outermost = i;
    const std::int64_t high = low * cluster.levels[i].fanout;
    const std::int64_t from = std::max(begin, low);
    const std::int64_t to = std::min(end, high);
    if (to > from) {
      aligned &= from % std::min(begin, low) == 0 && to % from == 0 && from % low == 0;
      aligned &= end >= high || high % end == 0 || mesh.size() <= high;
      shares[i] = to / from;
      left /= shares[i];
    }
    low = high;
  }
  if (!aligned || left != 1) {
    std::fill(shares.begin(), shares.end(), 1);
    shares[outermost] = mesh.axes[axis].size;
  }
  return shares;
}

Links links_of(const cluster::LinkLevel& level, double n) {
  return {n, level.latency, 1 / (level.bandwidth * level.efficiency)};
}

}  // namespace

Seconds CollectivePrice::operator()(double bytes) const {
  Seconds cheapest = std::numeric_limits<double>::infinity();
  for (const Line& line : lines) {
    cheapest = std::min(cheapest, line.latency + line.per_byte * bytes);
  }
  for (const Measured& stage : measured) {
    cheapest += (*stage.curve)(bytes * stage.scale);
  }
  return cheapest;
}

std::vector<GroupPart> group_parts(const cluster::Cluster& cluster,
                                   const cluster::DeviceMesh& mesh,
                                   std::uint32_t axes_mask) {
  std::vector<std::int64_t> sizes(cluster.levels.size(), 1);
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if ((axes_mask >> axis & 1U) == 0 || cluster.levels.empty()) {
      continue;
    }
    const std::vector<std::int64_t> shares = axis_shares(cluster, mesh, axis);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] *= shares[i];
    }
  }
  std::vector<GroupPart> parts;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] > 1) {
      parts.push_back({i, sizes[i]});
    }
  }
  return parts;
}

void CollectivePricer::add_stage(CollectivePrice& price,
                                 CollectiveKind kind,
                                 const GroupPart& part,
                                 double scale) const {
  const cluster::LinkLevel& level = cluster_.levels[part.level];
  const auto n = static_cast<double>(part.size);
  const LevelCurves& curves = curves_[part.level];
  const auto curve = curves.find(sharding::collective_name(kind));
  if (curve != curves.end() && level.fanout > 1) {
    const auto fanout = static_cast<double>(level.fanout);
    const double volume =
        kind == CollectiveKind::kCollectivePermute ? 1.0 : (n - 1) / n * fanout / (fanout - 1);
    price.measured.push_back({&curve->second, scale * volume});
    return;
  }
  std::vector<Line> lines = one_level_lines(kind, links_of(level, n));
  for (Line& line : lines) {
    line.per_byte *= scale;
  }
  price.lines = sums(price.lines, lines);
}

std::vector<Line> CollectivePricer::flat_lines(CollectiveKind kind,
                                               const std::vector<GroupPart>& parts) const {
  Links slowest{1, 0, 0};
  Line doubling;
  Line pairwise;
  double n = 1;
  for (const GroupPart& part : parts) {
    n *= static_cast<double>(part.size);
  }
  double reached = 1;
  for (const GroupPart& part : parts) {
    const Links l = links_of(cluster_.levels[part.level], static_cast<double>(part.size));
    slowest.alpha = std::max(slowest.alpha, l.alpha);
    slowest.beta = std::max(slowest.beta, l.beta);
    const std::vector<Line> level = all_reduce_lines(l);
    doubling.latency += level.back().latency;
    doubling.per_byte += level.back().per_byte;
    const double partners = reached * (l.n - 1);
    pairwise.latency += partners * l.alpha;
    pairwise.per_byte += partners / n * l.beta;
    reached *= l.n;
  }
  slowest.n = n;
  if (kind == CollectiveKind::kAllToAll) {
    return {pairwise};
  }
  const Line ring = one_level_lines(kind, slowest).front();
  return kind == CollectiveKind::kAllReduce ? std::vector<Line>{ring, doubling}
                                            : std::vector<Line>{ring};
}

CollectivePrice CollectivePricer::price(CollectiveKind kind,
                                        const std::vector<GroupPart>& parts) const {
  CollectivePrice price;
  price.lines = {{0, 0}};
  if (parts.empty() || kind == CollectiveKind::kSlice) {
    return price;
  }
  if (kind == CollectiveKind::kCollectivePermute) {
    add_stage(price, kind, parts.back(), 1);
    if (price.measured.empty()) {
      price.lines = flat_lines(kind, parts);
    }
    return price;
  }
  // `scale`: the part of the tensor that is left to each device once the inner levels are done.
  double scale = 1;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (kind == CollectiveKind::kAllReduce && i + 1 < parts.size()) {
      add_stage(price, CollectiveKind::kReduceScatter, parts[i], scale);
      add_stage(price, CollectiveKind::kAllGather, parts[i], scale);
    } else {
      add_stage(price, kind, parts[i], scale);
    }
    if (kind != CollectiveKind::kAllToAll) {
      scale /= static_cast<double>(parts[i].size);
    }
  }
  if (price.measured.empty() && parts.size() > 1) {
    std::vector<Line> others = flat_lines(kind, parts);
    if (kind == CollectiveKind::kAllReduce) {
      const std::vector<Line> two_steps =
          sums(this->price(CollectiveKind::kReduceScatter, parts).lines,
               this->price(CollectiveKind::kAllGather, parts).lines);
      others.insert(others.end(), two_steps.begin(), two_steps.end());
    }
    price.lines.insert(price.lines.end(), others.begin(), others.end());
    price.lines = without_dominated(std::move(price.lines));
  }
  return price;
}

std::vector<LevelCurves> level_curves(const cluster::Cluster& cluster) {
  std::vector<LevelCurves> curves;
  for (const cluster::LinkLevel& level : cluster.levels) {
    LevelCurves& of_level = curves.emplace_back();
    for (const auto& [name, points] : level.collective_curves) {
      of_level.emplace(name, Curve(points));
    }
  }
  return curves;
}

Seconds message_seconds(const cluster::Cluster& cluster,
                        Bytes bytes,
                        std::int64_t from,
                        std::int64_t to) {
  std::int64_t below = cluster.device_count();  // devices of a group that the level joins
  for (const cluster::LinkLevel& level : cluster.levels) {
    const std::int64_t child = below / level.fanout;
    if (from / child != to / child) {
      const auto measured = level.collective_curves.find(
          std::string(sharding::collective_name(CollectiveKind::kCollectivePermute)));
      if (measured != level.collective_curves.end() && !measured->second.empty()) {
        return Curve(measured->second)(static_cast<double>(bytes));
      }
      return level.latency + static_cast<double>(bytes) / (level.bandwidth * level.efficiency);
    }
    below = child;
  }
  return 0;
}

}  // namespace shardplan::cost
