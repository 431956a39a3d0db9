#include "shardplan/planners/pipeline/placement_latency.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// The costs of a piece of an order on an accelerator, while it grows.
class Piece {
 public:
  Piece(const PlacementLatency& costs,
        const std::vector<std::vector<int>>& needed,
        const std::vector<std::vector<int>>& next)
      : costs_(costs), needed_(needed), next_(next), kept_(next.size()), in_(next.size(), -1) {}

  void clear() {
    ++piece_;
    cost_ = 0;
    bytes_ = 0;
  }

  void add(const PlacementGroups::Group& group) {
    bytes_ += group.bytes;
    for (const int layer : group.layers) {
      cost_ += costs_.time(layer) + (next_[at(layer)].empty() ? 0 : costs_.transfer(layer));
      in_[at(layer)] = 2 * piece_ + 1;
      kept_[at(layer)] = next_[at(layer)].size();
      for (const int source : needed_[at(layer)]) {
        if (in_[at(source)] == 2 * piece_ + 1) {
          cost_ -= --kept_[at(source)] == 0 ? costs_.transfer(source) : 0;
        } else if (in_[at(source)] != 2 * piece_) {
          in_[at(source)] = 2 * piece_;
          cost_ += costs_.transfer(source);
        }
      }
    }
  }

  [[nodiscard]] double cost() const { return cost_; }
  [[nodiscard]] double bytes() const { return bytes_; }

 private:
  const PlacementLatency& costs_;
  const std::vector<std::vector<int>>& needed_;
  const std::vector<std::vector<int>>& next_;
  std::vector<std::size_t> kept_;  ///< of each layer inside: its edges that leave the piece
  std::vector<int> in_;  ///< of each layer: 2 * piece + 1 = inside it, 2 * piece = moved in
  int piece_ = 0;
  double cost_ = 0;
  double bytes_ = 0;
};

}  // namespace

PlacementLatency::PlacementLatency(const LayerRequest& request,
                                   const PlacementGroups& groups,
                                   int subgraphs)
    : graph_(request.graph),
      groups_(groups),
      accelerators_(request.machines.devices),
      subgraphs_(subgraphs),
      slots_(request.machines.devices * subgraphs),
      cpus_(request.machines.cpus > 0),
      memory_(request.machines.memory_bytes > 0 ? request.machines.memory_bytes * (1 + kRounding)
                                                : kInfinity),
      next_(graph_.layers.size()),
      needed_(graph_.layers.size()),
      order_(problem::topological_order(graph_)),
      members_(at(slots_)) {
  for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
    const problem::Layer& layer = graph_.layers[v];
    const problem::LayerChoice& choice = layer.choices.front();
    // Layers of both passes answer a query by their forward pass, and send in one direction.
    time_.push_back(layer.placement ? choice.time : choice.forward());
    cpu_time_.push_back(layer.placement ? layer.placement->cpu_time : 0);
    transfer_.push_back(layer.placement ? groups.transfer[v] : groups.transfer[v] / 2);
  }
  for (const problem::LayerEdge& edge : graph_.edges) {
    next_[at(edge.source)].push_back(edge.target);
    needed_[at(edge.target)].push_back(edge.source);
  }
  const std::size_t nodes = graph_.layers.size() + at(slots_);
  work_.resize(nodes);
  ready_.resize(nodes);
  waits_.resize(nodes);
  marked_.resize(nodes);
}

std::vector<double> PlacementLatency::earliest() const {
  std::vector<double> finish(graph_.layers.size(), 0);
  for (const int v : order_) {
    for (const int u : needed_[at(v)]) {
      finish[at(v)] = std::max(finish[at(v)], finish[at(u)]);
    }
    const bool accelerator = groups_.groups[at(groups_.group_of[at(v)])].on_accelerator;
    finish[at(v)] += !accelerator ? cpu_time(v) : !cpus_ ? time(v) : std::min(time(v), cpu_time(v));
  }
  return finish;
}

int PlacementLatency::node(const Slots& slot, int layer) const {
  const int place = slot[at(groups_.group_of[at(layer)])];
  return place == kCpu ? layer : static_cast<int>(graph_.layers.size()) + place;
}

bool PlacementLatency::fits(const Slots& slot) const {
  std::vector<double> bytes(at(accelerators_), 0);
  for (std::size_t g = 0; g < slot.size(); ++g) {
    if (slot[g] == kCpu) {
      if (!cpus_) {
        return false;
      }
      continue;
    }
    bytes[at(slot[g] / subgraphs_)] += groups_.groups[g].bytes;
    if (!groups_.groups[g].on_accelerator) {
      return false;
    }
  }
  return std::all_of(bytes.begin(), bytes.end(), [&](double all) { return all <= memory_; });
}

/// Work of every node: its layers' times, and each output that it takes in or gives away, once.
void PlacementLatency::count_transfers(const Slots& slot) {
  std::fill(work_.begin(), work_.end(), 0);
  std::fill(waits_.begin(), waits_.end(), 0);
  std::fill(marked_.begin(), marked_.end(), -1);
  for (std::vector<int>& members : members_) {
    members.clear();
  }
  const auto layers = static_cast<int>(graph_.layers.size());
  for (const int u : order_) {
    const int own = node(slot, u);
    if (own >= layers) {
      members_[at(own - layers)].push_back(u);
    }
    work_[at(own)] += own < layers ? cpu_time(u) : time(u);
    bool leaves = false;
    for (const int v : next_[at(u)]) {
      const int other = node(slot, v);
      if (other == own) {
        continue;
      }
      leaves = true;
      ++waits_[at(other)];
      if (other >= layers && marked_[at(other)] != u) {
        marked_[at(other)] = u;
        work_[at(other)] += transfer(u);
      }
    }
    work_[at(own)] += leaves && own >= layers ? transfer(u) : 0;
  }
}

/// Puts the nodes that wait for nothing into `free_`; returns the number of nodes.
int PlacementLatency::find_free(const Slots& slot) {
  const auto layers = static_cast<int>(graph_.layers.size());
  int nodes = slots_;
  free_.clear();
  for (int s = 0; s < slots_; ++s) {
    waits_[at(layers + s)] += s % subgraphs_ == 0 ? 0 : 1;
    if (waits_[at(layers + s)] == 0) {
      free_.push_back(layers + s);
    }
  }
  for (int v = 0; v < layers; ++v) {
    const bool alone = node(slot, v) == v;
    nodes += alone ? 1 : 0;
    if (alone && waits_[at(v)] == 0) {
      free_.push_back(v);
    }
  }
  return nodes;
}

/// Tells the nodes behind a layer of `done`, or behind a subgraph on its accelerator.
void PlacementLatency::tell(const Slots& slot, int done, double finish) {
  const auto layers = static_cast<int>(graph_.layers.size());
  const auto one = [&](int other) {
    ready_[at(other)] = std::max(ready_[at(other)], finish);
    if (--waits_[at(other)] == 0) {
      free_.push_back(other);
    }
  };
  const auto behind = [&](int layer) {
    for (const int v : next_[at(layer)]) {
      const int other = node(slot, v);
      if (other != done) {
        one(other);
      }
    }
  };
  if (done < layers) {
    behind(done);
    return;
  }
  for (const int layer : members_[at(done - layers)]) {
    behind(layer);
  }
  if ((done - layers + 1) % subgraphs_ != 0) {
    one(done + 1);
  }
}

double PlacementLatency::latency(const Slots& slot) {
  if (!fits(slot)) {
    return kInfinity;
  }
  count_transfers(slot);
  std::fill(ready_.begin(), ready_.end(), 0);
  int left = find_free(slot);
  double last = 0;
  while (!free_.empty()) {
    const int done = free_.back();
    free_.pop_back();
    --left;
    const double finish = ready_[at(done)] + work_[at(done)];
    last = std::max(last, finish);
    tell(slot, done, finish);
  }
  if (left > 0) {
    return kInfinity;  // they wait for each other
  }
  return last;
}

PlacementLatency::Slots PlacementLatency::greedy(const std::vector<int>& order) const {
  Slots slot(groups_.groups.size(), kCpu);
  int accelerator = 0;
  double used = 0;
  for (const int g : order) {
    const PlacementGroups::Group& group = groups_.groups[at(g)];
    while (accelerator < accelerators_ && used > 0 && used + group.bytes > memory_) {
      ++accelerator;
      used = 0;
    }
    if (accelerator < accelerators_ && group.bytes <= memory_ && group.on_accelerator) {
      slot[at(g)] = accelerator * subgraphs_;
      used += group.bytes;
    }
  }
  return slot;
}

PlacementLatency::Slots PlacementLatency::cut(const std::vector<int>& order,
                                              const solvers::Budget& budget) {
  struct State {
    double latency = kInfinity;
    int from = -1;
    bool on_cpu = false;
  };
  const std::size_t groups = order.size();
  const std::size_t width = at(accelerators_) + 1;
  std::vector<State> states((groups + 1) * width);
  states[0].latency = 0;
  const auto offer = [&](std::size_t to, double latency, std::size_t from, bool on_cpu) {
    if (latency < states[to].latency) {
      states[to] = {latency, static_cast<int>(from), on_cpu};
    }
  };
  Piece piece(*this, needed_, next_);
  for (std::size_t i = 0; i < groups && !budget.exhausted(); ++i) {
    const PlacementGroups::Group& first = groups_.groups[at(order[i])];
    for (std::size_t a = 0; a < width && cpus_; ++a) {
      offer((i + 1) * width + a, states[i * width + a].latency + first.cpu_time, i, true);
    }
    piece.clear();
    for (std::size_t j = i; j < groups; ++j) {
      const PlacementGroups::Group& group = groups_.groups[at(order[j])];
      piece.add(group);
      if (!group.on_accelerator || piece.bytes() > memory_) {
        break;
      }
      for (std::size_t a = 0; a + 1 < width; ++a) {
        const double latency = states[i * width + a].latency + piece.cost();
        offer((j + 1) * width + a + 1, latency, i, false);
      }
    }
  }
  const auto end =
      std::min_element(states.end() - static_cast<std::ptrdiff_t>(width),
                       states.end(),
                       [](const State& a, const State& b) { return a.latency < b.latency; });
  if (end->latency == kInfinity) {
    return {};
  }
  Slots slot(groups, kCpu);
  auto a = static_cast<std::size_t>(end - states.begin()) % width;
  for (std::size_t j = groups; j > 0;) {
    const State& state = states[j * width + a];
    const auto from = static_cast<std::size_t>(state.from);
    a -= state.on_cpu ? 0 : 1;
    for (std::size_t i = from; i < j && !state.on_cpu; ++i) {
      slot[at(order[i])] = static_cast<int>(a) * subgraphs_;
    }
    j = from;
  }
  return slot;
}

/// Where a group may move: to CPUs, to a neighbour's subgraph, to an empty one.
std::vector<int> PlacementLatency::places(const Slots& slot, int group) const {
  std::vector<int> all;
  if (cpus_) {
    all.push_back(kCpu);
  }
  for (const int layer : groups_.groups[at(group)].layers) {
    for (const auto* const others : {&needed_[at(layer)], &next_[at(layer)]}) {
      for (const int other : *others) {
        all.push_back(slot[at(groups_.group_of[at(other)])]);
      }
    }
  }
  std::vector<bool> used(at(slots_) + 1, false);
  for (const int s : slot) {
    used[at(s + 1)] = true;
  }
  for (int s = 0; s < slots_; ++s) {
    if (!used[at(s + 1)]) {
      all.push_back(s);
      if (subgraphs_ == 1) {
        break;
      }
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

double PlacementLatency::improve(Slots& slot, const solvers::Budget& budget) {
  double best = latency(slot);
  for (bool better = true; better && !budget.exhausted();) {
    better = false;
    for (std::size_t g = 0; g < slot.size() && !budget.exhausted(); ++g) {
      for (const int place : places(slot, static_cast<int>(g))) {
        const int old = std::exchange(slot[g], place);
        const double value = latency(slot);
        if (value < best * (1 - kRounding)) {
          best = value;
          better = true;
        } else {
          slot[g] = old;
        }
      }
    }
  }
  return best;
}

}  // namespace shardplan::planners
