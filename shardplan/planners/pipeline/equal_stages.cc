#include "shardplan/planners/pipeline/equal_stages.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

namespace shardplan::planners {
namespace {

using problem::Layer;
using problem::LayerChoice;
using problem::LayerEdge;
using problem::LayerGraph;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// "blocks.3.attention" and "blocks.11.attention" are the same kind of layer.
std::string kind_of(const Layer& layer) {
  std::string kind = layer.name.empty() ? layer.id : layer.name;
  kind.erase(std::remove_if(kind.begin(), kind.end(), [](char c) { return c >= '0' && c <= '9'; }),
             kind.end());
  return kind;
}

}  // namespace

EqualStages::EqualStages(const LayerGraph& graph) {
  const std::vector<int> order = problem::topological_order(graph);
  std::map<std::string, std::vector<std::size_t>> kinds;
  for (std::size_t i = 0; i < order.size(); ++i) {
    kinds[kind_of(graph.layers[at(order[i])])].push_back(i);
  }
  std::vector<std::size_t> largest;
  for (const auto& [kind, group] : kinds) {
    largest = group.size() > largest.size() ? group : largest;
  }
  const bool repeated =
      2 * largest.size() > order.size() && largest.back() - largest.front() + 1 == largest.size();
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::vector<int>& part = !repeated             ? blocks_
                             : i < largest.front() ? before_
                             : i <= largest.back() ? blocks_
                                                   : after_;
    part.push_back(order[i]);
  }
}

std::vector<std::vector<int>> EqualStages::cut(int stages, bool own_ends) const {
  std::vector<std::vector<int>> all;
  auto next = blocks_.begin();
  for (int s = 0; s < stages; ++s) {
    const int more = s >= stages - blocks() % stages ? 1 : 0;
    const auto end = next + blocks() / stages + more;
    all.emplace_back(next, end);
    next = end;
  }
  if (own_ends) {
    if (!before_.empty()) {
      all.insert(all.begin(), before_);
    }
    if (!after_.empty()) {
      all.push_back(after_);
    }
  } else {
    all.front().insert(all.front().begin(), before_.begin(), before_.end());
    all.back().insert(all.back().end(), after_.begin(), after_.end());
  }
  return all;
}

std::vector<int> uniform_choice(const LayerGraph& graph, int degree, int variant) {
  std::vector<int> choices;
  for (const Layer& layer : graph.layers) {
    int found = -1;
    int seen = 0;
    for (std::size_t c = 0; c < layer.choices.size(); ++c) {
      if (layer.choices[c].degree == degree && seen++ == variant) {
        found = static_cast<int>(c);
      }
    }
    if (found < 0) {
      return {};
    }
    choices.push_back(found);
  }
  return choices;
}

std::vector<int> common_degrees(const LayerGraph& graph) {
  std::vector<int> degrees;
  for (const LayerChoice& choice : graph.layers.front().choices) {
    const int degree = choice.degree;
    if ((degrees.empty() || degrees.back() != degree) &&
        !uniform_choice(graph, degree, 0).empty()) {
      degrees.push_back(degree);
    }
  }
  return degrees;
}

std::vector<StageSums> stage_sums(const LayerGraph& graph,
                                  const std::vector<std::vector<int>>& stages,
                                  const std::vector<int>& choices) {
  std::vector<std::size_t> stage_of(graph.layers.size(), 0);
  std::vector<StageSums> sums(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const int v : stages[s]) {
      stage_of[at(v)] = s;
      const LayerChoice& choice = graph.layers[at(v)].choices[at(choices[at(v)])];
      const double forward = choice.forward();
      sums[s].forward += forward;
      sums[s].backward += choice.time - forward;
      sums[s].parameter_bytes += choice.parameter_bytes;
      sums[s].in_flight_bytes += choice.in_flight_bytes;
      sums[s].constant_bytes += choice.constant_bytes;
    }
  }
  const problem::LayerAdjacency adjacent = problem::adjacency(graph);
  for (std::size_t v = 0; v < graph.layers.size(); ++v) {
    const LayerChoice& choice = graph.layers[v].choices[at(choices[v])];
    for (std::size_t k = 0; k < adjacent.in[v].size(); ++k) {
      const LayerEdge& edge = graph.edges[at(adjacent.in[v][k])];
      if (stage_of[at(edge.source)] != stage_of[v]) {
        sums[stage_of[v]].in_bytes +=
            edge.bytes + (choice.extra_in_bytes.empty() ? 0 : choice.extra_in_bytes[k]);
      }
    }
    for (std::size_t k = 0; k < adjacent.out[v].size(); ++k) {
      const LayerEdge& edge = graph.edges[at(adjacent.out[v][k])];
      if (stage_of[at(edge.target)] != stage_of[v]) {
        sums[stage_of[v]].out_bytes +=
            edge.bytes + (choice.extra_out_bytes.empty() ? 0 : choice.extra_out_bytes[k]);
      }
    }
  }
  return sums;
}

}  // namespace shardplan::planners
