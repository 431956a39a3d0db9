// PipeDream's graph.txt: a line a layer, then a line an edge that begins with a tab.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "shardplan/problem/layer_graph_import.h"

namespace shardplan::problem {
namespace {

constexpr std::string_view kSeparator = " -- ";
constexpr double kMillisecondsInSecond = 1000;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos
             ? std::string_view{}
             : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) {
    graph_.origin = "pipedream";
  }

  Result<LayerGraph> run() {
    while (!text_.empty()) {
      ++line_;
      const std::size_t end = text_.find('\n');
      const std::string_view line = text_.substr(0, end);
      text_ = end == std::string_view::npos ? std::string_view{} : text_.substr(end + 1);
      if (trimmed(line).empty()) {
        continue;
      }
      SHARDPLAN_RETURN_IF_ERROR(line.front() == '\t' ? read_edge(trimmed(line))
                                                     : read_layer(trimmed(line)));
    }
    return std::move(graph_);
  }

 private:
  [[nodiscard]] Error fault(const std::string& message) const {
    return invalid_input(message, fmt::format("{}: line {}", where_, line_));
  }

  [[nodiscard]] Result<double> number(std::string_view text, std::string_view what) const {
    double value = 0;
    const auto [rest, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed != std::errc{} || rest != text.data() + text.size() || !std::isfinite(value) ||
        value < 0) {
      return fault(fmt::format("{} is '{}'; expected a finite number of at least 0", what, text));
    }
    return value;
  }

  /// A number or "[a; b; ...]", summed.
  [[nodiscard]] Result<double> sum(std::string_view text, std::string_view what) const {
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
      return number(text, what);
    }
    text = text.substr(1, text.size() - 2);
    double total = 0;
    while (!text.empty()) {
      const std::size_t end = text.find(';');
      SHARDPLAN_ASSIGN_OR_RETURN(const double one, number(trimmed(text.substr(0, end)), what));
      total += one;
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    }
    return total;
  }

  /// The value of "name=value" among the fields that commas separate.
  [[nodiscard]] Result<double> field(std::string_view fields, std::string_view name) const {
    for (std::string_view rest = fields; !rest.empty();) {
      const std::size_t end = rest.find(',');
      const std::string_view one = trimmed(rest.substr(0, end));
      if (one.size() > name.size() && one.substr(0, name.size()) == name &&
          one[name.size()] == '=') {
        return sum(trimmed(one.substr(name.size() + 1)), name);
      }
      rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    }
    return fault(
        fmt::format("'{}' is missing; a layer has forward_compute_time, "
                    "backward_compute_time, activation_size and parameter_size",
                    name));
  }

  /// "id -- description -- fields [-- stage_id=k]"; descriptions may hold anything but the
  /// separator followed by the first field's name.
  Status read_layer(std::string_view line) {
    const std::size_t first = line.find(kSeparator);
    const std::size_t fields = line.find(" -- forward_compute_time=");
    if (first == std::string_view::npos || fields == std::string_view::npos) {
      return fault(
          "expected 'id -- description -- forward_compute_time=ms, backward_compute_time=ms, "
          "activation_size=bytes, parameter_size=bytes', or a tab and 'id -- id'");
    }
    Layer layer;
    layer.id = std::string(trimmed(line.substr(0, first)));
    if (fields > first) {
      layer.name = std::string(
          trimmed(line.substr(first + kSeparator.size(), fields - first - kSeparator.size())));
    }
    std::string_view values = line.substr(fields + kSeparator.size());
    values = values.substr(0, values.find(kSeparator));
    SHARDPLAN_ASSIGN_OR_RETURN(const double forward, field(values, "forward_compute_time"));
    SHARDPLAN_ASSIGN_OR_RETURN(const double backward, field(values, "backward_compute_time"));
    SHARDPLAN_ASSIGN_OR_RETURN(layer.output_bytes, field(values, "activation_size"));
    SHARDPLAN_ASSIGN_OR_RETURN(const double weights, field(values, "parameter_size"));
    LayerChoice& plain = layer.choices.emplace_back();
    plain.name = "vanilla";
    plain.forward_time = forward / kMillisecondsInSecond;
    plain.time = (forward + backward) / kMillisecondsInSecond;
    plain.parameter_bytes = weights;
    plain.in_flight_bytes = layer.output_bytes;
    plain.constant_bytes = 2 * weights;
    const auto index = static_cast<int>(graph_.layers.size());
    if (!index_.emplace(layer.id, index).second) {
      return fault(fmt::format("another layer has the id '{}'", layer.id));
    }
    graph_.layers.push_back(std::move(layer));
    return {};
  }

  Status read_edge(std::string_view line) {
    const std::size_t middle = line.find(kSeparator);
    if (middle == std::string_view::npos) {
      return fault("expected a tab and 'id -- id'");
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const int source, layer_of(trimmed(line.substr(0, middle))));
    SHARDPLAN_ASSIGN_OR_RETURN(const int target,
                               layer_of(trimmed(line.substr(middle + kSeparator.size()))));
    LayerEdge edge;
    edge.source = source;
    edge.target = target;
    edge.bytes = graph_.layers[static_cast<std::size_t>(source)].output_bytes;
    graph_.edges.push_back(edge);
    return {};
  }

  [[nodiscard]] Result<int> layer_of(std::string_view id) const {
    const auto found = index_.find(std::string(id));
    if (found == index_.end()) {
      return fault(fmt::format("no layer before this line has the id '{}'", id));
    }
    return found->second;
  }

  std::string_view text_;
  const std::string& where_;
  int line_ = 0;
  LayerGraph graph_{};
  std::unordered_map<std::string, int> index_{};
};

}  // namespace

Result<LayerGraph> read_pipedream(std::string_view text, const std::string& where) {
  return Reader(text, where).run();
}

}  // namespace shardplan::problem
