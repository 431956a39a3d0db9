#pragma once

#include <string>
#include <string_view>

#include "shardplan/problem/layer_graph.h"
#include "shardplan/support/result.h"

namespace shardplan::problem {

/// Readers of published forms, see parse_layer_graph(). Numbers and names are checked as they are
/// read, the graph as a whole is not.
[[nodiscard]] Result<LayerGraph> read_piper(std::string_view text, const std::string& where);
[[nodiscard]] Result<LayerGraph> read_dnn_partitioning(std::string_view text,
                                                       const std::string& where);
[[nodiscard]] Result<LayerGraph> read_pipedream(std::string_view text, const std::string& where);

}  // namespace shardplan::problem
