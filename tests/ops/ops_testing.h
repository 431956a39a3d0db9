#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

inline ir::TensorType f32(ir::Shape shape) {
  return {ir::DType::kFloat32, std::move(shape)};
}
inline ir::TensorType bf16(ir::Shape shape) {
  return {ir::DType::kBFloat16, std::move(shape)};
}
inline ir::TensorType i64(ir::Shape shape) {
  return {ir::DType::kInt64, std::move(shape)};
}
inline ir::TensorType boolean(ir::Shape shape) {
  return {ir::DType::kBool, std::move(shape)};
}

/// One op with operand types and attributes.
struct Sample {
  std::string op;
  Types inputs;
  ir::Attributes attributes{};
};

inline std::string axes_of(const Sample& sample) {
  const OpDef& def = get(sample.op);
  const Result<Types> results = def.infer(sample.inputs, sample.attributes);
  return results ? to_string(def.axes(OpView{sample.inputs, *results, sample.attributes}))
                 : results.error().text();
}

inline std::string error_of(const Sample& sample) {
  const Result<Types> results = get(sample.op).infer(sample.inputs, sample.attributes);
  return results ? "" : results.error().text();
}

inline Flops flops_of(const Sample& sample) {
  const OpDef& def = get(sample.op);
  const Types results = *def.infer(sample.inputs, sample.attributes);
  return def.flops == nullptr ? 0 : def.flops(OpView{sample.inputs, results, sample.attributes});
}

}  // namespace shardplan::ops
