// The JSON forms of Piper and DNN-partitioning.
#include "shardplan/problem/layer_graph_import.h"

#include <fmt/format.h>

#include <charconv>

#include "shardplan/problem/layer_graph_json.h"
#include "shardplan/problem/layer_graph_reader.h"

namespace shardplan::problem {
namespace {

constexpr double kMillisecondsInSecond = 1000;

class PiperReader : private LayerGraphReader {
 public:
  using LayerGraphReader::LayerGraphReader;

  Result<LayerGraph> run() {
    graph_.origin = "piper";
    if (!read() || !finished()) {
      return cursor_.error();
    }
    SHARDPLAN_RETURN_IF_ERROR(join_edges());
    double total = 0;
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      SHARDPLAN_RETURN_IF_ERROR(join_layer(v));
      const std::vector<LayerChoice>& choices = graph_.layers[v].choices;
      total += choices.empty() ? 0 : choices.front().time;
    }
    graph_.time_unit = total > kPiperSeconds ? "ms" : "s";
    return std::move(graph_);
  }

 private:
  struct Extras {
    Extra in{};
    Extra out{};
  };

  bool read() {
    return read_object({"nodes", "edges"}, [this](const std::string& key) {
      if (key == "maxDevices") {
        return read_integer(graph_.defaults.devices.emplace(), 0);
      }
      if (key == "maxMemoryPerDevice") {
        return read_amount(graph_.defaults.memory_bytes.emplace());
      }
      if (key == "bandwidth") {
        return read_amount(graph_.defaults.bandwidth.emplace());
      }
      if (key == "mbsInBatch" || key == "maxBatchSize") {
        return read_integer(graph_.defaults.microbatches.emplace(), 1);
      }
      if (key == "nodes") {
        return cursor_.list([this] { return read_layer(); });
      }
      if (key == "edges") {
        return cursor_.list([this] { return read_edge(); });
      }
      return cursor_.skip();
    });
  }

  bool read_layer() {
    Layer layer;
    std::vector<Extras> extras;
    return read_object({"id", "TMPCs"},
                       [&](const std::string& key) {
                         if (key == "id") {
                           return read_number_id(layer.id);
                         }
                         if (key == "name") {
                           return cursor_.text(layer.name);
                         }
                         return key == "TMPCs" ? read_degrees(layer, extras) : cursor_.skip();
                       }) &&
           sort_choices(layer, extras) && add_layer(std::move(layer));
  }

  bool read_degrees(Layer& layer, std::vector<Extras>& extras) {
    return read_object({}, [&](const std::string& key) {
      int degree = 0;
      const auto [rest, failed] = std::from_chars(key.data(), key.data() + key.size(), degree);
      if (failed != std::errc{} || rest != key.data() + key.size() || degree < 1) {
        return cursor_.fail("the key must be a degree of tensor parallelism, at least 1");
      }
      return cursor_.list([&] {
        layer.choices.emplace_back().degree = degree;
        return read_choice(layer.choices.back(), extras.emplace_back());
      });
    });
  }

  bool read_choice(LayerChoice& choice, Extras& extras) {
    return read_object({"timePerSample",
                        "parameterSize",
                        "memoryUsageA",
                        "memoryUsageB",
                        "syncTimeFw",
                        "syncTimeBw"},
                       [&](const std::string& key) {
                         if (key == "id") {
                           return cursor_.text(choice.name);
                         }
                         if (key == "timePerSample") {
                           return read_amount(choice.time);
                         }
                         if (key == "parameterSize") {
                           return read_amount(choice.parameter_bytes);
                         }
                         if (key == "memoryUsageA") {
                           return read_amount(choice.in_flight_bytes);
                         }
                         if (key == "memoryUsageB") {
                           return read_amount(choice.constant_bytes);
                         }
                         if (key == "syncTimeFw") {
                           return read_extra(extras.in);
                         }
                         return key == "syncTimeBw" ? read_extra(extras.out) : cursor_.skip();
                       });
  }

  bool read_extra(Extra& extra) {
    return read_object({}, [&](const std::string& key) {
      return read_amount(extra.emplace_back(key, 0.0).second);
    });
  }

  /// By degree, the choices of one degree in the order of the file.
  bool sort_choices(Layer& layer, std::vector<Extras>& extras) {
    std::vector<std::size_t> order(layer.choices.size());
    for (std::size_t c = 0; c < order.size(); ++c) {
      order[c] = c;
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return layer.choices[a].degree < layer.choices[b].degree;
    });
    std::vector<LayerChoice> choices;
    std::vector<Extras>& sorted = extras_.emplace_back();
    for (const std::size_t c : order) {
      choices.push_back(std::move(layer.choices[c]));
      sorted.push_back(std::move(extras[c]));
    }
    layer.choices = std::move(choices);
    return true;
  }

  bool read_edge() {
    Edge& edge = edges_.emplace_back();
    return read_object({"sourceId", "destId", "communicationCost"}, [&](const std::string& key) {
      if (key == "sourceId") {
        return read_number_id(edge.source);
      }
      if (key == "destId") {
        return read_number_id(edge.target);
      }
      return key == "communicationCost" ? read_amount(edge.edge.bytes) : cursor_.skip();
    });
  }

  Status join_layer(std::size_t v) {
    Layer& layer = graph_.layers[v];
    for (const int e : adjacency_.out[v]) {
      layer.output_bytes =
          std::max(layer.output_bytes, graph_.edges[static_cast<std::size_t>(e)].bytes);
    }
    for (std::size_t c = 0; c < layer.choices.size(); ++c) {
      LayerChoice& choice = layer.choices[c];
      const std::string place =
          fmt::format("nodes / {} / TMPCs / {} / '{}'", v, choice.degree, choice.name);
      SHARDPLAN_ASSIGN_OR_RETURN(choice.extra_in_bytes,
                                 join_extra(extras_[v][c].in, v, true, place + " / syncTimeFw"));
      SHARDPLAN_ASSIGN_OR_RETURN(choice.extra_out_bytes,
                                 join_extra(extras_[v][c].out, v, false, place + " / syncTimeBw"));
    }
    return {};
  }

  std::vector<std::vector<Extras>> extras_;  ///< of each choice of each layer
};

class DnnPartitioningReader : private LayerGraphReader {
 public:
  using LayerGraphReader::LayerGraphReader;

  Result<LayerGraph> run() {
    graph_.origin = "dnn_partitioning";
    graph_.time_unit = "ms";
    graph_.units_per_transfer_second = kMillisecondsInSecond;
    if (!read() || !finished()) {
      return cursor_.error();
    }
    SHARDPLAN_RETURN_IF_ERROR(join_edges());
    for (const LayerEdge& edge : graph_.edges) {
      double& output = graph_.layers[static_cast<std::size_t>(edge.source)].output_bytes;
      output = std::max(output, edge.bytes);
    }
    return std::move(graph_);
  }

 private:
  bool read() {
    return read_object({"nodes", "edges"}, [this](const std::string& key) {
      if (key == "maxSizePerFPGA") {
        return read_amount(graph_.defaults.memory_bytes.emplace());
      }
      if (key == "maxFPGAs") {
        return read_integer(graph_.defaults.devices.emplace(), 0);
      }
      if (key == "maxCPUs") {
        return read_integer(graph_.defaults.cpus.emplace(), 0);
      }
      if (key == "nodes") {
        return cursor_.list([this] { return read_layer(); });
      }
      if (key == "edges") {
        return cursor_.list([this] { return read_edge(); });
      }
      return cursor_.skip();
    });
  }

  bool read_layer() {
    Layer layer;
    LayerChoice& choice = layer.choices.emplace_back();
    LayerPlacement& placement = layer.placement.emplace();
    return read_object(
               {"id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "size"},
               [&](const std::string& key) {
                 if (key == "id") {
                   return read_number_id(layer.id);
                 }
                 if (key == "name") {
                   return cursor_.text(layer.name);
                 }
                 if (key == "supportedOnFpga") {
                   return read_flag(placement.on_accelerator);
                 }
                 if (key == "isBackwardNode") {
                   return read_flag(placement.backward);
                 }
                 if (key == "cpuLatency") {
                   return read_amount(placement.cpu_time);
                 }
                 if (key == "fpgaLatency") {
                   return read_amount(choice.time);
                 }
                 if (key == "colorClass") {
                   return read_color(placement);
                 }
                 return key == "size" ? read_amount(choice.constant_bytes) : cursor_.skip();
               }) &&
           add_layer(std::move(layer));
  }

  bool read_color(LayerPlacement& placement) {
    if (cursor_.null()) {
      return true;
    }
    return cursor_.good() && cursor_.integer(std::numeric_limits<std::int64_t>::min(),
                                             std::numeric_limits<std::int64_t>::max(),
                                             placement.color.emplace());
  }

  bool read_edge() {
    Edge& edge = edges_.emplace_back();
    return read_object({"sourceId", "destId", "cost"}, [&](const std::string& key) {
      if (key == "sourceId") {
        return read_number_id(edge.source);
      }
      if (key == "destId") {
        return read_number_id(edge.target);
      }
      if (key == "cost") {
        return read_amount(edge.edge.transfer_time.emplace());
      }
      return key == "size" ? read_amount(edge.edge.bytes) : cursor_.skip();
    });
  }
};

}  // namespace

Result<LayerGraph> read_piper(std::string_view text, const std::string& where) {
  return PiperReader(text, where).run();
}

Result<LayerGraph> read_dnn_partitioning(std::string_view text, const std::string& where) {
  return DnnPartitioningReader(text, where).run();
}

}  // namespace shardplan::problem
