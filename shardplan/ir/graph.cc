#include "shardplan/ir/graph.h"

namespace shardplan::ir {

ValueId Graph::add_value(Value value) {
  const ValueId id{values_.size()};
  values_.push_back(std::move(value));
  return id;
}

OpId Graph::add_op(Op op, const std::vector<TensorType>& result_types) {
  const OpId id{ops_.size()};
  for (const ValueId input : op.inputs) {
    SHARDPLAN_CHECK(input.valid() && input.index() < values_.size())
        << "op " << op.name << " reads value " << input.value;
  }
  op.outputs.clear();
  for (std::size_t i = 0; i < result_types.size(); ++i) {
    Value result;
    result.type = result_types[i];
    result.producer = id;
    result.result_index = static_cast<std::int32_t>(i);
    op.outputs.push_back(add_value(std::move(result)));
  }
  ops_.push_back(std::move(op));
  return id;
}

std::vector<std::vector<OpId>> Graph::users() const {
  std::vector<std::vector<OpId>> users(values_.size());
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const OpId id{i};
    for (const ValueId input : ops_[i].inputs) {
      std::vector<OpId>& readers = users[input.index()];
      if (readers.empty() || readers.back() != id) {
        readers.push_back(id);
      }
    }
  }
  return users;
}

ValueId Graph::find_input(std::string_view input_name) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].kind != ValueKind::kOpResult && values_[i].name == input_name) {
      return ValueId{i};
    }
  }
  return {};
}

std::int64_t Graph::parameter_count() const {
  std::int64_t count = 0;
  for (const Value& value : values_) {
    if (value.kind == ValueKind::kParameter) {
      count += value.type.numel();
    }
  }
  return count;
}

}  // namespace shardplan::ir
