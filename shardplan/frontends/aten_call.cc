// Operators that have no row in the tables, or are used in a way that theirs does not map: they are
// called by name when the program runs.

#include <fmt/format.h>

#include "shardplan/frontends/aten.h"
#include "shardplan/ops/call.h"

namespace shardplan::frontends {

namespace {

using Kind = Argument::Kind;
using ops::CallValue;

CallValue number_value(const Argument& argument, std::size_t i) {
  CallValue value;
  if (argument.kind == Kind::kFloats) {
    value.kind = CallValue::Kind::kReal;
    value.real = argument.floats[i];
  } else {
    value.kind = argument.kind == Kind::kBools ? CallValue::Kind::kBool : CallValue::Kind::kInt;
    value.integer = argument.ints[i];
  }
  return value;
}

/// Arguments that say where and how PyTorch would lay the result out: results here are contiguous.
bool is_placement(std::string_view name) {
  return name == "device" || name == "layout" || name == "memory_format" || name == "pin_memory";
}

}  // namespace

ops::CallValue AtenCall::call_value(const Argument& argument, std::vector<ir::ValueId>& operands) {
  CallValue value;
  switch (argument.kind) {
    case Kind::kNone:
      break;
    case Kind::kTensors:
      value.kind = CallValue::Kind::kList;
      for (const std::string& tensor : argument.tensors) {
        CallValue& entry = value.list.emplace_back();
        if (!tensor.empty()) {
          entry.kind = CallValue::Kind::kTensor;
          entry.integer = static_cast<std::int64_t>(operands.size());
          operands.push_back(value_of(tensor));
        }
      }
      break;
    case Kind::kInts:
    case Kind::kFloats:
    case Kind::kBools: {
      const std::size_t count =
          argument.kind == Kind::kFloats ? argument.floats.size() : argument.ints.size();
      value.kind = CallValue::Kind::kList;
      for (std::size_t i = 0; i < count; ++i) {
        value.list.push_back(number_value(argument, i));
      }
      break;
    }
    case Kind::kText:
      value.kind = CallValue::Kind::kText;
      value.text = argument.text;
      break;
    case Kind::kDType:
      value.kind = CallValue::Kind::kDType;
      value.text = argument.text;
      break;
    case Kind::kOther:
      unsupported(fmt::format("has an argument of kind {}", argument.text));
      break;
  }
  if (value.kind != CallValue::Kind::kList || argument.list) {
    return value;
  }
  return value.list.empty() ? CallValue() : CallValue(value.list.front());
}

bool AtenCall::has_elements(std::size_t index) const {
  const auto found = state_.program.tensors.find(node_.outputs[index]);
  return found == state_.program.tensors.end() || !found->second.problem.empty() ||
         ir::is_valid(found->second.type);
}

void AtenCall::call_by_name() {
  std::vector<ops::CallArgument> arguments;
  std::vector<ir::ValueId> operands;
  for (const auto& [name, argument] : node_.inputs) {
    if (argument.kind == Kind::kNone || is_placement(name)) {
      continue;
    }
    if (!argument.problem.empty()) {
      unsupported(fmt::format("has an argument '{}' that {}", name, argument.problem));
      return;
    }
    if (argument.text.find('\'') != std::string::npos) {
      unsupported(fmt::format("has a quote in its argument '{}'", name));
      return;
    }
    arguments.push_back({name, call_value(argument, operands)});
  }
  ops::Types inputs;
  inputs.reserve(operands.size());
  for (const ir::ValueId operand : operands) {
    inputs.push_back(builder().type(operand));
  }
  std::vector<std::optional<ir::TensorType>> results;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < result_count(); ++i) {
    if (has_elements(i)) {
      results.emplace_back(result_type(i));
      kept.push_back(i);
    } else {
      results.emplace_back();
    }
  }
  if (kept.empty()) {
    unsupported("gives no tensor with elements");
  }
  if (!ok()) {
    return;
  }
  ir::Attributes attributes = ops::call_attributes(node_.target, arguments, inputs, results);
  if (ops::draws_random_numbers(node_.target, arguments)) {
    attributes.set("site", next_dropout_site());
  }
  const std::vector<ir::ValueId> made =
      builder().emit_all("call", std::move(operands), std::move(attributes));
  for (std::size_t r = 0; r < made.size(); ++r) {
    result(made[r], kept[r]);
  }
}

}  // namespace shardplan::frontends
