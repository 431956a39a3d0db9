// Losses that are nodes of the model.

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/onnx/call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::ValueId;

constexpr std::int64_t kNeverIgnored = -(std::int64_t{1} << 40);

CrossEntropy options_of(Call& c) {
  const std::string reduction = c.text("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none") {
    c.invalid("the attribute 'reduction' is none of mean, sum and none");
  }
  return {.ignore_index = c.integer("ignore_index", kNeverIgnored),
          .reduction = reduction == "none"  ? Reduction::kNone
                       : reduction == "sum" ? Reduction::kSum
                                            : Reduction::kMean};
}

/// Operand 0 holds scores [n, classes, ...], or log-probabilities.
void map_loss(Call& c) {
  Builder& b = c.builder();
  const bool scores = c.ours() == "scores";
  const CrossEntropy options = options_of(c);
  const ValueId x = c.tensor(0);
  const ValueId target = c.tensor(1);
  const ValueId weight = c.tensor_if_given(2);
  if (!c.ok() || c.rank(0) < 2) {
    c.invalid("its first operand has no classes");
    return;
  }
  const auto known = c.state().log_softmax_operand.find(x);
  const bool of_softmax = !scores && known != c.state().log_softmax_operand.end();
  const ValueId logits = of_softmax ? known->second : x;
  ValueId log_probabilities = x;
  if (scores && (weight.valid() || c.wants(1))) {
    log_probabilities = b.emit("sub", {x, log_sum_exp(b, x, 1)});
  }
  const bool direct = !weight.valid() && (scores || (of_softmax && c.rank(0) == 2));
  c.result(direct ? cross_entropy(b, classes_last(b, logits), target, options)
                  : negative_log_likelihood(
                        b, classes_last(b, log_probabilities), target, options, weight));
  if (scores) {
    c.result(log_probabilities, 1);
  }
}

}  // namespace

std::vector<Row> loss_rows() {
  return {{"SoftmaxCrossEntropyLoss", map_loss, "scores"},
          {"NegativeLogLikelihoodLoss", map_loss, "log_probabilities"}};
}

}  // namespace shardplan::frontends::onnx
