#include "shardplan/problem/layer_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace shardplan::problem {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Checks of one graph; the first fault is kept.
class Check {
 public:
  Check(const LayerGraph& graph, const std::string& where) : graph_(graph), where_(where) {}

  Status run() {
    if (graph_.layers.empty()) {
      return fault("no layers", "");
    }
    SHARDPLAN_RETURN_IF_ERROR(check_units());
    SHARDPLAN_RETURN_IF_ERROR(check_edges());
    SHARDPLAN_RETURN_IF_ERROR(check_layers());
    SHARDPLAN_RETURN_IF_ERROR(check_transfers());
    SHARDPLAN_RETURN_IF_ERROR(check_defaults());
    return check_acyclic();
  }

 private:
  [[nodiscard]] Error fault(const std::string& message, const std::string& place) const {
    return invalid_input(message, place.empty() ? where_ : where_ + ": " + place);
  }

  [[nodiscard]] Status not_negative(double number,
                                    std::string_view what,
                                    const std::string& place) const {
    if (std::isfinite(number) && number >= 0) {
      return {};
    }
    return fault(fmt::format("{} is {}; it must be a finite number of at least 0", what, number),
                 place);
  }

  [[nodiscard]] Status check_units() const {
    if (graph_.time_unit != "s" && graph_.time_unit != "ms") {
      return fault(
          fmt::format("the unit of time is \"{}\"; \"s\" or \"ms\" are known", graph_.time_unit),
          "");
    }
    const double scale = graph_.units_per_transfer_second;
    if (!std::isfinite(scale) || scale <= 0) {
      return fault(fmt::format("units_per_transfer_second is {}; it must be positive", scale), "");
    }
    return {};
  }

  [[nodiscard]] std::string edge_name(const LayerEdge& edge) const {
    return fmt::format("the edge from {} to {}",
                       describe(graph_.layers[at(edge.source)]),
                       describe(graph_.layers[at(edge.target)]));
  }

  [[nodiscard]] Status check_edges() const {
    const auto layers = static_cast<int>(graph_.layers.size());
    std::unordered_set<std::int64_t> seen;
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) {
      const LayerEdge& edge = graph_.edges[e];
      const std::string place = fmt::format("edge {}", e);
      if (edge.source < 0 || edge.source >= layers || edge.target < 0 || edge.target >= layers) {
        return fault(fmt::format("joins layers {} and {} of {}", edge.source, edge.target, layers),
                     place);
      }
      if (edge.source == edge.target) {
        return fault(fmt::format("{} depends on itself", describe(graph_.layers[at(edge.source)])),
                     place);
      }
      if (!seen.insert(std::int64_t{edge.source} * layers + edge.target).second) {
        return fault(fmt::format("{} is there twice", edge_name(edge)), place);
      }
      SHARDPLAN_RETURN_IF_ERROR(not_negative(edge.bytes, "its size in bytes", edge_name(edge)));
    }
    return {};
  }

  [[nodiscard]] Status check_layers() {
    adjacency_ = adjacency(graph_);
    std::unordered_set<std::string_view> ids;
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const Layer& layer = graph_.layers[v];
      if (!ids.insert(layer.id).second) {
        return fault("another layer has the same id", "layer " + describe(layer));
      }
      SHARDPLAN_RETURN_IF_ERROR(check_layer(v));
    }
    return {};
  }

  [[nodiscard]] Status check_layer(std::size_t v) const {
    const Layer& layer = graph_.layers[v];
    const std::string place = "layer " + describe(layer);
    SHARDPLAN_RETURN_IF_ERROR(not_negative(layer.output_bytes, "the size of its output", place));
    if (layer.placement.has_value() != graph_.layers.front().placement.has_value()) {
      return fault("some layers say how they can be placed and some do not", place);
    }
    if (layer.placement) {
      SHARDPLAN_RETURN_IF_ERROR(not_negative(layer.placement->cpu_time, "its CPU time", place));
    }
    if (layer.choices.empty()) {
      return fault("there is no way to run it", place);
    }
    int degree = 1;
    for (const LayerChoice& choice : layer.choices) {
      if (choice.degree < degree) {
        return fault(fmt::format("the degree {} comes after {}; they must rise and be at least 1",
                                 choice.degree,
                                 degree),
                     place);
      }
      degree = choice.degree;
      SHARDPLAN_RETURN_IF_ERROR(check_choice(
          choice,
          v,
          fmt::format("{}, choice '{}' of degree {}", place, choice.name, choice.degree)));
    }
    return {};
  }

  [[nodiscard]] Status check_choice(const LayerChoice& choice,
                                    std::size_t v,
                                    const std::string& place) const {
    SHARDPLAN_RETURN_IF_ERROR(not_negative(choice.time, "the time", place));
    if (choice.forward_time) {
      SHARDPLAN_RETURN_IF_ERROR(not_negative(*choice.forward_time, "the forward time", place));
      if (*choice.forward_time > choice.time) {
        return fault(fmt::format("the forward time {} is more than the whole time {}",
                                 *choice.forward_time,
                                 choice.time),
                     place);
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(not_negative(choice.parameter_bytes, "the size of weights", place));
    SHARDPLAN_RETURN_IF_ERROR(
        not_negative(choice.in_flight_bytes, "the memory of a microbatch in flight", place));
    SHARDPLAN_RETURN_IF_ERROR(not_negative(choice.constant_bytes, "the constant memory", place));
    SHARDPLAN_RETURN_IF_ERROR(
        check_extra(choice.extra_in_bytes, adjacency_.in[v].size(), "incoming", place));
    return check_extra(choice.extra_out_bytes, adjacency_.out[v].size(), "outgoing", place);
  }

  [[nodiscard]] Status check_extra(const std::vector<double>& extra,
                                   std::size_t edges,
                                   std::string_view which,
                                   const std::string& place) const {
    if (!extra.empty() && extra.size() != edges) {
      return fault(fmt::format("{} extra sizes for {} {} edges", extra.size(), edges, which),
                   place);
    }
    for (const double bytes : extra) {
      SHARDPLAN_RETURN_IF_ERROR(
          not_negative(bytes, fmt::format("an extra size of an {} edge", which), place));
    }
    return {};
  }

  [[nodiscard]] Status check_transfers() const {
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      const std::vector<int>& out = adjacency_.out[v];
      for (const int e : out) {
        const LayerEdge& edge = graph_.edges[at(e)];
        if (edge.transfer_time) {
          SHARDPLAN_RETURN_IF_ERROR(
              not_negative(*edge.transfer_time, "its transfer time", edge_name(edge)));
        }
        if (edge.transfer_time != graph_.edges[at(out.front())].transfer_time) {
          return fault(fmt::format("its transfer time differs from that of {}; what a layer sends "
                                   "takes one time",
                                   edge_name(graph_.edges[at(out.front())])),
                       edge_name(edge));
        }
      }
    }
    return {};
  }

  [[nodiscard]] Status check_defaults() const {
    const LayerResources& defaults = graph_.defaults;
    if (defaults.devices.value_or(1) < 0 || defaults.cpus.value_or(0) < 0) {
      return fault("the number of devices is negative", "");
    }
    const std::int64_t microbatches = defaults.microbatches.value_or(1);
    if (microbatches < 1) {
      return fault(fmt::format("a batch of {} microbatches", microbatches), "");
    }
    SHARDPLAN_RETURN_IF_ERROR(
        not_negative(defaults.memory_bytes.value_or(0), "the memory of a device", "machines"));
    SHARDPLAN_RETURN_IF_ERROR(
        not_negative(defaults.bandwidth.value_or(1), "the bandwidth", "machines"));
    if (defaults.bandwidth.value_or(1) == 0) {
      return fault("the bandwidth is 0", "machines");
    }
    return {};
  }

  /// Every layer that the order leaves out has a predecessor that it leaves out too: walking back
  /// ends in a cycle.
  [[nodiscard]] Status check_acyclic() const {
    const std::vector<int> order = topological_order(graph_);
    if (order.size() == graph_.layers.size()) {
      return {};
    }
    std::vector<bool> ordered(graph_.layers.size(), false);
    for (const int v : order) {
      ordered[at(v)] = true;
    }
    int v = static_cast<int>(std::find(ordered.begin(), ordered.end(), false) - ordered.begin());
    std::vector<int> path;
    while (std::find(path.begin(), path.end(), v) == path.end()) {
      path.push_back(v);
      const std::vector<int>& in = adjacency_.in[at(v)];
      v = graph_
              .edges[at(
                  *std::find_if(in.begin(),
                                in.end(),
                                [&](int e) { return !ordered[at(graph_.edges[at(e)].source)]; }))]
              .source;
    }
    constexpr std::size_t kMaxShown = 8;
    std::string cycle = describe(graph_.layers[at(v)]);
    const auto first = std::find(path.begin(), path.end(), v);
    const auto length = static_cast<std::size_t>(path.end() - first);
    for (std::size_t i = 0; i + 1 < std::min(length, kMaxShown); ++i) {
      cycle += " -> " + describe(graph_.layers[at(*(path.end() - 1 - static_cast<long>(i)))]);
    }
    cycle += length > kMaxShown ? " -> ..." : "";
    return fault(
        fmt::format("the layers run in a circle: {} -> {}", cycle, describe(graph_.layers[at(v)])),
        "");
  }

  const LayerGraph& graph_;
  const std::string& where_;
  LayerAdjacency adjacency_{};
};

/// The place among the edges into layer `v` of the one from its last predecessor; 0 without any.
std::size_t last_predecessor(const LayerGraph& graph, std::size_t v) {
  const std::vector<int> order = topological_order(graph);
  const std::vector<int> in = adjacency(graph).in[v];
  std::size_t entry = 0;
  auto latest = order.begin();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto place = std::find(order.begin(), order.end(), graph.edges[at(in[i])].source);
    if (place >= latest) {
      latest = place;
      entry = i;
    }
  }
  return entry;
}

}  // namespace

Status check(const LayerGraph& graph, const std::string& where) {
  return Check(graph, where).run();
}

LayerAdjacency adjacency(const LayerGraph& graph) {
  LayerAdjacency all;
  all.in.resize(graph.layers.size());
  all.out.resize(graph.layers.size());
  for (std::size_t e = 0; e < graph.edges.size(); ++e) {
    all.out[at(graph.edges[e].source)].push_back(static_cast<int>(e));
    all.in[at(graph.edges[e].target)].push_back(static_cast<int>(e));
  }
  return all;
}

std::vector<int> topological_order(const LayerGraph& graph) {
  const LayerAdjacency all = adjacency(graph);
  std::vector<std::size_t> waiting(graph.layers.size());
  std::vector<int> order;
  for (std::size_t v = 0; v < graph.layers.size(); ++v) {
    waiting[v] = all.in[v].size();
    if (waiting[v] == 0) {
      order.push_back(static_cast<int>(v));
    }
  }
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const int e : all.out[at(order[next])]) {
      const int target = graph.edges[at(e)].target;
      if (--waiting[at(target)] == 0) {
        order.push_back(target);
      }
    }
  }
  return order;
}

Result<LayerGraph> with_clones(const LayerGraph& graph, const std::string& id, int copies) {
  const auto found = std::find_if(
      graph.layers.begin(), graph.layers.end(), [&](const Layer& layer) { return layer.id == id; });
  if (found == graph.layers.end()) {
    return invalid_input(fmt::format("no layer has the id '{}'", id), graph.name);
  }
  LayerGraph deeper = graph;
  const auto original = static_cast<std::size_t>(found - graph.layers.begin());
  const std::size_t entry = last_predecessor(graph, original);
  std::size_t followed = original;
  for (int copy = 0; copy < copies; ++copy) {
    const std::size_t added = deeper.layers.size();
    Layer clone = graph.layers[original];
    clone.id = fmt::format("{}.copy{}", id, copy + 1);
    LayerEdge link{static_cast<int>(followed), static_cast<int>(added), 0, std::nullopt};
    bool leaves = false;
    for (LayerEdge& edge : deeper.edges) {
      if (edge.source == link.source) {
        edge.source = link.target;
        link.bytes = std::max(link.bytes, edge.bytes);
        link.transfer_time = edge.transfer_time;
        leaves = true;
      }
    }
    link.bytes = leaves ? link.bytes : clone.output_bytes;
    deeper.edges.push_back(link);
    for (std::size_t c = 0; c < clone.choices.size(); ++c) {
      std::vector<double>& out = deeper.layers[followed].choices[c].extra_out_bytes;
      if (!out.empty()) {
        out = {*std::max_element(out.begin(), out.end())};
      }
      std::vector<double>& in = clone.choices[c].extra_in_bytes;
      if (!in.empty()) {
        in = {in[entry]};
      }
    }
    deeper.layers.push_back(std::move(clone));
    followed = added;
  }
  return deeper;
}

std::string describe(const Layer& layer) {
  return layer.name.empty() || layer.name == layer.id
             ? fmt::format("'{}'", layer.id)
             : fmt::format("'{}' ({})", layer.id, layer.name);
}

}  // namespace shardplan::problem
