#pragma once

#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"
#include "shardplan/training/autodiff.h"
#include "shardplan/training/training.h"

namespace shardplan::training {

/// The tensor that the optimizer updates for each parameter: the parameter itself, or with bf16 its
/// f32 master weights, a new state (then the parameter is a cast copy).
[[nodiscard]] ir::DType updated_dtype(const ir::TensorType& parameter, Precision precision);

/// Appends clipping and the update of every parameter in `gradients`, and their writes. One state
/// for each moment, one scalar counter of steps.
[[nodiscard]] Status append_update(ir::Graph& graph,
                                   const std::vector<ParameterGradient>& gradients,
                                   const Recipe& recipe);

}  // namespace shardplan::training
