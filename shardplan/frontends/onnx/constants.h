#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "shardplan/frontends/builder.h"
#include "shardplan/frontends/materialize.h"
#include "shardplan/frontends/onnx/model.h"

namespace shardplan::frontends::onnx {

/// A tensor of the file that no training changes: known content, or, where that is too large or of
/// a narrow type, a constant with data in the graph.
[[nodiscard]] Result<Operand> constant_operand(Builder& b,
                                               const TensorData& tensor,
                                               const std::string& path);

/// The number that all elements of a bf16 or f16 tensor have; nothing when they differ.
[[nodiscard]] std::optional<double> only_value(ir::DType dtype, std::span<const std::byte> bytes);

}  // namespace shardplan::frontends::onnx
