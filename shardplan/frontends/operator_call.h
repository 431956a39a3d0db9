#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shardplan/frontends/builder.h"
#include "shardplan/ops/call.h"

namespace shardplan::frontends {

/// A call of a PyTorch operator that has no op of its own, argument by argument in the order of its
/// schema: OperatorCall(b, "aten.topk.default").tensor("self", x).integer("k", 3).results({v, i}).
/// Types of results are the caller's word; the runtime checks them.
class OperatorCall {
 public:
  OperatorCall(Builder& b, std::string target) : builder_(b), target_(std::move(target)) {}

  OperatorCall& tensor(std::string name, ir::ValueId value);
  OperatorCall& tensors(std::string name, const std::vector<ir::ValueId>& values);
  OperatorCall& integer(std::string name, std::int64_t value);
  OperatorCall& integers(std::string name, const ir::IntList& values);
  OperatorCall& real(std::string name, double value);
  OperatorCall& flag(std::string name, bool value);
  OperatorCall& text(std::string name, std::string value);
  OperatorCall& none(std::string name);

  /// All results; a missing type stands for one that nobody reads, and has no value.
  std::vector<ir::ValueId> results(const std::vector<std::optional<ir::TensorType>>& types);
  /// The only result.
  ir::ValueId result(const ir::TensorType& type);

 private:
  ops::CallValue operand(ir::ValueId value);
  OperatorCall& add(std::string name, ops::CallValue value);

  Builder& builder_;
  std::string target_;
  std::vector<ops::CallArgument> arguments_;
  std::vector<ir::ValueId> operands_;
};

}  // namespace shardplan::frontends
