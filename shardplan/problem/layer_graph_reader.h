#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardplan/problem/json_cursor.h"
#include "shardplan/problem/layer_graph.h"

namespace shardplan::problem {

/// What the three JSON forms of layer graphs share: reading objects with a cursor, and joining
/// layers by ids, which may be used before they are defined.
class LayerGraphReader {
 public:
  LayerGraphReader(std::string_view text, const std::string& where)
      : where_(where), cursor_(text, where_) {}

 protected:
  /// Bytes that an extra list gives for the edge to one neighbour.
  using Extra = std::vector<std::pair<std::string, double>>;
  struct Edge {
    std::string source{};
    std::string target{};
    LayerEdge edge{};
  };

  /// Reads an object: `field` reads the value of each key and returns whether it could. Then all
  /// keys of `required` must have been there.
  template <class Field>
  [[nodiscard]] bool read_object(std::initializer_list<std::string_view> required,
                                 const Field& field) {
    std::string key;
    bool more = false;
    std::vector<std::string_view> missing(required);
    if (!cursor_.enter_object()) {
      return false;
    }
    while (cursor_.next_field(key, more) && more) {
      missing.erase(std::remove(missing.begin(), missing.end(), key), missing.end());
      if (!field(key)) {
        return false;
      }
    }
    if (!cursor_.good()) {
      return false;
    }
    return missing.empty() ||
           cursor_.fail("the field \"" + std::string(missing.front()) + "\" is missing");
  }

  /// A number of at least 0.
  [[nodiscard]] bool read_amount(double& out);
  /// true, false, 1 or 0.
  [[nodiscard]] bool read_flag(bool& out);
  template <class Integer>
  [[nodiscard]] bool read_integer(Integer& out, std::int64_t least) {
    std::int64_t value = 0;
    if (!cursor_.integer(least, std::numeric_limits<std::int32_t>::max(), value)) {
      return false;
    }
    out = static_cast<Integer>(value);
    return true;
  }
  /// An id that is a whole number in the file.
  [[nodiscard]] bool read_number_id(std::string& out);
  /// Puts a layer into the graph; its id must be new.
  [[nodiscard]] bool add_layer(Layer layer);
  [[nodiscard]] bool finished() { return cursor_.good() && cursor_.at_end(); }

  /// Joins `edges_` by the ids of the layers.
  [[nodiscard]] Status join_edges();
  /// Bytes of `extra` in the order of the edges into (out of) layer `v`. It must name each
  /// neighbour once and nothing else.
  [[nodiscard]] Result<std::vector<double>> join_extra(const Extra& extra,
                                                       std::size_t v,
                                                       bool incoming,
                                                       const std::string& place) const;
  [[nodiscard]] Error error(const std::string& message, const std::string& place) const {
    return invalid_input(message, where_ + ": " + place);
  }

  std::string where_;
  JsonCursor cursor_;
  LayerGraph graph_{};
  std::vector<Edge> edges_{};
  LayerAdjacency adjacency_{};  ///< after join_edges()
  std::unordered_map<std::string, int> index_{};
};

}  // namespace shardplan::problem
