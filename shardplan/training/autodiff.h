#pragma once

#include <functional>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

struct ParameterGradient {
  ir::ValueId parameter;
  ir::ValueId gradient;
};

/// Called when the gradient of a parameter is complete, right after the op that completed it; may
/// append ops, and returns the value that counts as the gradient from then on.
using GradientDone = std::function<ir::ValueId(ir::Graph&, const ParameterGradient&)>;

/// Inserts an `identity` behind every floating op result and input that several operands read, for
/// autodiff to sum the gradients there.
[[nodiscard]] ir::Graph with_fan_out_points(const ir::Graph& forward);

/// Appends the backward pass of outputs[0], which has the gradient `seed`, in reverse order of the
/// ops. Returns the gradients of the trainable parameters that get one, in the order in which they
/// were completed. Errors: an op without a gradient rule on the way, no trainable parameter
/// reached.
[[nodiscard]] Result<std::vector<ParameterGradient>> append_backward(ir::Graph& graph,
                                                                     double seed,
                                                                     const GradientDone& done);

}  // namespace shardplan::training
