#include "shardplan/frontends/aten.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

AtenCall::AtenCall(ImportState& state, const ExportedNode& node) : state_(state), node_(node) {}

std::string AtenCall::where() const {
  const std::string result = node_.outputs.empty() ? std::string() : node_.outputs.front();
  return fmt::format("{}{}{}",
                     node_.layer.empty() ? "the top module" : "layer " + node_.layer,
                     result.empty() ? "" : ", node ",
                     result);
}

void AtenCall::unsupported(std::string why) {
  state_.builder.fail(Error{
      ErrorCode::kUnsupported, fmt::format("operator {} {}", node_.target, why), where(), {}});
}

void AtenCall::invalid(std::string why) {
  state_.builder.fail(invalid_input(fmt::format("operator {}: {}", node_.target, why), where()));
}

const Argument* AtenCall::find(std::string_view name) const {
  for (const auto& [key, argument] : node_.inputs) {
    if (key == name) {
      return argument.kind == Argument::Kind::kNone ? nullptr : &argument;
    }
  }
  return nullptr;
}

const Argument* AtenCall::find(std::string_view name, Argument::Kind kind) {
  const Argument* const argument = find(name);
  if (argument == nullptr) {
    return nullptr;
  }
  if (!argument->problem.empty()) {
    unsupported(fmt::format("has an argument '{}' that {}", name, argument->problem));
    return nullptr;
  }
  if (argument->kind != kind) {
    invalid(fmt::format("the argument '{}' has another type than expected", name));
    return nullptr;
  }
  return argument;
}

bool AtenCall::given(std::string_view name) const {
  return find(name) != nullptr;
}

std::int64_t AtenCall::integer(std::string_view name, std::int64_t fallback) {
  const Argument* const argument = find(name, Argument::Kind::kInts);
  return argument == nullptr || argument->ints.empty() ? fallback : argument->ints.front();
}

double AtenCall::real(std::string_view name, double fallback) {
  if (!given(name)) {
    return fallback;
  }
  const std::optional<Number> value = number(name);
  if (!value.has_value()) {
    invalid(fmt::format("the argument '{}' is not a fixed number", name));
  }
  return value.value_or(Number::of(fallback)).as_double();
}

bool AtenCall::flag(std::string_view name, bool fallback) {
  const Argument* const argument = find(name, Argument::Kind::kBools);
  return argument == nullptr || argument->ints.empty() ? fallback : argument->ints.front() != 0;
}

std::string AtenCall::text(std::string_view name, const std::string& fallback) {
  const Argument* const argument = find(name, Argument::Kind::kText);
  return argument == nullptr ? fallback : argument->text;
}

std::vector<std::int64_t> AtenCall::integers(std::string_view name) {
  const Argument* const argument = find(name, Argument::Kind::kInts);
  return argument == nullptr ? std::vector<std::int64_t>() : argument->ints;
}

std::vector<double> AtenCall::reals(std::string_view name) {
  const Argument* const argument = find(name, Argument::Kind::kFloats);
  return argument == nullptr ? std::vector<double>() : argument->floats;
}

std::optional<DType> AtenCall::dtype(std::string_view name) {
  const Argument* const argument = find(name, Argument::Kind::kDType);
  return argument == nullptr ? std::nullopt : ir::parse_dtype(argument->text);
}

std::size_t AtenCall::dim(std::string_view name, std::int64_t fallback, std::int64_t rank) {
  const std::int64_t given_dim = integer(name, fallback);
  const std::int64_t counted = given_dim < 0 ? given_dim + rank : given_dim;
  if (rank == 0 && (given_dim == 0 || given_dim == -1)) {
    unsupported("has a scalar operand");  // PyTorch takes it for a tensor of one dimension
    return 0;
  }
  if (counted < 0 || counted >= rank) {
    invalid(fmt::format("dimension {} does not exist in a tensor of rank {}", given_dim, rank));
    return 0;
  }
  return static_cast<std::size_t>(counted);
}

IntList AtenCall::dims(std::string_view name, std::int64_t rank) {
  IntList list = integers(name);
  if (list.empty()) {
    list.resize(static_cast<std::size_t>(rank));
    std::iota(list.begin(), list.end(), 0);
    return list;
  }
  for (std::int64_t& entry : list) {
    if (rank == 0 && (entry == 0 || entry == -1)) {
      unsupported("has a scalar operand");
      return {};
    }
    entry += entry < 0 ? rank : 0;
    if (entry < 0 || entry >= rank) {
      invalid(fmt::format("the argument '{}' names a dimension that does not exist", name));
      return {};
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

std::optional<Number> AtenCall::number(std::string_view name) const {
  const Argument* const argument = find(name);
  if (argument == nullptr || !argument->problem.empty() || argument->list) {
    return std::nullopt;
  }
  const bool integral =
      argument->kind == Argument::Kind::kInts || argument->kind == Argument::Kind::kBools;
  if (integral && !argument->ints.empty()) {
    return Number::of(argument->ints.front());
  }
  if (argument->kind == Argument::Kind::kFloats && !argument->floats.empty()) {
    return Number::of(argument->floats.front());
  }
  const ConstTensor* const tensor = constant(name);
  return tensor == nullptr ? std::nullopt : tensor->uniform();
}

const ConstTensor* AtenCall::constant(std::string_view name) const {
  const Argument* const argument = find(name);
  if (argument == nullptr || argument->kind != Argument::Kind::kTensors ||
      argument->tensors.size() != 1) {
    return nullptr;
  }
  const auto found = state_.operands.find(argument->tensors.front());
  if (found == state_.operands.end()) {
    return nullptr;
  }
  const std::optional<ConstTensor>& known = found->second.constant;
  return known.has_value() ? &*known : nullptr;
}

std::optional<ConstTensor> AtenCall::constant_or_number(std::string_view name) const {
  const ConstTensor* const tensor = constant(name);
  if (tensor != nullptr) {
    return *tensor;
  }
  const std::optional<Number> value = number(name);
  if (!value.has_value()) {
    return std::nullopt;
  }
  return ConstTensor::full({value->real ? DType::kFloat64 : DType::kInt64, {}}, *value);
}

std::optional<double> AtenCall::scalar_beside(std::string_view name, std::string_view tensor) {
  const std::optional<Number> value = number(name);
  if (!value.has_value() || type_of(tensor).shape != result_type().shape) {
    return std::nullopt;
  }
  return value->as_double();
}

std::optional<std::vector<ConstTensor>> AtenCall::constants(std::string_view name) const {
  const Argument* const argument = find(name);
  if (argument == nullptr || argument->kind != Argument::Kind::kTensors) {
    return std::nullopt;
  }
  std::vector<ConstTensor> out;
  for (const std::string& tensor : argument->tensors) {
    const auto found = state_.operands.find(tensor);
    if (found == state_.operands.end()) {
      return std::nullopt;
    }
    const std::optional<ConstTensor>& known = found->second.constant;
    if (!known.has_value()) {
      return std::nullopt;
    }
    out.push_back(*known);
  }
  return out;
}

bool is_without_elements(const ExportedProgram& program, const std::string& tensor) {
  const auto found = program.tensors.find(tensor);
  return found != program.tensors.end() && found->second.problem.empty() &&
         found->second.type.numel() == 0;
}

ValueId AtenCall::value_of(const std::string& tensor_name) {
  const auto found = state_.operands.find(tensor_name);
  if (found == state_.operands.end() && is_without_elements(state_.program, tensor_name)) {
    unsupported(fmt::format("reads the tensor '{}', which has no elements", tensor_name));
    return {};
  }
  if (found == state_.operands.end()) {
    invalid(fmt::format("the tensor '{}' is not defined before this node", tensor_name));
    return {};
  }
  Operand& operand = found->second;
  if (!operand.value.valid() && operand.constant.has_value()) {
    operand.value = materialize(*operand.constant);
  }
  return operand.value;
}

ValueId AtenCall::tensor(std::string_view name) {
  const ValueId value = tensor_if_given(name);
  if (!value.valid()) {
    invalid(fmt::format("the argument '{}' is missing", name));
  }
  return value;
}

ValueId AtenCall::tensor_as(std::string_view name, DType dtype) {
  return cast(tensor(name), dtype);
}

ValueId AtenCall::tensor_if_given(std::string_view name) {
  const Argument* const argument = find(name, Argument::Kind::kTensors);
  if (argument == nullptr || argument->tensors.size() != 1 || argument->tensors.front().empty()) {
    return {};
  }
  return value_of(argument->tensors.front());
}

std::vector<ValueId> AtenCall::tensors(std::string_view name) {
  std::vector<ValueId> values;
  const Argument* const argument = find(name, Argument::Kind::kTensors);
  if (argument == nullptr) {
    invalid(fmt::format("the argument '{}' is missing", name));
    return values;
  }
  for (const std::string& tensor : argument->tensors) {
    if (tensor.empty()) {
      unsupported(fmt::format("has a gap in its argument '{}'", name));
      return values;
    }
    if (!is_without_elements(state_.program, tensor)) {
      values.push_back(value_of(tensor));
    }
  }
  return values;
}

std::vector<ValueId> AtenCall::tensors_if_given(std::string_view name) {
  std::vector<ValueId> values;
  const Argument* const argument = find(name, Argument::Kind::kTensors);
  if (argument != nullptr) {
    for (const std::string& tensor : argument->tensors) {
      values.push_back(tensor.empty() ? ValueId{} : value_of(tensor));
    }
  }
  return values;
}

TensorType AtenCall::type_of(std::string_view name) {
  const Argument* const argument = find(name, Argument::Kind::kTensors);
  if (argument != nullptr && argument->tensors.size() == 1) {
    const auto found = state_.program.tensors.find(argument->tensors.front());
    if (found != state_.program.tensors.end()) {
      return found->second.type;
    }
  }
  invalid(fmt::format("the argument '{}' is missing", name));
  return {};
}

TensorType AtenCall::result_type(std::size_t index) {
  if (index >= node_.outputs.size()) {
    invalid("has too few results");
    return {};
  }
  const auto found = state_.program.tensors.find(node_.outputs[index]);
  if (found == state_.program.tensors.end()) {
    invalid(fmt::format("the archive gives no type for its result '{}'", node_.outputs[index]));
    return {};
  }
  if (!found->second.problem.empty()) {
    unsupported("has a result that " + found->second.problem);
  }
  return found->second.type;
}

void AtenCall::result(ValueId value, std::size_t index) {
  if (!ok() || index >= node_.outputs.size()) {
    return;
  }
  const TensorType expected = result_type(index);
  const TensorType found = state_.builder.type(value);
  if (found.shape == expected.shape && found.dtype != expected.dtype) {
    unsupported(fmt::format("gives {}, not {}", to_string(expected), to_string(found)));
    return;
  }
  if (found != expected) {
    invalid(fmt::format("its result is {} in the archive, but its operands give {}",
                        to_string(expected),
                        to_string(found)));
    return;
  }
  state_.operands[node_.outputs[index]] = {std::nullopt, value};
}

void AtenCall::constant_result(ConstTensor value) {
  state_.operands[node_.outputs.front()] = {std::move(value), {}};
}

ValueId AtenCall::cast(ValueId x, DType dtype) {
  return cast_to(builder(), x, dtype);
}

ValueId AtenCall::reshape(ValueId x, const Shape& shape) {
  return reshape_to(builder(), x, shape);
}

ValueId AtenCall::permute(ValueId x, const IntList& permutation) {
  return permuted(builder(), x, permutation);
}

ValueId AtenCall::materialize_compact(const ConstTensor& constant) {
  return frontends::materialize_compact(builder(), constant);
}

ValueId AtenCall::materialize(const ConstTensor& constant) {
  return frontends::materialize(builder(), constant);
}

std::unordered_map<std::string_view, AtenOp> aten_table() {
  std::unordered_map<std::string_view, AtenOp> table;
  for (const auto family : {aten_creation,
                            aten_elementwise,
                            aten_functions,
                            aten_selection,
                            aten_logic,
                            aten_shape,
                            aten_indexing,
                            aten_embedding_bag,
                            aten_convolution,
                            aten_matmul,
                            aten_reduction,
                            aten_normalization,
                            aten_batch_norm,
                            aten_pooling,
                            aten_resample,
                            aten_attention,
                            aten_loss}) {
    for (const AtenOp& row : family()) {
      SHARDPLAN_CHECK(table.emplace(row.target, row).second) << row.target << " has two rows";
    }
  }
  return table;
}

}  // namespace shardplan::frontends
