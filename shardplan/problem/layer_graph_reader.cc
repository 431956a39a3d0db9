#include "shardplan/problem/layer_graph_reader.h"

#include <fmt/format.h>

namespace shardplan::problem {

bool LayerGraphReader::read_amount(double& out) {
  if (!cursor_.number(out)) {
    return false;
  }
  return out >= 0 || cursor_.fail(fmt::format("is {}; it must not be negative", out));
}

bool LayerGraphReader::read_flag(bool& out) {
  const char next = cursor_.peek();
  if (next == 't' || next == 'f') {
    out = next == 't';
    return cursor_.skip();
  }
  std::int64_t value = 0;
  if (!cursor_.integer(0, 1, value)) {
    return false;
  }
  out = value == 1;
  return true;
}

bool LayerGraphReader::read_number_id(std::string& out) {
  std::int64_t id = 0;
  if (!cursor_.integer(
          std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), id)) {
    return false;
  }
  out = fmt::format("{}", id);
  return true;
}

bool LayerGraphReader::add_layer(Layer layer) {
  if (!index_.emplace(layer.id, static_cast<int>(graph_.layers.size())).second) {
    return cursor_.fail(fmt::format("another layer has the id '{}'", layer.id));
  }
  graph_.layers.push_back(std::move(layer));
  return true;
}

Status LayerGraphReader::join_edges() {
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    const std::array<const std::string*, 2> ids{&edges_[e].source, &edges_[e].target};
    std::array<int, 2> found{};
    for (std::size_t end = 0; end < 2; ++end) {
      const auto it = index_.find(*ids[end]);
      if (it == index_.end()) {
        return error(fmt::format("no layer has the id '{}'", *ids[end]),
                     fmt::format("edges / {}", e));
      }
      found[end] = it->second;
    }
    LayerEdge edge = edges_[e].edge;
    edge.source = found[0];
    edge.target = found[1];
    graph_.edges.push_back(edge);
  }
  adjacency_ = adjacency(graph_);
  return {};
}

Result<std::vector<double>> LayerGraphReader::join_extra(const Extra& extra,
                                                         std::size_t v,
                                                         bool incoming,
                                                         const std::string& place) const {
  const std::vector<int>& edges = incoming ? adjacency_.in[v] : adjacency_.out[v];
  std::vector<double> bytes;
  bool any = false;
  for (const int e : edges) {
    const LayerEdge& edge = graph_.edges[static_cast<std::size_t>(e)];
    const Layer& other =
        graph_.layers[static_cast<std::size_t>(incoming ? edge.source : edge.target)];
    const auto found = std::find_if(
        extra.begin(), extra.end(), [&](const auto& entry) { return entry.first == other.id; });
    if (found == extra.end()) {
      return error(fmt::format("nothing for {} {}, which the edges name; every {} must be listed",
                               incoming ? "the predecessor" : "the successor",
                               describe(other),
                               incoming ? "predecessor" : "successor"),
                   place);
    }
    bytes.push_back(found->second);
    any = any || found->second != 0;
  }
  if (extra.size() != edges.size()) {
    for (const auto& [id, ignored] : extra) {
      const auto names = [&](int e) {
        const LayerEdge& edge = graph_.edges[static_cast<std::size_t>(e)];
        return graph_.layers[static_cast<std::size_t>(incoming ? edge.source : edge.target)].id ==
               id;
      };
      if (std::none_of(edges.begin(), edges.end(), names)) {
        return error(
            fmt::format("'{}' is no {} by the edges", id, incoming ? "predecessor" : "successor"),
            place);
      }
    }
  }
  return any ? bytes : std::vector<double>{};
}

}  // namespace shardplan::problem
