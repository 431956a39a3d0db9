#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardplan/problem/layer_graph.h"

namespace shardplan::problem {

/// What becomes of a layer's activations until its backward pass.
enum class Retention : std::uint8_t { kKeep, kRecompute, kSwap };

/// Layers that run together: a stage of a pipeline on its devices, or what one device is given by a
/// placement. The layers are indices into LayerGraph::layers, in an order in which they can run.
struct LayerStage {
  std::vector<int> layers{};
  std::vector<int> choices{};  ///< for each of them, an index into Layer::choices; empty = all 0
  int replicas = 1;            ///< data-parallel copies of the stage
  int degree = 1;              ///< devices of one copy
  bool on_cpu = false;         ///< placements only
  double time = 0;             ///< its part of the objective, in the graph's unit
  double memory_bytes = 0;     ///< of one device, as the method counts it
  /// A hierarchical method cuts a stage again, on the machines of the next lower level: stages of
  /// one copy, which together hold `layers`. Empty: the copy is not cut.
  std::vector<LayerStage> inner{};
  std::vector<int> devices{};  ///< which ones, where the method says: numbers from 0, by server
  std::vector<Retention> retention{};  ///< for each of `layers`; empty = all kept
};

/// What a planner of layer graphs answers.
struct LayerPlan {
  std::vector<LayerStage> stages{};  ///< first to last; of a placement: one a device in use
  int pipelines = 1;                 ///< copies of the whole pipeline, apart from the stages' own
  std::int64_t microbatches = 0;     ///< in a batch; 0 = the objective does not ask
  std::string schedule{};            ///< "gpipe", "1f1b", ...; empty where the method names none
};

/// Machines and batch of a question, complete: what was asked for, else the file's defaults.
struct LayerMachines {
  int devices = 1;  ///< with a hierarchy: the product of its levels
  int cpus = 0;
  double memory_bytes = 0;        ///< of a device; 0 = no limit
  double bandwidth = 0;           ///< bytes a second; 0 = nobody said
  std::int64_t microbatches = 0;  ///< in a batch; 0 = nobody said
  /// Machines at each level, from the devices of a server up ("4x4": 4 devices a server, 4
  /// servers), and the bandwidth within each. Empty = one level of `devices` and `bandwidth`.
  std::vector<int> hierarchy{};
  std::vector<double> bandwidths{};
};

}  // namespace shardplan::problem
