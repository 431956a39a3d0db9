#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/ops/axis_map.h"
#include "shardplan/support/result.h"

namespace shardplan::ops {

using Types = std::vector<ir::TensorType>;

/// An op instance as its definition sees it: types and attributes, no graph.
struct OpView {
  std::span<const ir::TensorType> inputs;
  std::span<const ir::TensorType> results;
  const ir::Attributes& attributes;
  /// Of local shapes: the halos along axes that are cut. Their operands are as wide as the window
  /// needs, and the kernel pads nothing there.
  std::span<const Halo> cut{};
};

class GradientBuilder;

/// The one description of an op. Adding an op is adding one row to the table of its family file and
/// one kernel line in `runtime`.
///
/// All tensors are contiguous. `view` results share storage with input 0 (reshape, identity).
/// `in_place[r] = i`: result r overwrites the storage of input i, which must be dead afterwards
/// (updates, accumulation); -1 = a fresh buffer.
struct OpDef {
  std::string_view name;
  std::string_view summary;
  /// Types of the results, or what is wrong with the operands.
  Result<Types> (*infer)(std::span<const ir::TensorType> inputs, const ir::Attributes& attributes);
  AxisMap (*axes)(const OpView& op);
  /// Floating-point operations, 2 a multiply-add, 1 an elementwise operation. Null = 0.
  Flops (*flops)(const OpView& op) = nullptr;
  /// Bytes that the kernel allocates beyond its results while it runs, with one thread. Null = 0.
  /// Called with local shapes after lowering, so it reads sizes from types, never from attributes.
  /// The formulas follow the kernels of `runtime`, whose workspace_test measures them.
  Bytes (*workspace)(const OpView& op) = nullptr;
  /// Appends the backward ops. Null = there is no gradient rule: the results are integers or
  /// booleans, or autodiff reports an error when a gradient arrives at them.
  void (*gradient)(GradientBuilder& g) = nullptr;
  bool view = false;
  /// To autodiff the results are constants.
  bool stops_gradient = false;
  /// Each element of the result depends on one element of each operand, the operands broadcast
  /// against each other. Positions do not matter.
  bool elementwise = false;
  /// Runs on matrix units: the cost model takes the device's rate of matrix products.
  bool matmul = false;
  std::vector<int> in_place{};
};

/// The operand whose storage a result shares (a view's) or takes over (in place); -1 = it has its
/// own.
[[nodiscard]] int storage_operand(const OpDef& def, std::size_t result);

/// The definition, or null when no op has this name.
[[nodiscard]] const OpDef* find(std::string_view name);
/// The definition of an op that is known to exist (checked).
[[nodiscard]] const OpDef& get(std::string_view name);
/// All definitions, sorted by name.
[[nodiscard]] std::vector<const OpDef*> all();

/// Types of an op's operands and results and its OpView, gathered from a graph. Keeps no pointer
/// into the graph but to the op's attributes.
struct OpTypes {
  Types inputs;
  Types results;
};
[[nodiscard]] OpTypes op_types(const ir::Graph& graph, ir::OpId op);
[[nodiscard]] AxisMap axis_map(const ir::Graph& graph, ir::OpId op);
/// The axis maps of all ops of a graph. Ops with equal names, attributes and types share one: a
/// model of many layers has few. Keeps no pointer into the graph.
class AxisMaps {
 public:
  explicit AxisMaps(const ir::Graph& graph);

  [[nodiscard]] const AxisMap& operator[](ir::OpId op) const { return maps_[kind(op)]; }
  /// Number of the map: equal for the ops that share it.
  [[nodiscard]] std::size_t kind(ir::OpId op) const { return kind_[op.index()]; }

 private:
  std::vector<AxisMap> maps_;
  std::vector<std::size_t> kind_;  ///< by op
};
[[nodiscard]] Flops flops(const ir::Graph& graph, ir::OpId op);

/// "op 'softmax' of layer 'h.0.attn'": the place of an error.
[[nodiscard]] std::string describe(const ir::Op& op);
/// Infers the result types and appends the op; the error names op and layer.
[[nodiscard]] Result<ir::OpId> append(ir::Graph& graph, ir::Op op);
/// ir::verify, plus every op known and its result types equal to the inferred ones.
[[nodiscard]] Status verify(const ir::Graph& graph);

/// What an op's gradient function works with. Emitted ops get phase backward, the layer and the id
/// of the differentiated op (`source`).
class GradientBuilder {
 public:
  GradientBuilder(ir::Graph& graph,
                  ir::OpId op,
                  std::vector<ir::ValueId> output_gradients,
                  std::vector<bool> needed);

  [[nodiscard]] const ir::Attributes& attributes() const;
  [[nodiscard]] ir::ValueId input(std::size_t i) const;
  [[nodiscard]] ir::ValueId output(std::size_t i) const;
  [[nodiscard]] std::size_t input_count() const;
  [[nodiscard]] std::size_t output_count() const { return output_gradients_.size(); }
  [[nodiscard]] const ir::TensorType& type(ir::ValueId value) const;
  /// Gradient of result i, same type as the result; invalid when no gradient reaches it.
  [[nodiscard]] ir::ValueId output_gradient(std::size_t i) const { return output_gradients_[i]; }
  /// Whether input i needs a gradient.
  [[nodiscard]] bool needed(std::size_t i) const { return needed_[i]; }

  /// Appends an op and returns its first result; types are inferred (checked).
  ir::ValueId emit(std::string name,
                   std::vector<ir::ValueId> inputs,
                   ir::Attributes attributes = {});
  /// The same, all results.
  std::vector<ir::ValueId> emit_all(std::string name,
                                    std::vector<ir::ValueId> inputs,
                                    ir::Attributes attributes = {});
  /// Sums `value` over the dimensions along which `like` was broadcast to it (no op if none).
  ir::ValueId sum_to(ir::ValueId value, ir::ValueId like);

  /// An input that gets none has a zero gradient.
  void set_input_gradient(std::size_t i, ir::ValueId gradient) { input_gradients_[i] = gradient; }
  [[nodiscard]] const std::vector<ir::ValueId>& input_gradients() const { return input_gradients_; }

  /// Says that the gradient of result i is not supported, if one arrives ("the gradient of ...").
  void refuse_output_gradient(std::size_t i, std::string_view what);
  /// What was refused; empty when the gradient is complete.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

 private:
  ir::Graph& graph_;
  ir::OpId op_;
  std::vector<ir::ValueId> output_gradients_;
  std::vector<bool> needed_;
  std::vector<ir::ValueId> input_gradients_;
  std::string refusal_;
};

}  // namespace shardplan::ops
