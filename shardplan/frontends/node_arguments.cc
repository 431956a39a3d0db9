#include "shardplan/frontends/node_arguments.h"

namespace shardplan::frontends {

using Kind = Argument::Kind;

const Argument* argument_of(const ExportedNode& node, std::string_view name) {
  for (const auto& [key, argument] : node.inputs) {
    if (key == name) {
      return argument.kind == Kind::kNone ? nullptr : &argument;
    }
  }
  return nullptr;
}

std::int64_t int_of(const ExportedNode& node, std::string_view name, std::int64_t fallback) {
  const Argument* const argument = argument_of(node, name);
  return argument == nullptr || argument->kind != Kind::kInts || argument->ints.empty()
             ? fallback
             : argument->ints.front();
}

bool flag_of(const ExportedNode& node, std::string_view name) {
  const Argument* const argument = argument_of(node, name);
  return argument != nullptr && argument->kind == Kind::kBools && !argument->ints.empty() &&
         argument->ints.front() != 0;
}

std::string first_operand(const ExportedNode& node) {
  for (const auto& [key, argument] : node.inputs) {
    if (argument.kind == Kind::kTensors && !argument.tensors.empty()) {
      return argument.tensors.front();
    }
  }
  return {};
}

void replace_first_operand(ExportedNode& node, const std::string& tensor) {
  for (auto& [name, argument] : node.inputs) {
    if (argument.kind == Kind::kTensors && !argument.tensors.empty()) {
      argument.tensors.front() = tensor;
      return;
    }
  }
}

Argument tensor_argument(const std::string& name) {
  Argument argument;
  argument.kind = Kind::kTensors;
  argument.tensors = {name};
  return argument;
}

Argument int_argument(std::int64_t value) {
  Argument argument;
  argument.kind = Kind::kInts;
  argument.ints = {value};
  return argument;
}

Argument ints_argument(std::vector<std::int64_t> values) {
  Argument argument;
  argument.kind = Kind::kInts;
  argument.list = true;
  argument.ints = std::move(values);
  return argument;
}

Argument dtype_argument(ir::DType dtype) {
  Argument argument;
  argument.kind = Kind::kDType;
  argument.text = ir::dtype_name(dtype);
  return argument;
}

std::string_view operator_name(std::string_view target) {
  const std::size_t first = target.find('.');
  const std::size_t last = target.rfind('.');
  return first == std::string_view::npos || last <= first
             ? std::string_view()
             : target.substr(first + 1, last - first - 1);
}

}  // namespace shardplan::frontends
