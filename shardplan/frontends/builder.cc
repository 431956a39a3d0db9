#include "shardplan/frontends/builder.h"

#include "shardplan/ops/op.h"

namespace shardplan::frontends {

ir::ValueId Builder::add_value(ir::Value value) {
  return ok() ? graph_.add_value(std::move(value)) : ir::ValueId{};
}

ir::ValueId Builder::emit(std::string name,
                          std::vector<ir::ValueId> inputs,
                          ir::Attributes attributes) {
  const std::vector<ir::ValueId> results =
      emit_all(std::move(name), std::move(inputs), std::move(attributes));
  return results.empty() ? ir::ValueId{} : results.front();
}

std::vector<ir::ValueId> Builder::emit_all(std::string name,
                                           std::vector<ir::ValueId> inputs,
                                           ir::Attributes attributes) {
  if (!ok()) {
    return {};
  }
  for (const ir::ValueId input : inputs) {
    SHARDPLAN_CHECK(input.valid()) << "an operand of " << name << " is missing";
  }
  ir::Op op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.attributes = std::move(attributes);
  op.layer = layer_;
  Result<ir::OpId> id = ops::append(graph_, std::move(op));
  if (!id) {
    fail(std::move(id).error());
    return {};
  }
  return graph_.op(*id).outputs;
}

ir::TensorType Builder::type(ir::ValueId value) const {
  return value.valid() ? graph_.type(value) : ir::TensorType{};
}

bool Builder::recover() {
  const bool unsupported = error_.has_value() && error_->code == ErrorCode::kUnsupported;
  if (unsupported) {
    error_.reset();
  }
  return unsupported;
}

void Builder::fail(Error error) {
  if (ok()) {
    error_ = std::move(error);
  }
}

}  // namespace shardplan::frontends
