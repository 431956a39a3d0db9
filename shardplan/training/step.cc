// The stages of build_training_step, in order.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/training/autodiff.h"
#include "shardplan/training/broadcasts.h"
#include "shardplan/training/graph_copy.h"
#include "shardplan/training/microbatch.h"
#include "shardplan/training/precision.h"
#include "shardplan/training/training.h"
#include "shardplan/training/update.h"

namespace shardplan::training {
namespace {

Status check_recipe(const Recipe& recipe) {
  if (recipe.microbatches < 1) {
    return invalid_input("the number of microbatches is " + std::to_string(recipe.microbatches) +
                             ", at least 1 expected",
                         "recipe");
  }
  if (!(recipe.clip_norm >= 0)) {
    return invalid_input("the gradient norm limit is " + std::to_string(recipe.clip_norm) +
                             ", 0 (no clipping) or more expected",
                         "recipe");
  }
  return {};
}

/// Checks the forward graph and leaves only the loss as its output.
Result<ir::Graph> loss_graph(const ir::Graph& forward) {
  SHARDPLAN_RETURN_IF_ERROR(ops::verify(forward));
  if (forward.outputs.empty()) {
    return invalid_input("the graph has no output: outputs[0] must be the scalar loss", "graph");
  }
  const auto belongs_to_step = [](const ir::Value& value) {
    return value.kind == ir::ValueKind::kState || value.kind == ir::ValueKind::kAccumulator;
  };
  if (forward.microbatches != 1 || !forward.gradients.empty() ||
      std::any_of(forward.values().begin(), forward.values().end(), belongs_to_step) ||
      std::any_of(forward.ops().begin(), forward.ops().end(), [](const ir::Op& op) {
        return op.phase != ir::Phase::kForward;
      })) {
    return invalid_input(
        "the graph is a training step already (it has microbatches, gradients, states, or ops "
        "beyond the forward pass); a forward graph was expected",
        "graph");
  }
  ir::Graph graph = forward;
  graph.outputs.resize(1);
  simplify_broadcasts(graph);
  return without_dead_ops(std::move(graph));
}

/// Sums gradients of microbatches: the accumulator is as wide as what the optimizer updates.
ir::ValueId accumulate(ir::Graph& graph, const ParameterGradient& pair, Precision precision) {
  ir::Value accumulator;
  accumulator.kind = ir::ValueKind::kAccumulator;
  accumulator.name = graph.value(pair.parameter).name + ".grad";
  accumulator.type = graph.type(pair.parameter);
  accumulator.type.dtype = updated_dtype(accumulator.type, precision);
  const ir::ValueId target = graph.add_value(std::move(accumulator));
  ir::Op op;
  op.name = "accumulate";
  op.inputs = {target, pair.gradient};
  op.phase = ir::Phase::kBackward;
  op.layer = graph.op(graph.value(pair.gradient).producer).layer;
  const Result<ir::OpId> id = ops::append(graph, std::move(op));
  SHARDPLAN_CHECK(id.has_value()) << id.error().text();
  const ir::ValueId sum = graph.op(*id).outputs.front();
  graph.writes.push_back({target, sum});
  return sum;
}

}  // namespace

Result<ir::Graph> build_training_step(const ir::Graph& forward, const Recipe& recipe) {
  SHARDPLAN_RETURN_IF_ERROR(check_recipe(recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Graph graph, loss_graph(forward));
  if (recipe.precision != Precision::kAsModel) {
    SHARDPLAN_ASSIGN_OR_RETURN(graph, with_precision(graph, recipe.precision));
  }
  if (recipe.microbatches > 1) {
    SHARDPLAN_ASSIGN_OR_RETURN(graph, microbatch_graph(graph, recipe.microbatches));
  }
  graph = with_fan_out_points(graph);

  GradientDone done;
  if (recipe.microbatches > 1) {
    done = [&recipe](ir::Graph& step, const ParameterGradient& pair) {
      return accumulate(step, pair, recipe.precision);
    };
  }
  const double seed = 1.0 / static_cast<double>(recipe.microbatches);
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<ParameterGradient> gradients,
                             append_backward(graph, seed, done));
  SHARDPLAN_RETURN_IF_ERROR(append_update(graph, gradients, recipe));
  simplify_broadcasts(graph);
  graph = without_dead_ops(std::move(graph));
  SHARDPLAN_RETURN_IF_ERROR(ops::verify(graph));
  return graph;
}

}  // namespace shardplan::training
