#pragma once

#include <string_view>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// What the families of elementwise ops share (unary.cc, binary.cc): axis maps, which differ only
/// in their partial rules, and rows of their tables.

/// Not linear: no partial sum passes.
[[nodiscard]] AxisMap axes_elementwise(const OpView& op);
/// Linear in operand 0 alone (the others are constants of the map).
[[nodiscard]] AxisMap axes_linear(const OpView& op);

using Infer = Result<Types> (*)(std::span<const ir::TensorType>, const ir::Attributes&);
using Axes = AxisMap (*)(const OpView&);
using Gradient = void (*)(GradientBuilder&);

/// The definition of an elementwise op: one operation for each element of the result.
[[nodiscard]] OpDef elementwise_row(std::string_view name,
                                    std::string_view summary,
                                    Infer infer,
                                    Axes axes,
                                    Gradient gradient = nullptr);

/// For gradient rules: value · factor; a scalar zero, and a cast, in the element type of `like`.
[[nodiscard]] ir::ValueId scaled(GradientBuilder& b, ir::ValueId value, double factor);
[[nodiscard]] ir::ValueId zero_like(GradientBuilder& b, ir::ValueId like);
[[nodiscard]] ir::ValueId cast_like(GradientBuilder& b, ir::ValueId value, ir::ValueId like);

}  // namespace shardplan::ops
