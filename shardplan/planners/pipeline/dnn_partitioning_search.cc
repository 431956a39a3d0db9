#include "shardplan/planners/pipeline/dnn_partitioning_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace shardplan::planners {
namespace {

constexpr double kRounding = 1e-9;
constexpr std::int64_t kVisitsBetweenLooks = 1 << 14;
constexpr std::size_t kLeastLikely = 8;  // downsets of one size, whatever the share

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

PlacementSearch::PlacementSearch(const DownsetLattice& lattice,
                                 const PlacementGroups& groups,
                                 const problem::LayerGraph& graph,
                                 const problem::LayerMachines& machines)
    : lattice_(lattice),
      groups_(groups),
      accelerators_(machines.devices),
      cpus_(machines.cpus),
      memory_(machines.memory_bytes > 0 ? machines.memory_bytes * (1 + kRounding)
                                        : std::numeric_limits<double>::infinity()),
      lists_(lattice) {
  rest_work_.assign(at(lattice.sets()), 0);
  for (const PlacementGroups::Group& group : groups.groups) {
    rest_work_.front() += group.on_accelerator ? group.time : 0;
    if (group.on_accelerator && group.time > 0) {
      cpu_share_ = std::max(cpu_share_, group.time / group.cpu_time);
    }
  }
  for (int set = 0; set < lattice.sets(); ++set) {
    for (int c = lattice.begin[at(set)]; c < lattice.begin[at(set) + 1]; ++c) {
      const DownsetLattice::Cover& cover = lattice.covers[at(c)];
      const PlacementGroups::Group& group = groups.groups[at(cover.node)];
      rest_work_[at(cover.to)] = rest_work_[at(set)] - (group.on_accelerator ? group.time : 0);
    }
  }
  sources_.resize(graph.layers.size());
  out_degree_.assign(graph.layers.size(), 0);
  for (const problem::LayerEdge& edge : graph.edges) {
    sources_[at(edge.target)].push_back(edge.source);
    ++out_degree_[at(edge.source)];
  }
  sums_.resize(at(lattice.nodes) + 1);
  inside_.assign(graph.layers.size(), 0);
  crossing_.assign(graph.layers.size(), 0);
}

std::optional<std::vector<PlacementSearch::Part>> PlacementSearch::find(
    double target, const solvers::Budget& budget, double share) {
  target_ = target;
  budget_ = &budget;
  std::fill(inside_.begin(), inside_.end(), 0);
  std::fill(crossing_.begin(), crossing_.end(), 0);
  const auto wasted = [&](int set) {
    return lists_[set].back().accelerators * target_ + rest_work_[at(set)];
  };
  lists_.climb(share, kLeastLikely, stopped_, wasted, [&](int set) { push(set); });
  if (stopped_ || !lists_.arrived()) {
    return std::nullopt;
  }
  return trace();
}

void PlacementSearch::push(int from) {
  from_ = from;
  const List& list = lists_[from];
  Sums& sums = sums_.front();
  sums = {};
  sums.accelerator = list.back().accelerators < accelerators_;
  sums.cpu = list.front().cpus < cpus_;
  if (sums.accelerator || sums.cpu) {
    grow(from, -1, 0);
  }
}

void PlacementSearch::grow(int set, int last, std::size_t depth) {
  if (++visits_ % kVisitsBetweenLooks == 0) {
    stopped_ = stopped_ || budget_->exhausted();
  }
  const int begin = lattice_.begin[at(set)];
  for (int c = lattice_.begin[at(set) + 1]; c-- > begin && !stopped_;) {
    const DownsetLattice::Cover& cover = lattice_.covers[at(c)];
    if (cover.node <= last) {
      return;
    }
    if (!extend(cover.node, depth)) {
      continue;
    }
    const std::vector<int>& layers = groups_.groups[at(cover.node)].layers;
    for (const int layer : layers) {
      sums_[depth + 1].transfer += enter(layer);
    }
    offer(cover.to, sums_[depth + 1]);
    grow(cover.to, cover.node, depth + 1);
    for (std::size_t i = layers.size(); i-- > 0;) {
      leave(layers[i]);
    }
  }
}

bool PlacementSearch::extend(int group, std::size_t depth) {
  const PlacementGroups::Group& added = groups_.groups[at(group)];
  Sums& sums = sums_[depth + 1];
  sums = sums_[depth];
  sums.time += added.time;
  sums.cpu_time += added.cpu_time;
  sums.bytes += added.bytes;
  sums.accelerator =
      sums.accelerator && added.on_accelerator && sums.time <= target_ && sums.bytes <= memory_;
  sums.cpu = sums.cpu && sums.cpu_time <= target_;
  return sums.accelerator || sums.cpu;
}

/// A source's time counts once, while any of its edges is cut.
double PlacementSearch::enter(int layer) {
  double change = 0;
  for (const int source : sources_[at(layer)]) {
    int& crossing = crossing_[at(source)];
    if (inside_[at(source)] != 0) {
      change -= --crossing == 0 ? groups_.transfer[at(source)] : 0;
    } else {
      change += ++crossing == 1 ? groups_.transfer[at(source)] : 0;
    }
  }
  int& own = crossing_[at(layer)];
  const int after = out_degree_[at(layer)] - own;
  change += ((after > 0 ? 1 : 0) - (own > 0 ? 1 : 0)) * groups_.transfer[at(layer)];
  own = after;
  inside_[at(layer)] = 1;
  return change;
}

void PlacementSearch::leave(int layer) {
  inside_[at(layer)] = 0;
  crossing_[at(layer)] = out_degree_[at(layer)] - crossing_[at(layer)];
  for (const int source : sources_[at(layer)]) {
    crossing_[at(source)] += inside_[at(source)] != 0 ? 1 : -1;
  }
}

bool PlacementSearch::enough_left(int cpus, int accelerators, int set) const {
  const int free_cpus = cpus_ - cpus;
  const double by_cpus = free_cpus > 0 ? free_cpus * cpu_share_ : 0;
  return rest_work_[at(set)] <=
         target_ * ((accelerators_ - accelerators) + by_cpus) * (1 + kRounding) +
             kRounding * rest_work_.front();
}

void PlacementSearch::offer(int to, const Sums& sums) {
  const bool accelerator = sums.accelerator && sums.time + sums.transfer <= target_;
  if (!accelerator && !sums.cpu) {
    return;
  }
  const List& below = lists_[from_];
  for (std::size_t e = 0; e < below.size(); ++e) {
    const Entry& base = below[e];
    const auto entry = static_cast<int>(e);
    if (accelerator && base.accelerators < accelerators_ &&
        enough_left(base.cpus, base.accelerators + 1, to)) {
      insert(lists_[to], {base.cpus, base.accelerators + 1, from_, entry, false});
    }
    if (sums.cpu && base.cpus < cpus_ && enough_left(base.cpus + 1, base.accelerators, to)) {
      insert(lists_[to], {base.cpus + 1, base.accelerators, from_, entry, true});
    }
  }
}

void PlacementSearch::insert(List& list, const Entry& entry) {
  auto place = list.begin();
  for (; place != list.end() && place->cpus <= entry.cpus; ++place) {
    if (place->accelerators <= entry.accelerators) {
      return;
    }
  }
  if (place != list.begin() && (place - 1)->cpus == entry.cpus) {
    --place;
  }
  auto end = place;
  while (end != list.end() && end->accelerators >= entry.accelerators) {
    ++end;
  }
  list.insert(list.erase(place, end), entry);
}

std::vector<PlacementSearch::Part> PlacementSearch::trace() {
  std::vector<Part> parts;
  lists_.trace([&](const Entry& entry, std::vector<int> groups) {
    Part& part = parts.emplace_back();
    part.on_cpu = entry.on_cpu;
    part.groups = std::move(groups);
    std::fill(inside_.begin(), inside_.end(), 0);
    std::fill(crossing_.begin(), crossing_.end(), 0);
    for (const int group : part.groups) {
      const PlacementGroups::Group& one = groups_.groups[at(group)];
      part.load += part.on_cpu ? one.cpu_time : one.time;
      for (const int layer : one.layers) {
        const double change = enter(layer);
        part.load += part.on_cpu ? 0 : change;
      }
    }
  });
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace shardplan::planners
