#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

// How the plan room names ops, layers and values, in files and in messages.
namespace shardplan::plan {

/// "einsum.42": the op's name and its id.
[[nodiscard]] std::string op_label(const ir::Graph& step, ir::OpId op);
/// The op's layer, "(model)" for the ops of no layer.
[[nodiscard]] std::string layer_label(const ir::Op& op);
/// "transformer.h.0.attn / einsum.42".
[[nodiscard]] std::string op_place(const ir::Graph& step, ir::OpId op);
/// The op that op_label() gave this label; an error where the id and the name do not fit.
[[nodiscard]] Result<ir::OpId> find_op(const ir::Graph& step, std::string_view label);

/// Whether a plan may say how the value lies: a graph input, but no constant.
[[nodiscard]] bool has_layout(const ir::Value& value);

/// Names of the values that have a layout: the value's own name where it has one that no earlier
/// value has, else "value.17" with its id.
class ValueLabels {
 public:
  explicit ValueLabels(const ir::Graph& step);
  [[nodiscard]] std::string label(ir::ValueId value) const;
  /// An invalid id when there is none.
  [[nodiscard]] ir::ValueId find(const std::string& label) const;
  [[nodiscard]] std::vector<std::string> all() const;

 private:
  std::map<std::string, ir::ValueId> ids_;
  std::map<ir::ValueId, std::string> labels_;
};

/// Blocks of the forward pass, in order of first appearance, "" left out.
[[nodiscard]] std::vector<std::string> blocks_of(const ir::Graph& step);

/// "did you mean ..." or a list of what there is, as a note of `error`.
[[nodiscard]] Error with_suggestion(Error error,
                                    std::string_view name,
                                    const std::vector<std::string>& known);

}  // namespace shardplan::plan
