#pragma once

#include <string>
#include <string_view>

#include "shardplan/problem/layer_graph.h"
#include "shardplan/support/result.h"

namespace shardplan::problem {

/// The JSON form "shardplan.layer_graph", version 1 (docs/layer_graph.md). Doubles come back bit
/// for bit. Deterministic.
[[nodiscard]] std::string to_json(const LayerGraph& graph);

/// Whether the text (inflated, where it came as gzip) looks like a layer graph of any form that
/// parse_layer_graph() reads, rather than a strategy graph or no problem at all. Looks at the
/// beginning and at the names of the top fields.
[[nodiscard]] bool is_layer_graph(std::string_view text);

/// Reads that form, Piper's JSON ("mbsInBatch", "TMPCs"), DNN-partitioning's JSON ("maxFPGAs") or
/// PipeDream's graph.txt ("node1 -- Input -- forward_compute_time=..."), told apart by content, and
/// checks the graph. What the published forms become:
///
/// - Piper: times as they are; the unit is named "ms" when all layers together take more than
///   kPiperSeconds, which no microbatch does (its gnmt and resnet files hold milliseconds), with
///   units_per_transfer_second = 1 as its code computes.
/// - DNN-partitioning: "ms", accelerator time and size as a single choice (size as constant
///   memory), edge cost as transfer time; a colour without a forward layer is as in the file.
/// - PipeDream: milliseconds become seconds, as its reader does; lists of activation sizes are
///   summed; activation size = output, memory in flight and bytes of the outgoing edges; constant
///   memory = twice the weights (with their gradients), as Piper's files of the same profiles have.
[[nodiscard]] Result<LayerGraph> parse_layer_graph(std::string_view content,
                                                   const std::string& where);
inline constexpr double kPiperSeconds = 60;

/// Reads the file at `path`.
[[nodiscard]] Result<LayerGraph> load_layer_graph(const std::string& path);

}  // namespace shardplan::problem
