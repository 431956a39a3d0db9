#include "shardplan/planners/pipeline/cut_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

using problem::Layer;
using problem::LayerEdge;
using problem::LayerGraph;

Result<CutStates> CutStates::create(const LayerGraph& graph, std::string_view method, int most) {
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(graph, method));
  CutStates states;
  states.attach(graph);
  if (states.nodes_.empty()) {
    return invalid_input("has no layer but inputs", graph.name);
  }
  // What each node needs, first by any topological numbering, then by one that keeps chains.
  std::vector<int> number(graph.layers.size(), -1);
  const auto needs_of = [&] {
    std::vector<std::vector<int>> needs(states.nodes_.size());
    for (std::size_t n = 0; n < states.nodes_.size(); ++n) {
      number[at(states.nodes_[n])] = static_cast<int>(n);
    }
    for (const LayerEdge& edge : graph.edges) {
      if (number[at(edge.source)] >= 0 && number[at(edge.target)] >= 0) {
        needs[at(number[at(edge.target)])].push_back(number[at(edge.source)]);
      }
    }
    return needs;
  };
  const std::vector<int> order = depth_first_order(needs_of());
  std::vector<int> ordered;
  ordered.reserve(order.size());
  for (const int node : order) {
    ordered.push_back(states.nodes_[at(node)]);
  }
  std::vector<std::vector<int>> tail;
  tail.reserve(order.size());
  for (const int node : order) {
    tail.push_back(states.tail_[at(node)]);
  }
  states.nodes_ = std::move(ordered);
  states.tail_ = std::move(tail);
  const std::optional<DownsetLattice> lattice = all_downsets(needs_of(), most);
  if (!lattice) {
    return unsupported(
        fmt::format("the graph can be cut in more than {} places, which are the states of {}",
                    most,
                    method),
        graph.name);
  }
  states.sum(graph, *lattice);
  return states;
}

void CutStates::attach(const LayerGraph& graph) {
  std::vector<int> readers(graph.layers.size(), 0);
  std::vector<int> source(graph.layers.size(), -1);
  for (const LayerEdge& edge : graph.edges) {
    ++readers[at(edge.source)];
    source[at(edge.target)] = edge.source;
  }
  std::vector<int> number(graph.layers.size(), -1);
  std::vector<int> parts;
  for (const int v : problem::topological_order(graph)) {
    const Layer& layer = graph.layers[at(v)];
    const bool published = graph.origin == "pipedream";
    if (published && layer.name.starts_with("Input")) {
      inputs_.push_back(v);
    } else if (published && layer.name.starts_with("__getitem__") && readers[at(v)] == 0 &&
               source[at(v)] >= 0 && number[at(source[at(v)])] >= 0) {
      parts.push_back(v);
    } else {
      number[at(v)] = static_cast<int>(nodes_.size());
      nodes_.push_back(v);
    }
  }
  tail_.resize(nodes_.size());
  for (const int v : parts) {
    tail_[at(number[at(source[at(v)])])].push_back(v);
  }
}

void CutStates::sum(const LayerGraph& graph, const DownsetLattice& lattice) {
  const auto sets = at(lattice.sets());
  const std::size_t node_words = (nodes_.size() + kWordBits - 1) / kWordBits;
  std::vector<std::vector<std::uint64_t>> members(sets, std::vector<std::uint64_t>(node_words, 0));
  std::vector<double> times(sets, 0);
  std::vector<int> sizes(sets, 0);
  for (std::size_t set = 0; set < sets; ++set) {
    for (int c = lattice.begin[set]; c < lattice.begin[set + 1]; ++c) {
      const DownsetLattice::Cover& cover = lattice.covers[at(c)];
      if (sizes[at(cover.to)] == 0) {
        members[at(cover.to)] = members[set];
        members[at(cover.to)][at(cover.node) / kWordBits] |= std::uint64_t{1}
                                                             << (at(cover.node) % kWordBits);
        sizes[at(cover.to)] = sizes[set] + 1;
      }
    }
  }
  // Added up in the order of the nodes, a set's time is never below that of a part of it.
  for (std::size_t set = 0; set < sets; ++set) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (((members[set][n / kWordBits] >> (n % kWordBits)) & 1U) != 0) {
        times[set] += graph.layers[at(nodes_[n])].choices.front().time;
      }
    }
  }
  std::vector<std::size_t> order(sets);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(times[a], sizes[a], a) < std::tuple(times[b], sizes[b], b);
  });
  std::vector<int> state_of(sets);
  for (std::size_t state = 0; state < sets; ++state) {
    state_of[order[state]] = static_cast<int>(state);
    members_.push_back(std::move(members[order[state]]));
    times_.push_back(times[order[state]]);
  }
  std::vector<int> number(graph.layers.size(), -1);
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    number[at(nodes_[n])] = static_cast<int>(n);
  }
  const problem::LayerAdjacency adjacent = problem::adjacency(graph);
  for (const std::vector<std::uint64_t>& set : members_) {
    const auto holds = [&](int node) {
      return ((set[at(node) / kWordBits] >> (at(node) % kWordBits)) & 1U) != 0;
    };
    double forward = 0;
    double parameters = 0;
    double in_flight = 0;
    double cut = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!holds(static_cast<int>(n))) {
        continue;
      }
      const problem::LayerChoice& choice = graph.layers[at(nodes_[n])].choices.front();
      forward += choice.forward();
      parameters += choice.parameter_bytes;
      in_flight += choice.in_flight_bytes;
      double most = 0;
      for (const int e : adjacent.out[at(nodes_[n])]) {
        const LayerEdge& edge = graph.edges[at(e)];
        const int reader = number[at(edge.target)];
        most = reader >= 0 && !holds(reader) ? std::max(most, edge.bytes) : most;
      }
      cut += most;
    }
    forward_times_.push_back(forward);
    parameters_.push_back(parameters);
    in_flight_.push_back(in_flight);
    cut_.push_back(cut);
  }
  relate(lattice, state_of);
}

void CutStates::relate(const DownsetLattice& lattice, const std::vector<int>& state_of) {
  words_ = (at(count()) + kWordBits - 1) / kWordBits;
  supersets_.assign(at(count()) * words_, 0);
  for (int set = lattice.sets(); set-- > 0;) {
    const auto state = at(state_of[at(set)]);
    std::uint64_t* const row = &supersets_[state * words_];
    row[state / kWordBits] |= std::uint64_t{1} << (state % kWordBits);
    for (int c = lattice.begin[at(set)]; c < lattice.begin[at(set) + 1]; ++c) {
      const std::uint64_t* const wider =
          &supersets_[at(state_of[at(lattice.covers[at(c)].to)]) * words_];
      for (std::size_t w = 0; w < words_; ++w) {
        row[w] |= wider[w];
      }
    }
  }
}

std::vector<int> CutStates::layers(int from, int to) const {
  std::vector<int> all;
  if (from == 0) {
    all = inputs_;
  }
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const std::uint64_t added =
        members_[at(to)][n / kWordBits] & ~members_[at(from)][n / kWordBits];
    if (((added >> (n % kWordBits)) & 1U) != 0) {
      all.push_back(nodes_[n]);
      all.insert(all.end(), tail_[n].begin(), tail_[n].end());
    }
  }
  return all;
}

}  // namespace shardplan::planners
