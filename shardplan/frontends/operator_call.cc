#include "shardplan/frontends/operator_call.h"

#include <utility>

namespace shardplan::frontends {

using ir::ValueId;
using ops::CallValue;
using Kind = CallValue::Kind;

CallValue OperatorCall::operand(ValueId value) {
  CallValue out;
  out.kind = Kind::kTensor;
  out.integer = static_cast<std::int64_t>(operands_.size());
  operands_.push_back(value);
  return out;
}

OperatorCall& OperatorCall::add(std::string name, CallValue value) {
  arguments_.push_back({std::move(name), std::move(value)});
  return *this;
}

OperatorCall& OperatorCall::tensor(std::string name, ValueId value) {
  return add(std::move(name), operand(value));
}

OperatorCall& OperatorCall::tensors(std::string name, const std::vector<ValueId>& values) {
  CallValue out;
  out.kind = Kind::kList;
  for (const ValueId value : values) {
    out.list.push_back(operand(value));
  }
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::integer(std::string name, std::int64_t value) {
  CallValue out;
  out.kind = Kind::kInt;
  out.integer = value;
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::integers(std::string name, const ir::IntList& values) {
  CallValue out;
  out.kind = Kind::kList;
  for (const std::int64_t value : values) {
    CallValue& entry = out.list.emplace_back();
    entry.kind = Kind::kInt;
    entry.integer = value;
  }
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::real(std::string name, double value) {
  CallValue out;
  out.kind = Kind::kReal;
  out.real = value;
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::flag(std::string name, bool value) {
  CallValue out;
  out.kind = Kind::kBool;
  out.integer = value ? 1 : 0;
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::text(std::string name, std::string value) {
  CallValue out;
  out.kind = Kind::kText;
  out.text = std::move(value);
  return add(std::move(name), std::move(out));
}

OperatorCall& OperatorCall::none(std::string name) {
  return add(std::move(name), {});
}

std::vector<ValueId> OperatorCall::results(
    const std::vector<std::optional<ir::TensorType>>& types) {
  std::vector<ValueId> out(types.size());
  if (!builder_.ok()) {
    return out;
  }
  ops::Types inputs;
  for (const ValueId value : operands_) {
    inputs.push_back(builder_.type(value));
  }
  const std::vector<ValueId> made = builder_.emit_all(
      "call", operands_, ops::call_attributes(target_, arguments_, inputs, types));
  std::size_t next = 0;
  for (std::size_t i = 0; i < types.size() && next < made.size(); ++i) {
    if (types[i].has_value()) {
      out[i] = made[next++];
    }
  }
  return out;
}

ValueId OperatorCall::result(const ir::TensorType& type) {
  return results({type}).front();
}

}  // namespace shardplan::frontends
