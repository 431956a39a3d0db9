#include "shardplan/frontends/onnx/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shardplan::frontends::onnx {

using ir::IntList;
using ir::TensorType;
using ir::ValueId;
using Kind = Attribute::Kind;

namespace {

constexpr std::int64_t kMaxListLength = 1 << 20;

}  // namespace

Call::Call(State& state, const Node& node, std::int64_t opset, std::string_view ours)
    : state_(state), node_(node), opset_(opset), ours_(ours) {}

std::string Call::where() const {
  const std::string result = node_.outputs.empty() ? std::string() : node_.outputs.front();
  return fmt::format("node '{}'", node_.name.empty() ? result : node_.name);
}

void Call::unsupported(std::string why) {
  state_.builder.fail(
      Error{ErrorCode::kUnsupported, fmt::format("operator {} {}", node_.op, why), where(), {}});
}

void Call::invalid(std::string why) {
  state_.builder.fail(invalid_input(fmt::format("operator {}: {}", node_.op, why), where()));
}

const Attribute* Call::attribute(std::string_view name) const {
  const auto found = node_.attributes.find(std::string(name));
  return found == node_.attributes.end() ? nullptr : &found->second;
}

const Attribute* Call::attribute(std::string_view name, Kind kind) {
  const Attribute* const found = attribute(name);
  if (found != nullptr && found->kind != kind) {
    invalid(fmt::format("the attribute '{}' has another type than expected", name));
    return nullptr;
  }
  return found;
}

std::int64_t Call::integer(std::string_view name, std::int64_t fallback) {
  const Attribute* const found = attribute(name, Kind::kInt);
  return found == nullptr ? fallback : found->integer;
}

bool Call::flag(std::string_view name, bool fallback) {
  return integer(name, fallback ? 1 : 0) != 0;
}

double Call::real(std::string_view name, double fallback) {
  const Attribute* const found = attribute(name, Kind::kFloat);
  return found == nullptr ? fallback : found->real;
}

std::string Call::text(std::string_view name, const std::string& fallback) {
  const Attribute* const found = attribute(name, Kind::kText);
  return found == nullptr ? fallback : found->text;
}

IntList Call::integers(std::string_view name) {
  const Attribute* const found = attribute(name, Kind::kInts);
  return found == nullptr ? IntList() : found->integers;
}

bool Call::given(std::size_t index) const {
  return index < node_.inputs.size() && !node_.inputs[index].empty();
}

const Operand* Call::operand(std::size_t index) const {
  if (!given(index)) {
    return nullptr;
  }
  const auto found = state_.operands.find(node_.inputs[index]);
  return found == state_.operands.end() ? nullptr : &found->second;
}

void Call::need(std::size_t index, std::string_view what) {
  if (!given(index)) {
    invalid(fmt::format(
        "operand {}{} is missing", index, what.empty() ? "" : fmt::format(" ({})", what)));
  } else if (operand(index) == nullptr) {
    invalid(fmt::format("the tensor '{}' is not defined before this node", node_.inputs[index]));
  }
}

void Call::need_known(std::size_t index, std::string_view what) {
  need(index, what);
  if (ok()) {
    unsupported(fmt::format(
        "needs its operand '{}' ({}) when the model is read, and it is computed from the model's "
        "inputs",
        node_.inputs[index],
        what));
  }
}

TensorType Call::type(std::size_t index) {
  const Operand* const found = operand(index);
  if (found == nullptr) {
    need(index, "");
    return {};
  }
  return found->value.valid() ? state_.builder.type(found->value)
                              : found->constant.value_or(ConstTensor()).type();
}

const ConstTensor* Call::constant(std::size_t index) const {
  const Operand* const found = operand(index);
  return found != nullptr && found->constant.has_value() ? &*found->constant : nullptr;
}

std::optional<std::vector<ConstTensor>> Call::constants() const {
  std::vector<ConstTensor> out;
  for (std::size_t i = 0; i < operand_count(); ++i) {
    const ConstTensor* const known = constant(i);
    if (known == nullptr) {
      return std::nullopt;
    }
    out.push_back(*known);
  }
  return out;
}

std::optional<double> Call::uniform(std::size_t index) const {
  const ConstTensor* const known = constant(index);
  const std::optional<Number> value = known == nullptr ? std::nullopt : known->uniform();
  return value.has_value() ? std::optional(value->as_double()) : std::nullopt;
}

IntList Call::known_integers(std::size_t index, std::string_view what) {
  const ConstTensor* const known = constant(index);
  if (known == nullptr) {
    need_known(index, what);
    return {};
  }
  const std::optional<ConstTensor> dense = known->dense();
  if (known->shape().size() > 1 || ir::is_floating(known->type().dtype) || !dense.has_value() ||
      known->type().numel() > kMaxListLength) {
    invalid(fmt::format("operand {} ({}) is {}, a list of integers was expected",
                        index,
                        what,
                        to_string(known->type())));
    return {};
  }
  IntList out;
  const std::int64_t count = known->shape().empty() ? 1 : known->shape()[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<std::int64_t> at(known->shape().size(), i);
    out.push_back(dense->at(at).as_int());
  }
  return out;
}

double Call::known_number(std::size_t index, std::string_view what, double fallback) {
  if (!given(index)) {
    return fallback;
  }
  const std::optional<double> value = uniform(index);
  if (!value.has_value()) {
    need_known(index, what);
  }
  return value.value_or(fallback);
}

ValueId Call::tensor(std::size_t index) {
  need(index, "");
  return tensor_if_given(index);
}

ValueId Call::tensor_if_given(std::size_t index) {
  if (!given(index)) {
    return {};
  }
  need(index, "");
  const auto found = state_.operands.find(node_.inputs[index]);
  if (found == state_.operands.end()) {
    return {};
  }
  Operand& operand = found->second;
  if (!operand.value.valid() && operand.constant.has_value()) {
    operand.value = materialize(state_.builder, *operand.constant);
  }
  return operand.value;
}

std::vector<ValueId> Call::tensors() {
  std::vector<ValueId> values;
  for (std::size_t i = 0; i < operand_count(); ++i) {
    values.push_back(tensor(i));
  }
  return values;
}

std::size_t Call::dim(std::int64_t number, std::int64_t rank) {
  const std::int64_t counted = number < 0 ? number + rank : number;
  if (counted < 0 || counted >= rank) {
    invalid(fmt::format("dimension {} does not exist in a tensor of rank {}", number, rank));
    return 0;
  }
  return static_cast<std::size_t>(counted);
}

IntList Call::dims(IntList numbers, std::int64_t rank) {
  for (std::int64_t& number : numbers) {
    number = static_cast<std::int64_t>(dim(number, rank));
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return ok() ? numbers : IntList();
}

std::optional<IntList> Call::axes(std::size_t index) {
  if (has("axes")) {
    return integers("axes");
  }
  return given(index) ? std::optional(known_integers(index, "axes")) : std::nullopt;
}

bool Call::wants(std::size_t index) const {
  return index < node_.outputs.size() && !node_.outputs[index].empty();
}

void Call::result(ValueId value, std::size_t index) {
  if (ok() && wants(index)) {
    state_.operands[node_.outputs[index]] = {std::nullopt, value};
  }
}

void Call::constant_result(ConstTensor value, std::size_t index) {
  if (ok() && wants(index)) {
    state_.operands[node_.outputs[index]] = {std::move(value), {}};
  }
}

std::unordered_map<std::string_view, Row> table() {
  std::unordered_map<std::string_view, Row> out;
  for (const auto family : {elementwise_rows,
                            activation_rows,
                            logic_rows,
                            creation_rows,
                            shape_rows,
                            cutting_rows,
                            indexing_rows,
                            product_rows,
                            reduction_rows,
                            normalization_rows,
                            loss_rows,
                            convolution_rows,
                            pooling_rows,
                            attention_rows,
                            recurrent_rows,
                            resize_rows,
                            scatter_rows,
                            spatial_rows,
                            called_rows}) {
    for (const Row& row : family()) {
      SHARDPLAN_CHECK(out.emplace(row.op, row).second) << row.op << " has two rows";
    }
  }
  return out;
}

}  // namespace shardplan::frontends::onnx
