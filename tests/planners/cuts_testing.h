#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "layers_testing.h"

// What tests of pipeline planners share: small random graphs, and all ways to cut them.

namespace shardplan::planners {

/// Whether this machine has the published inputs of a folder.
inline bool has_workload(const std::string& folder) {
  return !workloads().empty() && std::filesystem::exists(workloads() / folder);
}

/// Layers in an order in which they can run, the first before all others and the last behind all.
inline problem::LayerGraph random_graph(std::mt19937& random, int layers, double more_edges = 0.3) {
  std::uniform_real_distribution<double> share(0, 1);
  problem::LayerGraph graph;
  graph.name = "random";
  std::vector<bool> read(static_cast<std::size_t>(layers), false);
  for (int v = 0; v < layers; ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = "layer" + std::to_string(v);
    layer.output_bytes = 1 + 9 * share(random);
    problem::LayerChoice& choice = layer.choices.emplace_back();
    choice.time = 0.5 + share(random);
    choice.forward_time = choice.time / 3;
    choice.parameter_bytes = 1 + 4 * share(random);
    choice.in_flight_bytes = layer.output_bytes;
    choice.constant_bytes = 2 * choice.parameter_bytes;
    bool reads = false;
    for (int u = 0; u < v; ++u) {
      const bool last = v + 1 == layers && !read[static_cast<std::size_t>(u)];
      if (last || share(random) < more_edges || (u + 1 == v && !reads)) {
        graph.edges.push_back({u, v, graph.layers[static_cast<std::size_t>(u)].output_bytes, {}});
        read[static_cast<std::size_t>(u)] = true;
        reads = true;
      }
    }
  }
  return graph;
}

/// random_graph() with recomputation, and a choice on two devices, for every layer.
inline problem::LayerGraph random_choices(std::mt19937& random,
                                          int layers,
                                          double more_edges = 0.1) {
  problem::LayerGraph graph = random_graph(random, layers, more_edges);
  for (problem::Layer& layer : graph.layers) {
    problem::LayerChoice more = layer.choices[0];
    more.time *= 4.0 / 3;
    more.in_flight_bytes *= 0.4;
    layer.choices.push_back(more);
    problem::LayerChoice two = layer.choices[0];
    two.degree = 2;
    two.time *= 0.6;
    two.parameter_bytes /= 2;
    two.in_flight_bytes /= 2;
    two.constant_bytes /= 2;
    layer.choices.push_back(two);
  }
  return graph;
}

/// All ways to cut `layers` (in an order in which they can run) into consecutive stages.
inline std::vector<std::vector<std::vector<int>>> all_cuts(const problem::LayerGraph& graph,
                                                           const std::vector<int>& layers,
                                                           std::size_t most_stages) {
  std::vector<std::vector<std::vector<int>>> cuts;
  const auto count = static_cast<unsigned>(layers.size());
  const unsigned all = (1U << count) - 1;
  std::vector<std::vector<int>> stages;
  const auto closed = [&](unsigned set) {
    for (const problem::LayerEdge& edge : graph.edges) {
      for (unsigned t = 0; t < count; ++t) {
        for (unsigned s = 0; s < count; ++s) {
          if (layers[t] == edge.target && layers[s] == edge.source && ((set >> t) & 1U) != 0 &&
              ((set >> s) & 1U) == 0) {
            return false;
          }
        }
      }
    }
    return true;
  };
  const std::function<void(unsigned)> extend = [&](unsigned done) {
    if (done == all) {
      cuts.push_back(stages);
      return;
    }
    if (stages.size() == most_stages) {
      return;
    }
    for (unsigned set = done + 1; set <= all; ++set) {
      if ((set & done) == done && closed(set)) {
        std::vector<int>& stage = stages.emplace_back();
        for (unsigned v = 0; v < count; ++v) {
          if ((((set & ~done) >> v) & 1U) != 0) {
            stage.push_back(layers[v]);
          }
        }
        extend(set);
        stages.pop_back();
      }
    }
  };
  extend(0);
  return cuts;
}

inline std::vector<int> all_layers(const problem::LayerGraph& graph) {
  return problem::topological_order(graph);
}

/// All ways to write `total` as a sum of `parts` positive numbers.
inline std::vector<std::vector<int>> compositions(int total, std::size_t parts) {
  if (parts == 1) {
    return total >= 1 ? std::vector<std::vector<int>>{{total}} : std::vector<std::vector<int>>{};
  }
  std::vector<std::vector<int>> all;
  for (int first = 1; first < total; ++first) {
    for (std::vector<int> rest : compositions(total - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

}  // namespace shardplan::planners
