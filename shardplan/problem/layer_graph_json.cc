#include "shardplan/problem/layer_graph_json.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "shardplan/problem/inflate.h"
#include "shardplan/problem/layer_graph_import.h"
#include "shardplan/problem/layer_graph_reader.h"
#include "shardplan/support/text.h"

namespace shardplan::problem {
namespace {

constexpr std::string_view kFormat = "shardplan.layer_graph";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kPipeDreamField = "forward_compute_time=";

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string numbers(const std::vector<double>& values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ", ", values[i]);
  }
  return out + "]";
}

std::string choice_json(const LayerChoice& choice) {
  std::string out = fmt::format("{{\"name\": {}, \"degree\": {}, \"time\": {}",
                                quoted(choice.name),
                                choice.degree,
                                choice.time);
  if (choice.forward_time) {
    out += fmt::format(", \"forward_time\": {}", *choice.forward_time);
  }
  out += fmt::format(", \"parameter_bytes\": {}, \"in_flight_bytes\": {}, \"constant_bytes\": {}",
                     choice.parameter_bytes,
                     choice.in_flight_bytes,
                     choice.constant_bytes);
  if (!choice.extra_in_bytes.empty()) {
    out += ", \"extra_in_bytes\": " + numbers(choice.extra_in_bytes);
  }
  if (!choice.extra_out_bytes.empty()) {
    out += ", \"extra_out_bytes\": " + numbers(choice.extra_out_bytes);
  }
  return out + "}";
}

std::string layer_json(const Layer& layer) {
  std::string out = fmt::format("{{\"id\": {}, \"name\": {}, \"output_bytes\": {}",
                                quoted(layer.id),
                                quoted(layer.name),
                                layer.output_bytes);
  if (layer.placement) {
    out += fmt::format(
        ",\n   \"placement\": {{\"cpu_time\": {}, \"on_accelerator\": {}, \"backward\": {}",
        layer.placement->cpu_time,
        layer.placement->on_accelerator,
        layer.placement->backward);
    out += layer.placement->color ? fmt::format(", \"color\": {}}}", *layer.placement->color) : "}";
  }
  out += ",\n   \"choices\": [";
  for (std::size_t c = 0; c < layer.choices.size(); ++c) {
    out += (c == 0 ? "\n    " : ",\n    ") + choice_json(layer.choices[c]);
  }
  return out + "]}";
}

std::string machines_json(const LayerResources& machines) {
  std::string out;
  const auto add = [&](std::string_view name, const auto& value) {
    if (value) {
      out += fmt::format("{}\"{}\": {}", out.empty() ? "" : ", ", name, *value);
    }
  };
  add("devices", machines.devices);
  add("cpus", machines.cpus);
  add("memory_bytes", machines.memory_bytes);
  add("bandwidth", machines.bandwidth);
  add("microbatches", machines.microbatches);
  return "{" + out + "}";
}

/// Reads our own form; strict, as an unknown field may change what the others mean.
class OwnReader : private LayerGraphReader {
 public:
  using LayerGraphReader::LayerGraphReader;

  Result<LayerGraph> run() {
    if (!read() || !finished()) {
      return cursor_.error();
    }
    SHARDPLAN_RETURN_IF_ERROR(join_edges());
    return std::move(graph_);
  }

 private:
  bool unknown(const std::string& key) {
    return cursor_.fail(fmt::format("unknown field \"{}\" (docs/layer_graph.md)", key));
  }

  bool read() {
    return read_object({"format", "version", "time_unit", "layers", "edges"},
                       [this](const std::string& key) { return read_top(key); });
  }

  bool read_top(const std::string& key) {
    if (key == "format") {
      std::string format;
      return cursor_.text(format) &&
             (format == kFormat ||
              cursor_.fail(fmt::format("is \"{}\", not \"{}\"", format, kFormat)));
    }
    if (key == "version") {
      std::int64_t version = 0;
      return read_integer(version, 1) &&
             (version == kVersion ||
              cursor_.fail(
                  fmt::format("version {} is newer than this program, which reads version {}",
                              version,
                              kVersion)));
    }
    if (key == "name") {
      return cursor_.text(graph_.name);
    }
    if (key == "origin") {
      return cursor_.text(graph_.origin);
    }
    if (key == "time_unit") {
      return cursor_.text(graph_.time_unit);
    }
    if (key == "units_per_transfer_second") {
      return read_amount(graph_.units_per_transfer_second);
    }
    if (key == "machines") {
      return read_machines();
    }
    if (key == "layers") {
      return cursor_.list([this] { return read_layer(); });
    }
    return key == "edges" ? cursor_.list([this] { return read_edge(); }) : unknown(key);
  }

  bool read_machines() {
    LayerResources& machines = graph_.defaults;
    return read_object({}, [&](const std::string& key) {
      if (key == "devices") {
        return read_integer(machines.devices.emplace(), 0);
      }
      if (key == "cpus") {
        return read_integer(machines.cpus.emplace(), 0);
      }
      if (key == "memory_bytes") {
        return read_amount(machines.memory_bytes.emplace());
      }
      if (key == "bandwidth") {
        return read_amount(machines.bandwidth.emplace());
      }
      return key == "microbatches" ? read_integer(machines.microbatches.emplace(), 1)
                                   : unknown(key);
    });
  }

  bool read_layer() {
    Layer layer;
    return read_object({"id", "choices"},
                       [&](const std::string& key) {
                         if (key == "id") {
                           return cursor_.text(layer.id);
                         }
                         if (key == "name") {
                           return cursor_.text(layer.name);
                         }
                         if (key == "output_bytes") {
                           return read_amount(layer.output_bytes);
                         }
                         if (key == "placement") {
                           return read_placement(layer.placement.emplace());
                         }
                         return key == "choices" ? cursor_.list([&] {
                           return read_choice(layer.choices.emplace_back());
                         })
                                                 : unknown(key);
                       }) &&
           add_layer(std::move(layer));
  }

  bool read_placement(LayerPlacement& placement) {
    return read_object({"cpu_time"}, [&](const std::string& key) {
      if (key == "cpu_time") {
        return read_amount(placement.cpu_time);
      }
      if (key == "on_accelerator") {
        return read_flag(placement.on_accelerator);
      }
      if (key == "backward") {
        return read_flag(placement.backward);
      }
      return key == "color" ? cursor_.integer(std::numeric_limits<std::int64_t>::min(),
                                              std::numeric_limits<std::int64_t>::max(),
                                              placement.color.emplace())
                            : unknown(key);
    });
  }

  bool read_choice(LayerChoice& choice) {
    return read_object({"time"}, [&](const std::string& key) {
      if (key == "name") {
        return cursor_.text(choice.name);
      }
      if (key == "degree") {
        return read_integer(choice.degree, 1);
      }
      if (key == "time") {
        return read_amount(choice.time);
      }
      if (key == "forward_time") {
        return read_amount(choice.forward_time.emplace());
      }
      if (key == "extra_in_bytes") {
        return cursor_.numbers(choice.extra_in_bytes);
      }
      if (key == "extra_out_bytes") {
        return cursor_.numbers(choice.extra_out_bytes);
      }
      return read_size(choice, key);
    });
  }

  bool read_size(LayerChoice& choice, const std::string& key) {
    if (key == "parameter_bytes") {
      return read_amount(choice.parameter_bytes);
    }
    if (key == "in_flight_bytes") {
      return read_amount(choice.in_flight_bytes);
    }
    return key == "constant_bytes" ? read_amount(choice.constant_bytes) : unknown(key);
  }

  bool read_edge() {
    Edge& edge = edges_.emplace_back();
    return read_object({"source", "target"}, [&](const std::string& key) {
      if (key == "source") {
        return cursor_.text(edge.source);
      }
      if (key == "target") {
        return cursor_.text(edge.target);
      }
      if (key == "bytes") {
        return read_amount(edge.edge.bytes);
      }
      return key == "transfer_time" ? read_amount(edge.edge.transfer_time.emplace()) : unknown(key);
    });
  }
};

enum class Form { kNone, kOwn, kPiper, kDnnPartitioning, kPipeDream };

/// By the first top field that only one form has.
Form form_of(std::string_view text) {
  JsonCursor cursor(text, "");
  if (cursor.peek() != '{') {
    return text.find(kPipeDreamField) == std::string_view::npos ? Form::kNone : Form::kPipeDream;
  }
  std::string key;
  bool more = false;
  if (!cursor.enter_object()) {
    return Form::kNone;
  }
  while (cursor.next_field(key, more) && more) {
    if (key == "format") {
      std::string format;
      return cursor.text(format) && format == kFormat ? Form::kOwn : Form::kNone;
    }
    if (key == "maxFPGAs" || key == "maxSizePerFPGA" || key == "maxCPUs") {
      return Form::kDnnPartitioning;
    }
    if (key == "mbsInBatch" || key == "maxBatchSize" || key == "maxDevices" ||
        key == "maxMemoryPerDevice") {
      return Form::kPiper;
    }
    if (!cursor.skip()) {
      return Form::kNone;
    }
  }
  return Form::kNone;
}

Result<LayerGraph> read(std::string_view text, const std::string& where) {
  switch (form_of(text)) {
    case Form::kOwn:
      return OwnReader(text, where).run();
    case Form::kPiper:
      return read_piper(text, where);
    case Form::kDnnPartitioning:
      return read_dnn_partitioning(text, where);
    case Form::kPipeDream:
      return read_pipedream(text, where);
    case Form::kNone:
      break;
  }
  return invalid_input(
      "no layer graph: neither shardplan's form (\"format\": \"shardplan.layer_graph\") nor "
      "Piper's, "
      "DNN-partitioning's or PipeDream's",
      where);
}

}  // namespace

std::string to_json(const LayerGraph& graph) {
  std::string out = fmt::format(
      "{{\n \"format\": \"{}\",\n \"version\": {},\n \"name\": {},\n \"origin\": {},\n"
      " \"time_unit\": {},\n \"units_per_transfer_second\": {},\n \"machines\": {},\n",
      kFormat,
      kVersion,
      quoted(graph.name),
      quoted(graph.origin),
      quoted(graph.time_unit),
      graph.units_per_transfer_second,
      machines_json(graph.defaults));
  out += " \"layers\": [";
  for (std::size_t v = 0; v < graph.layers.size(); ++v) {
    out += (v == 0 ? "\n  " : ",\n  ") + layer_json(graph.layers[v]);
  }
  out += "],\n \"edges\": [";
  for (std::size_t e = 0; e < graph.edges.size(); ++e) {
    const LayerEdge& edge = graph.edges[e];
    out += fmt::format("{}{{\"source\": {}, \"target\": {}, \"bytes\": {}",
                       e == 0 ? "\n  " : ",\n  ",
                       quoted(graph.layers[static_cast<std::size_t>(edge.source)].id),
                       quoted(graph.layers[static_cast<std::size_t>(edge.target)].id),
                       edge.bytes);
    out += edge.transfer_time ? fmt::format(", \"transfer_time\": {}}}", *edge.transfer_time) : "}";
  }
  return out + "]\n}\n";
}

bool is_layer_graph(std::string_view text) {
  return form_of(text) != Form::kNone;
}

Result<LayerGraph> parse_layer_graph(std::string_view content, const std::string& where) {
  std::string inflated;
  if (is_gzip(content)) {
    SHARDPLAN_ASSIGN_OR_RETURN(inflated, inflate_gzip(content, where));
    content = inflated;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(LayerGraph graph, read(content, where));
  if (graph.name.empty()) {
    const std::size_t slash = where.rfind('/');
    graph.name = slash == std::string::npos ? where : where.substr(slash + 1);
  }
  SHARDPLAN_RETURN_IF_ERROR(check(graph, where));
  return graph;
}

Result<LayerGraph> load_layer_graph(const std::string& path) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string content, read_file(path));
  return parse_layer_graph(content, path);
}

}  // namespace shardplan::problem
