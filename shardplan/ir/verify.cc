#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "shardplan/ir/graph.h"

namespace shardplan::ir {

namespace {

// Leaves room for sums over all values of a graph, several times over, in 63 bits.
constexpr Bytes kMaxGraphBytes = Bytes{1} << 60;

std::string describe(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  std::string text = fmt::format("op #{} '{}'", id.value, op.name);
  if (!op.layer.empty()) {
    text += fmt::format(" of layer {}", op.layer);
  }
  return text;
}

std::string describe(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return value.name.empty() ? fmt::format("value %{}", id.value)
                            : fmt::format("value %{} \"{}\"", id.value, value.name);
}

bool lives_in_module(ValueKind kind) {
  return kind == ValueKind::kParameter || kind == ValueKind::kBuffer;
}

bool has_unique_name(ValueKind kind) {
  return lives_in_module(kind) || kind == ValueKind::kInput || kind == ValueKind::kState;
}

bool may_hold_data(ValueKind kind) {
  return lives_in_module(kind) || kind == ValueKind::kConstant || kind == ValueKind::kState;
}

bool may_be_written(ValueKind kind) {
  return lives_in_module(kind) || kind == ValueKind::kState || kind == ValueKind::kAccumulator;
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(graph.values().size(), false) {}

  Status run() {
    SHARDPLAN_RETURN_IF_ERROR(check_values());
    SHARDPLAN_RETURN_IF_ERROR(check_ops());
    SHARDPLAN_RETURN_IF_ERROR(check_outputs());
    SHARDPLAN_RETURN_IF_ERROR(check_gradients());
    return check_writes();
  }

 private:
  [[nodiscard]] bool in_range(ValueId id) const {
    return id.valid() && id.index() < graph_.values().size();
  }

  Status check_values() {
    Bytes total = 0;
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      const ValueId id{i};
      const Value& value = graph_.value(id);
      if (!is_valid(value.type)) {
        return invalid_input("type " + to_string(value.type) +
                                 " is not possible: dimensions must be at least 1, with at most "
                                 "32 of them and fewer than 2^63 bytes in all",
                             describe(graph_, id));
      }
      total += value.type.bytes();
      if (total >= kMaxGraphBytes) {
        return invalid_input("the values of the graph have more than 2^60 bytes together",
                             describe(graph_, id));
      }
      defined_[i] = value.kind != ValueKind::kOpResult;
      SHARDPLAN_RETURN_IF_ERROR(check_fields(id));
      SHARDPLAN_RETURN_IF_ERROR(check_names(id));
    }
    return {};
  }

  Status check_fields(ValueId id) const {
    const Value& value = graph_.value(id);
    const auto fail = [&](std::string message) {
      return Status(invalid_input(std::move(message), describe(graph_, id)));
    };
    if ((value.kind == ValueKind::kOpResult) != value.producer.valid()) {
      return fail("exactly the results of ops have a producer");
    }
    if (value.trainable && value.kind != ValueKind::kParameter) {
      return fail("only a parameter can be trainable");
    }
    if (value.trainable && !is_floating(value.type.dtype)) {
      return fail("a trainable parameter must be floating point, not " + to_string(value.type));
    }
    if ((!value.module_shape.empty() || !value.aliases.empty()) && !lives_in_module(value.kind)) {
      return fail("only parameters and buffers have a module shape or aliases");
    }
    const TensorType in_module{value.type.dtype, value.module_shape};
    if (!value.module_shape.empty() &&
        (!is_valid(in_module) || in_module.numel() != value.type.numel())) {
      return fail(fmt::format("module shape {} and type {} differ in their number of elements",
                              to_string(in_module),
                              to_string(value.type)));
    }
    if (value.kind == ValueKind::kConstant && value.data == nullptr) {
      return fail("a constant must hold data");
    }
    return check_data(id);
  }

  Status check_data(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.data != nullptr && !may_hold_data(value.kind)) {
      return invalid_input("only constants, parameters, buffers and states hold data",
                           describe(graph_, id));
    }
    if (value.data != nullptr && static_cast<Bytes>(value.data->size()) != value.type.bytes()) {
      return invalid_input(fmt::format("{} needs {} bytes of data, not {}",
                                       to_string(value.type),
                                       value.type.bytes(),
                                       value.data->size()),
                           describe(graph_, id));
    }
    if (!value.init_from.valid()) {
      return {};
    }
    if (value.kind != ValueKind::kState || !in_range(value.init_from) ||
        graph_.value(value.init_from).kind != ValueKind::kParameter ||
        graph_.type(value.init_from).shape != value.type.shape) {
      return invalid_input("init_from is for a state and names a parameter of its shape",
                           describe(graph_, id));
    }
    return {};
  }

  Status check_names(ValueId id) {
    const Value& value = graph_.value(id);
    if (!has_unique_name(value.kind)) {
      return {};
    }
    if (value.name.empty()) {
      return invalid_input("parameters, buffers, inputs and states need a name",
                           describe(graph_, id));
    }
    if (!names_.insert(value.name).second) {
      return invalid_input("the name is taken by another value", describe(graph_, id));
    }
    for (const std::string& alias : value.aliases) {
      if (alias.empty() || !names_.insert(alias).second) {
        return invalid_input(fmt::format("the alias \"{}\" is empty or taken", alias),
                             describe(graph_, id));
      }
    }
    return {};
  }

  Status check_ops() {
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(check_op(OpId{i}));
    }
    for (std::size_t i = 0; i < defined_.size(); ++i) {
      if (!defined_[i]) {
        return invalid_input("no op has this value as a result", describe(graph_, ValueId{i}));
      }
    }
    return {};
  }

  Status check_op(OpId id) {
    const Op& op = graph_.op(id);
    const auto fail = [&](std::string message) {
      return Status(invalid_input(std::move(message), describe(graph_, id)));
    };
    if (op.name.empty()) {
      return fail("an op needs a name");
    }
    for (const ValueId input : op.inputs) {
      if (!in_range(input)) {
        return fail(fmt::format("operand %{} does not exist", input.value));
      }
      if (!defined_[input.index()]) {
        return fail(fmt::format("operand %{} is used before it is defined", input.value));
      }
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      const ValueId output = op.outputs[r];
      if (!in_range(output)) {
        return fail(fmt::format("result %{} does not exist", output.value));
      }
      const Value& value = graph_.value(output);
      if (defined_[output.index()] || value.producer != id ||
          value.result_index != static_cast<std::int32_t>(r)) {
        return fail(fmt::format("result %{} has another producer", output.value));
      }
      defined_[output.index()] = true;
    }
    if (op.source.valid() && (op.phase != Phase::kBackward || op.source >= id)) {
      return fail("a source is an earlier op, and only backward ops have one");
    }
    return {};
  }

  Status check_outputs() const {
    for (const ValueId output : graph_.outputs) {
      if (!in_range(output)) {
        return invalid_input(fmt::format("output %{} does not exist", output.value), "graph");
      }
    }
    if (!graph_.outputs.empty()) {
      const TensorType& type = graph_.type(graph_.outputs.front());
      if (type.rank() != 0 || !is_floating(type.dtype)) {
        return invalid_input(
            "the first output is the loss and must be a floating-point scalar, not " +
                to_string(type),
            describe(graph_, graph_.outputs.front()));
      }
    }
    if (graph_.microbatches < 1) {
      return invalid_input(
          fmt::format("the number of microbatches must be at least 1, not {}", graph_.microbatches),
          "graph");
    }
    return {};
  }

  Status check_gradients() const {
    for (const Write& gradient : graph_.gradients) {
      if (!in_range(gradient.target) || !in_range(gradient.value)) {
        return invalid_input(
            fmt::format(
                "gradient %{} <- %{}: no such value", gradient.target.value, gradient.value.value),
            "graph");
      }
      if (graph_.type(gradient.target).shape != graph_.type(gradient.value).shape) {
        return invalid_input(fmt::format("is {} but its gradient is {}",
                                         to_string(graph_.type(gradient.target)),
                                         to_string(graph_.type(gradient.value))),
                             describe(graph_, gradient.target));
      }
    }
    return {};
  }

  Status check_writes() const {
    std::unordered_set<std::int32_t> targets;
    for (const Write& write : graph_.writes) {
      if (!in_range(write.target) || !in_range(write.value)) {
        return invalid_input(
            fmt::format("write %{} <- %{}: no such value", write.target.value, write.value.value),
            "graph");
      }
      const Value& target = graph_.value(write.target);
      const std::string where = describe(graph_, write.target);
      if (!may_be_written(target.kind)) {
        return invalid_input("only parameters, buffers, states and accumulators can be written",
                             where);
      }
      if (target.type != graph_.type(write.value)) {
        return invalid_input(fmt::format("is {} but the value written to it is {}",
                                         to_string(target.type),
                                         to_string(graph_.type(write.value))),
                             where);
      }
      if (!targets.insert(write.target.value).second) {
        return invalid_input("is written twice", where);
      }
    }
    return {};
  }

  const Graph& graph_;
  std::vector<bool> defined_;
  std::unordered_set<std::string> names_;
};

}  // namespace

Status verify(const Graph& graph) {
  return Verifier(graph).run();
}

}  // namespace shardplan::ir
