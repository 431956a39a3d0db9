#include "shardplan/planners/pipeline/placement_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "shardplan/planners/pipeline/downsets.h"

namespace shardplan::planners {
namespace {

using problem::Layer;
using problem::LayerEdge;
using problem::LayerGraph;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Sets that grow together.
class Union {
 public:
  explicit Union(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int x) {
    while (parent_[at(x)] != x) {
      parent_[at(x)] = parent_[at(parent_[at(x)])];
      x = parent_[at(x)];
    }
    return x;
  }
  void join(int a, int b) { parent_[at(find(b))] = find(a); }

 private:
  std::vector<int> parent_;
};

/// Strongly connected components by Tarjan's algorithm, with a stack of its own.
class Components {
 public:
  explicit Components(const std::vector<std::vector<int>>& next)
      : next_(next), index_(next.size(), -1), low_(next.size(), 0), open_(next.size(), false) {}

  /// Joins the members of every component.
  void join(Union& sets) {
    for (std::size_t v = 0; v < next_.size(); ++v) {
      if (index_[v] < 0) {
        visit(static_cast<int>(v), sets);
      }
    }
  }

 private:
  void enter(int v) {
    index_[at(v)] = low_[at(v)] = count_++;
    path_.push_back(v);
    open_[at(v)] = true;
    calls_.emplace_back(v, 0);
  }

  void visit(int root, Union& sets) {
    enter(root);
    while (!calls_.empty()) {
      auto& [v, edge] = calls_.back();
      if (edge < next_[at(v)].size()) {
        const int w = next_[at(v)][edge++];
        if (index_[at(w)] < 0) {
          enter(w);
        } else if (open_[at(w)]) {
          low_[at(v)] = std::min(low_[at(v)], index_[at(w)]);
        }
      } else {
        leave(v, sets);
      }
    }
  }

  void leave(int v, Union& sets) {
    calls_.pop_back();
    if (!calls_.empty()) {
      const int below = calls_.back().first;
      low_[at(below)] = std::min(low_[at(below)], low_[at(v)]);
    }
    if (low_[at(v)] != index_[at(v)]) {
      return;
    }
    int w = -1;
    do {
      w = path_.back();
      path_.pop_back();
      open_[at(w)] = false;
      sets.join(v, w);
    } while (w != v);
  }

  const std::vector<std::vector<int>>& next_;
  std::vector<int> index_;
  std::vector<int> low_;
  std::vector<bool> open_;
  std::vector<int> path_;
  std::vector<std::pair<int, std::size_t>> calls_;
  int count_ = 0;
};

class Preparation {
 public:
  explicit Preparation(const LayerRequest& request)
      : request_(request), graph_(request.graph), sets_(request.graph.layers.size()) {}

  PlacementGroups run() {
    read_layers();
    join_colors();
    join_cycles();
    while (fold_leaves()) {
    }
    return ordered();
  }

 private:
  void read_layers() {
    const double per_byte = request_.machines.bandwidth > 0
                                ? graph_.units_per_transfer_second / request_.machines.bandwidth
                                : 0;
    for (const Layer& layer : graph_.layers) {
      bytes_ += layer.choices.front().constant_bytes + layer.choices.front().in_flight_bytes;
      // Activation and gradient, where one layer stands for both passes.
      out_.transfer.push_back(layer.placement ? 0 : 2 * layer.output_bytes * per_byte);
    }
    for (const LayerEdge& edge : graph_.edges) {
      if (edge.transfer_time) {
        out_.transfer[at(edge.source)] = *edge.transfer_time;
      }
    }
  }

  [[nodiscard]] bool backward(int layer) const {
    const Layer& one = graph_.layers[at(layer)];
    return one.placement && one.placement->backward;
  }

  void join_colors() {
    std::map<std::int64_t, int> first;
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const Layer& layer = graph_.layers[v];
      if (layer.placement && layer.placement->color) {
        const auto [it, is_new] = first.emplace(*layer.placement->color, static_cast<int>(v));
        if (!is_new) {
          sets_.join(it->second, static_cast<int>(v));
        }
      }
    }
    has_forward_.assign(graph_.layers.size(), false);
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      if (!backward(static_cast<int>(v))) {
        has_forward_[at(sets_.find(static_cast<int>(v)))] = true;
      }
    }
  }

  /// Edges of the forward graph, between sets (named by one of their layers): those of forward
  /// layers, and those of backward layers turned round where a set has no forward layer.
  [[nodiscard]] std::set<std::pair<int, int>> forward_edges() {
    std::set<std::pair<int, int>> edges;
    for (const LayerEdge& edge : graph_.edges) {
      const int a = sets_.find(edge.source);
      const int b = sets_.find(edge.target);
      const bool forward = !backward(edge.source) && !backward(edge.target);
      const bool mirrored = backward(edge.source) && backward(edge.target) &&
                            (!forward_set_[at(a)] || !forward_set_[at(b)]);
      if (a != b && forward) {
        edges.emplace(a, b);
      } else if (a != b && mirrored) {
        edges.emplace(b, a);
      }
    }
    return edges;
  }

  void update_forward_sets() {
    forward_set_.assign(graph_.layers.size(), false);
    for (std::size_t v = 0; v < has_forward_.size(); ++v) {
      if (has_forward_[v]) {
        forward_set_[at(sets_.find(static_cast<int>(v)))] = true;
      }
    }
  }

  void join_cycles() {
    update_forward_sets();
    std::vector<std::vector<int>> next(graph_.layers.size());
    for (const auto& [a, b] : forward_edges()) {
      next[at(a)].push_back(b);
    }
    Components(next).join(sets_);
    update_forward_sets();
  }

  /// Joins sets without time to their only neighbour; whether there were any.
  bool fold_leaves() {
    const bool sizes_matter =
        request_.machines.memory_bytes > 0 && bytes_ > request_.machines.memory_bytes;
    std::vector<bool> idle(graph_.layers.size(), true);  // by set: takes no time, runs anywhere
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const Layer& layer = graph_.layers[v];
      const problem::LayerChoice& choice = layer.choices.front();
      const bool runs_anywhere =
          !layer.placement || (layer.placement->on_accelerator && layer.placement->cpu_time == 0);
      const bool small = !sizes_matter || choice.constant_bytes + choice.in_flight_bytes == 0;
      if (choice.time > 0 || !runs_anywhere || !small) {
        idle[at(sets_.find(static_cast<int>(v)))] = false;
      }
    }
    std::vector<int> neighbour(graph_.layers.size(), -1);  // of each set; -2 = several
    const auto meet = [&](int set, int other) {
      int& known = neighbour[at(set)];
      known = known == -1 || known == other ? other : -2;
    };
    for (const LayerEdge& edge : graph_.edges) {
      const int a = sets_.find(edge.source);
      const int b = sets_.find(edge.target);
      if (a != b) {
        meet(a, b);
        meet(b, a);
        idle[at(a)] = idle[at(a)] && out_.transfer[at(edge.source)] == 0;
      }
    }
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      if (sets_.find(static_cast<int>(v)) == static_cast<int>(v) && idle[v] && neighbour[v] >= 0) {
        sets_.join(neighbour[v], static_cast<int>(v));
        update_forward_sets();
        return true;
      }
    }
    return false;
  }

  PlacementGroups ordered() {
    std::vector<int> place(graph_.layers.size(), -1);  // of each set, in the order of the file
    std::vector<int> roots;
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const int root = sets_.find(static_cast<int>(v));
      if (place[at(root)] < 0) {
        place[at(root)] = static_cast<int>(roots.size());
        roots.push_back(root);
      }
    }
    std::vector<std::vector<int>> needs(roots.size());
    for (const auto& [a, b] : forward_edges()) {
      needs[at(place[at(b)])].push_back(place[at(a)]);
    }
    const std::vector<int> order = depth_first_order(needs);
    std::vector<int> number(roots.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      number[at(order[i])] = static_cast<int>(i);
    }
    out_.groups.resize(roots.size());
    out_.needs.resize(roots.size());
    for (std::size_t g = 0; g < roots.size(); ++g) {
      for (const int other : needs[g]) {
        out_.needs[at(number[g])].push_back(number[at(other)]);
      }
    }
    for (const int v : problem::topological_order(graph_)) {
      const int group = number[at(place[at(sets_.find(v))])];
      add(v, out_.groups[at(group)]);
    }
    out_.group_of.resize(graph_.layers.size());
    for (std::size_t g = 0; g < out_.groups.size(); ++g) {
      for (const int v : out_.groups[g].layers) {
        out_.group_of[at(v)] = static_cast<int>(g);
      }
    }
    return std::move(out_);
  }

  void add(int v, PlacementGroups::Group& group) const {
    const Layer& layer = graph_.layers[at(v)];
    const problem::LayerChoice& choice = layer.choices.front();
    group.layers.push_back(v);
    group.time += choice.time;
    group.cpu_time += layer.placement ? layer.placement->cpu_time : 0;
    group.bytes += choice.constant_bytes + choice.in_flight_bytes;
    group.on_accelerator =
        group.on_accelerator && (!layer.placement || layer.placement->on_accelerator);
  }

  const LayerRequest& request_;
  const LayerGraph& graph_;
  Union sets_;
  std::vector<bool> has_forward_{};  ///< by layer
  std::vector<bool> forward_set_{};  ///< by set
  double bytes_ = 0;
  PlacementGroups out_{};
};

}  // namespace

Result<PlacementGroups> placement_groups(const LayerRequest& request, std::string_view method) {
  const bool has_times = request.graph.layers.front().placement.has_value();
  if (!has_times && request.machines.bandwidth <= 0) {
    return invalid_input(
        fmt::format("{} needs the bandwidth of a device: the graph has no transfer times", method),
        "--bandwidth");
  }
  if (!has_times && request.machines.cpus > 0) {
    return unsupported(fmt::format("{} cannot use CPUs: the graph has no CPU times", method),
                       "--cpus");
  }
  if (request.machines.hierarchy.size() > 1) {
    return unsupported(
        fmt::format("{} knows one bandwidth for all devices and no hierarchy", method),
        "--hierarchy");
  }
  return Preparation(request).run();
}

PlacementGroups renumbered(const PlacementGroups& groups, const std::vector<int>& order) {
  PlacementGroups result;
  std::vector<int> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = static_cast<int>(i);
    result.groups.push_back(groups.groups[at(order[i])]);
  }
  for (const int group : order) {
    std::vector<int>& needs = result.needs.emplace_back(groups.needs[at(group)]);
    for (int& needed : needs) {
      needed = place[at(needed)];
    }
  }
  result.transfer = groups.transfer;
  for (const int group : groups.group_of) {
    result.group_of.push_back(place[at(group)]);
  }
  return result;
}

}  // namespace shardplan::planners
