#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/support/ids.h"
#include "shardplan/support/result.h"

namespace shardplan::problem {

/// The second problem form: a directed acyclic graph of layers, to be cut into the stages of a
/// pipeline or placed on devices. Holds what published profiles hold, with their numbers untouched.
///
/// Times are in the graph's own unit (LayerGraph::time_unit), for one microbatch; sizes in bytes.

/// One way to run a layer: on how many devices, with or without recomputation.
struct LayerChoice {
  std::string name{};                    ///< "vanilla", "activation recomp"
  int degree = 1;                        ///< of tensor parallelism: devices that share the layer
  double time = 0;                       ///< forward and backward together, on `degree` devices
  std::optional<double> forward_time{};  ///< where the profile tells it apart; at most `time`
  double parameter_bytes = 0;            ///< weights on one of the devices
  double in_flight_bytes = 0;            ///< on one device, for each microbatch in flight
  double constant_bytes = 0;             ///< on one device, however many are in flight
  /// Bytes that an edge into (out of) the layer carries more when it is cut, in the order of
  /// `edges`; empty = none. Each is sent forward and, as a gradient, back.
  std::vector<double> extra_in_bytes{};
  std::vector<double> extra_out_bytes{};

  /// The forward time; where it is not told apart, a third of `time`, as a backward pass is two.
  [[nodiscard]] double forward() const { return forward_time.value_or(time / 3); }

  bool operator==(const LayerChoice&) const = default;
};

/// What only profiles for placing operators on single devices say of a layer.
struct LayerPlacement {
  double cpu_time = 0;
  bool on_accelerator = true;           ///< an accelerator can run it, in its first choice's time
  bool backward = false;                ///< it is a part of the backward pass by itself
  std::optional<std::int64_t> color{};  ///< layers of one colour share a device

  bool operator==(const LayerPlacement&) const = default;
};

struct Layer {
  std::string id{};         ///< unique; as the file has it
  std::string name{};       ///< for people; may be empty
  double output_bytes = 0;  ///< of one microbatch, sent once to whoever needs it
  std::vector<LayerChoice>
      choices{};  ///< at least one, by rising degree; the first is the plain one
  std::optional<LayerPlacement> placement{};  ///< all layers of a graph have it, or none

  bool operator==(const Layer&) const = default;
};

struct LayerEdge {
  int source = 0;  ///< index into LayerGraph::layers
  int target = 0;
  double bytes = 0;  ///< in one direction
  /// Time of moving the source's output between an accelerator and the host, where the profile
  /// gives times; equal on all edges of a source.
  std::optional<double> transfer_time{};

  bool operator==(const LayerEdge&) const = default;
};

/// What the file says of machines and batch; a request may say otherwise.
struct LayerResources {
  std::optional<int> devices{};
  std::optional<int> cpus{};
  std::optional<double> memory_bytes{};        ///< of a device
  std::optional<double> bandwidth{};           ///< bytes a second, of a device to the outside
  std::optional<std::int64_t> microbatches{};  ///< in a batch

  bool operator==(const LayerResources&) const = default;
};

struct LayerGraph {
  std::string name{};
  std::string origin = "shardplan";  ///< or "piper", "dnn_partitioning", "pipedream"
  std::string time_unit = "s";       ///< or "ms"
  /// How many time units a second of transfer (bytes / bandwidth) counts for. 1000 for "ms" - but 1
  /// in Piper's files, whose code adds seconds to whatever unit the file's times have.
  double units_per_transfer_second = 1;
  std::vector<Layer> layers{};     ///< in the order of the file
  std::vector<LayerEdge> edges{};  ///< likewise
  LayerResources defaults{};

  bool operator==(const LayerGraph&) const = default;
};

/// Checks everything that the comments above promise, and that the graph has a layer, no cycle, no
/// edge twice, no edge from a layer to itself; that all numbers are finite and none is negative.
/// The first fault as an Error at `where`; a cycle is named layer by layer. Linear time.
[[nodiscard]] Status check(const LayerGraph& graph, const std::string& where);

/// Indices into `edges`, for each layer, rising.
struct LayerAdjacency {
  std::vector<std::vector<int>> in{};
  std::vector<std::vector<int>> out{};
};
[[nodiscard]] LayerAdjacency adjacency(const LayerGraph& graph);

/// The layers in topological order by a first-in-first-out queue of ready layers that starts with
/// the sources in the order of the file (edges likewise). Layers on a cycle are left out.
[[nodiscard]] std::vector<int> topological_order(const LayerGraph& graph);

/// "'node34' (Conv2d)": a layer as messages name it.
[[nodiscard]] std::string describe(const Layer& layer);

/// The graph with `copies` more layers right behind the layer `id`, as published experiments made
/// deeper models out of BERT-32: a copy has the layer's choices, takes over the edges out of what
/// it follows, and has one edge into it, which carries what the layer sends (the largest of its
/// outgoing edges, extra bytes likewise) and costs as incoming extra what the edge from the layer's
/// last predecessor in topological order did. An Error names an unknown id.
[[nodiscard]] Result<LayerGraph> with_clones(const LayerGraph& graph,
                                             const std::string& id,
                                             int copies);

}  // namespace shardplan::problem
