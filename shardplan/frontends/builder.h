#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

/// Appends ops to a forward graph and keeps the first error: after it, `emit` does nothing and
/// returns invalid ids, so that a whole model can be written down without a check after each op.
class Builder {
 public:
  explicit Builder(ir::Graph& graph) : graph_(graph) {}

  /// Ops emitted from here on belong to this module path.
  void set_layer(std::string layer) { layer_ = std::move(layer); }
  [[nodiscard]] const std::string& layer() const { return layer_; }

  /// Adds a value that is no op result (an input, a parameter, ...).
  ir::ValueId add_value(ir::Value value);
  /// Appends an op, types inferred; its first result, or an invalid id after an error.
  ir::ValueId emit(std::string name,
                   std::vector<ir::ValueId> inputs,
                   ir::Attributes attributes = {});
  /// The same, all results; none after an error.
  std::vector<ir::ValueId> emit_all(std::string name,
                                    std::vector<ir::ValueId> inputs,
                                    ir::Attributes attributes = {});

  /// The type of a value; a scalar f32 for an invalid id.
  [[nodiscard]] ir::TensorType type(ir::ValueId value) const;
  [[nodiscard]] const ir::Graph& graph() const { return graph_; }

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  /// Keeps `error` unless there is one already.
  void fail(Error error);
  /// Forgets an error of kind "unsupported", so that another way can be tried; whether there was
  /// one. What was emitted before it stays, without a reader.
  bool recover();
  [[nodiscard]] Status status() const { return error_.has_value() ? Status(*error_) : Status(); }

 private:
  ir::Graph& graph_;
  std::string layer_;
  std::optional<Error> error_;
};

}  // namespace shardplan::frontends
