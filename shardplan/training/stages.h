#pragma once

#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// A value that one stage makes and another one reads. In the graph of `from` an op `send` follows
/// its producer; in the graph of `to` an op `receive` stands for it. Messages of one phase and one
/// pair of stages are sent and received in the order of their numbers (the attribute "message").
struct Message {
  int from = 0;
  int to = 0;
  ir::Phase phase = ir::Phase::kForward;
  ir::ValueId value{};  ///< of the step; invalid: a part of a sum that is one value there
};

/// A training step of its own: the ops of one pipeline stage, in the order of the step, on
/// parameters and states of its own. outputs[0] is the loss in a stage that has it; the others
/// have no outputs.
struct Stage {
  ir::Graph graph{};
  std::vector<ir::OpId> op_of{};     ///< by op: that of the step; invalid: not one of its
  std::vector<std::size_t> order{};  ///< by op: its place among the ops of all stages
  /// With `weights_later`: the first backward op that neither another stage nor the loss waits for;
  /// an invalid id where there is none.
  ir::OpId weights_begin{};
  std::vector<ir::ValueId> value_of{};  ///< by value: that of the step; invalid: such a part
};

struct StagedStep {
  std::vector<Stage> stages{};
  std::vector<Message> messages{};
};

/// Cuts a training step into pipeline stages. `forward_stage` has the stage of every op of the step
/// (of forward ops; others are not looked at); stages are 0 .. the largest.
///
/// - An op that depends on no parameter (masks, positions, counts of tokens) is in every stage that
///   needs it, whatever its stage in the list: inputs are on every stage.
/// - Backward ops are in the stage of their forward op. A parameter that several stages read is of
///   the first of them, which sums its gradients and updates it, and then sends the new weight to
///   the others.
/// - Update ops are where the parameter is. The norm of all gradients goes through the stages by
///   messages; the counter of steps is everywhere.
/// - In the forward and backward phases a stage receives before its first op of the phase.
/// - With `weights_later`, the backward ops that other stages wait for come first, and then the
///   rest, the gradients of weights (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024).
///
/// - With several `pipelines`, which share the microbatches, there are as many copies of the S
///   stages: stage s of pipeline k is number k · S + s, with the loss of its pipeline's
///   microbatches in the last one. A parameter belongs to pipeline 0: the others send it their part
///   of the gradient's sum once, before the update, and get the new weight, as two stages that read
///   one parameter do.
///
/// Errors: a list of another length, an empty stage, a forward op that needs a value of a later
/// stage, a buffer that one stage writes and another one reads; several pipelines with fewer
/// microbatches, or with a buffer that the passes write. O(graph · stages · pipelines).
[[nodiscard]] Result<StagedStep> split_into_stages(const ir::Graph& step,
                                                   const std::vector<int>& forward_stage,
                                                   bool weights_later = false,
                                                   int pipelines = 1);

}  // namespace shardplan::training
