#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/ir/attributes.h"
#include "shardplan/ir/types.h"
#include "shardplan/support/ids.h"
#include "shardplan/support/result.h"

namespace shardplan::ir {

using OpId = Id<struct OpTag>;
using ValueId = Id<struct ValueTag>;

/// What a value is. Everything but kOpResult is an input of the graph.
enum class ValueKind : std::uint8_t {
  kOpResult,
  kInput,        ///< user input: a fresh batch for every microbatch of every step
  kParameter,    ///< trained or frozen weight, lives across steps
  kBuffer,       ///< non-trained tensor of the module, lives across steps
  kConstant,     ///< fixed content, held in Value::data
  kState,        ///< optimizer state (moments, fp32 master weights, step counter)
  kAccumulator,  ///< gradient sum over microbatches: zero at the start of every step
};

/// Which part of a training step an op belongs to. Forward and backward ops run once for every
/// microbatch, update ops once a step.
enum class Phase : std::uint8_t { kForward, kBackward, kUpdate };

/// Raw little-endian row-major bytes of a constant or of an initial weight.
using Data = std::shared_ptr<const std::vector<std::byte>>;

struct Value {
  TensorType type{};
  std::string name{};  ///< parameters and inputs: the user's name; op results: may be empty
  ValueKind kind = ValueKind::kOpResult;
  OpId producer{};                ///< kOpResult only
  std::int32_t result_index = 0;  ///< which result of the producer
  bool trainable = false;         ///< kParameter only: gets a gradient and an update
  /// kParameter, kBuffer: shape in the user's module where it differs from type.shape (a contiguous
  /// reshape, see rewrite). Empty = the same.
  Shape module_shape{};
  /// kParameter, kBuffer: every further name under which the module knows the same tensor (tied).
  std::vector<std::string> aliases{};
  /// kConstant: always set. kParameter, kBuffer: initial content when the archive holds it.
  /// kState: null = zeros, unless `init_from` names the parameter it starts as a copy of.
  Data data{};
  ValueId init_from{};  ///< kState: starts as a cast copy of this parameter (fp32 master weight)
};

struct Op {
  std::string name{};  ///< key into ops::find
  std::vector<ValueId> inputs{};
  std::vector<ValueId> outputs{};
  Attributes attributes{};
  std::string layer{};  ///< module path, for example "transformer.h.3.attn"; may be empty
  Phase phase = Phase::kForward;
  OpId source{};  ///< backward: the forward op whose gradient this computes, when there is one
};

/// After the step, `target` (parameter, buffer, state or accumulator) holds `value`.
struct Write {
  ValueId target;
  ValueId value;
};

/// One SSA graph: a model's forward pass, or a whole training step (forward, backward, update).
/// The order of `ops()` is a topological order and is the order of execution; memory is liveness
/// over it. Values and ops are only added; ids are their positions. Names of values need not be
/// unique, names of parameters, buffers, inputs and states are.
class Graph {
 public:
  std::string name{};
  /// What a step computes besides its writes; outputs[0] is the scalar loss of a training step.
  std::vector<ValueId> outputs{};
  std::vector<Write> writes{};
  /// Training steps: target = a parameter or forward value, value = its whole gradient (same
  /// shape). Of a parameter: before clipping, summed over microbatches. Of a forward value: within
  /// one microbatch. One entry for everything that was differentiated; one value may be the
  /// gradient of several targets (both operands of an addition).
  std::vector<Write> gradients{};
  std::int64_t microbatches = 1;  ///< times that forward and backward ops run in one step

  ValueId add_value(Value value);
  /// Adds an op whose results have the given types; returns its id. Preconditions (checked):
  /// inputs exist.
  OpId add_op(Op op, const std::vector<TensorType>& result_types);

  [[nodiscard]] const std::vector<Op>& ops() const { return ops_; }
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }
  [[nodiscard]] const Op& op(OpId id) const { return ops_[id.index()]; }
  [[nodiscard]] Op& op(OpId id) { return ops_[id.index()]; }
  [[nodiscard]] const Value& value(ValueId id) const { return values_[id.index()]; }
  [[nodiscard]] Value& value(ValueId id) { return values_[id.index()]; }
  [[nodiscard]] const TensorType& type(ValueId id) const { return values_[id.index()].type; }

  /// Ops that read each value, in order, one entry for each op (not for each operand). O(graph).
  [[nodiscard]] std::vector<std::vector<OpId>> users() const;
  /// First value with this name and not an op result; an invalid id when there is none. O(values).
  [[nodiscard]] ValueId find_input(std::string_view input_name) const;
  /// Sum of elements of all distinct parameters.
  [[nodiscard]] std::int64_t parameter_count() const;

 private:
  std::vector<Op> ops_;
  std::vector<Value> values_;
};

/// Structural checks: ids in range, operands defined before use, one producer a value, kinds and
/// data sizes consistent, writes of matching type, at most one write a target, scalar loss.
/// (Types against op semantics are checked by ops::verify.) The error names the op.
[[nodiscard]] Status verify(const Graph& graph);

/// The text form: parse(print(g)) equals g in everything but constant and weight data, which are
/// printed for tensors of at most 16 elements and otherwise elided as `data=elided`.
[[nodiscard]] std::string print(const Graph& graph);
/// Parses the text form and verifies the graph; errors carry "line N". Elided data parse as zeros
/// in constants (of at most 256 MiB together) and as none in weights.
[[nodiscard]] Result<Graph> parse(std::string_view text);

/// 16 hex digits of a 64-bit hash over structure, types, attributes, names and the data of
/// constants; not over weight data. Equal on every machine.
[[nodiscard]] std::string structural_hash(const Graph& graph);

}  // namespace shardplan::ir
