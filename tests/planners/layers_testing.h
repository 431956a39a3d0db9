#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/problem/layer_graph_json.h"

namespace shardplan::planners {

/// The folder of published inputs; empty where there is none.
inline std::filesystem::path workloads() {
  const char* named = std::getenv("SHARDPLAN_WORKLOADS");
  const std::filesystem::path folder =
      named != nullptr ? named : std::filesystem::path("../shared/workloads");
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

inline problem::LayerGraph published(const std::string& file) {
  auto graph = problem::load_layer_graph((workloads() / file).string());
  EXPECT_TRUE(graph) << graph.error().text();
  return std::move(*graph);
}

inline LayerPlanResult plan_layers(const std::string& planner,
                                   const problem::LayerGraph& graph,
                                   const problem::LayerMachines& machines,
                                   const std::map<std::string, std::string>& options = {}) {
  const auto info = find_layer_planner(planner);
  EXPECT_TRUE(info) << planner;
  auto result = solve_layers(**info, LayerRequest{graph, machines, options, 0, {}});
  EXPECT_TRUE(result) << planner << ": " << result.error().text();
  return result ? std::move(*result) : LayerPlanResult{};
}

inline Error refusal(const std::string& planner,
                     const problem::LayerGraph& graph,
                     const problem::LayerMachines& machines,
                     const std::map<std::string, std::string>& options = {}) {
  const auto info = find_layer_planner(planner);
  const auto result = solve_layers(**info, LayerRequest{graph, machines, options, 0, {}});
  EXPECT_FALSE(result) << planner;
  return result ? Error{} : result.error();
}

inline problem::LayerMachines machines(int devices,
                                       double memory,
                                       double bandwidth,
                                       std::int64_t microbatches) {
  problem::LayerMachines all;
  all.devices = devices;
  all.memory_bytes = memory;
  all.bandwidth = bandwidth;
  all.microbatches = microbatches;
  return all;
}

/// A connected graph by chance: layers with one or two choices for each of a few degrees, and an
/// edge now and then.
inline problem::LayerGraph random_layers(std::mt19937& random, int layers, bool degrees) {
  std::uniform_real_distribution<double> chance(0, 1);
  problem::LayerGraph graph;
  graph.name = "random";
  for (int v = 0; v < layers; ++v) {
    problem::Layer& layer = graph.layers.emplace_back();
    layer.id = std::to_string(v);
    const double time = chance(random) < 0.1 ? 0 : 1 + 4 * chance(random);
    const double activation = std::floor(1 + 9 * chance(random));
    const double weights = std::floor(10 * chance(random));
    for (const int degree : degrees ? std::vector<int>{1, 2} : std::vector<int>{1}) {
      const double share = degree == 1 ? 1 : 0.6;
      problem::LayerChoice plain{"plain",
                                 degree,
                                 time * share,
                                 std::nullopt,
                                 weights / degree,
                                 activation / degree,
                                 weights / degree,
                                 {},
                                 {}};
      layer.choices.push_back(plain);
      if (chance(random) < 0.8) {
        plain.name = "recompute";
        plain.time *= 1.2 + 0.3 * chance(random);
        plain.constant_bytes += 0.7 * plain.in_flight_bytes;
        plain.in_flight_bytes *= 0.25;
        layer.choices.push_back(plain);
      }
    }
  }
  for (int v = 1; v < layers; ++v) {
    for (int u = 0; u < v; ++u) {
      if (chance(random) < 1.6 / v || (u + 1 == v && chance(random) < 0.4)) {
        graph.edges.push_back({u, v, std::floor(1 + 5 * chance(random)), std::nullopt});
      }
    }
  }
  return graph;
}

}  // namespace shardplan::planners
