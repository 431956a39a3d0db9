// Losses.

#include <algorithm>
#include <numeric>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// Above it log(1 + e^x) is x in every floating type.
constexpr double kStraight = 40.0;

/// torch's numbers: 0 none, 1 mean, 2 sum.
Reduction reduction_of(AtenCall& c) {
  const std::int64_t number = c.integer("reduction", 1);
  return number == 0 ? Reduction::kNone : number == 2 ? Reduction::kSum : Reduction::kMean;
}

ValueId reduced(AtenCall& c, ValueId x) {
  return frontends::reduced(c.builder(), x, reduction_of(c));
}

ValueId emit(AtenCall& c, const char* op, std::vector<ValueId> operands, Attributes a = {}) {
  return c.builder().emit(op, std::move(operands), std::move(a));
}

ValueId scaled(AtenCall& c, ValueId x, double factor) {
  return emit(c, "scale", {x}, {{"factor", factor}});
}

ValueId shifted(AtenCall& c, ValueId x, double value) {
  return emit(c, "add_scalar", {x}, {{"value", value}});
}

ValueId zero(AtenCall& c, DType dtype) {
  return c.materialize_compact(ConstTensor::full({dtype, {}}, Number::of(0.0)));
}

// Of classes --------------------------------------------------------------------------------------

/// What `x` was reshaped from when that keeps its last dimension and only merged the others, so
/// that batch and sequence stay dimensions of their own; else `x`.
ValueId unflattened(AtenCall& c, ValueId x) {
  const ir::Graph& graph = c.builder().graph();
  const ir::Value& value = graph.value(x);
  if (!value.producer.valid() || graph.op(value.producer).name != "reshape") {
    return x;
  }
  const ValueId source = graph.op(value.producer).inputs[0];
  const Shape& shape = graph.type(source).shape;
  const bool merges =
      value.type.shape.size() == 2 && shape.size() > 2 && shape.back() == value.type.shape.back();
  return merges ? source : x;
}

/// -Σ weight · target · log_softmax(logits) over the classes; the mean is over the other
/// dimensions.
void map_probability_targets(AtenCall& c, double smoothing) {
  const TensorType result = c.result_type();
  const ValueId logits = c.tensor("self");
  const TensorType type = c.type_of("self");
  ValueId target = c.tensor_as("target", type.dtype);
  if (!c.ok() || type.rank() < 1) {
    return;
  }
  const std::int64_t classes_dim = type.rank() == 1 ? 0 : 1;
  const auto classes = static_cast<double>(type.shape[static_cast<std::size_t>(classes_dim)]);
  if (smoothing > 0) {
    target = shifted(c, scaled(c, target, 1.0 - smoothing), smoothing / classes);
  }
  ValueId terms =
      emit(c, "mul", {emit(c, "log_softmax", {logits}, {{"dim", classes_dim}}), target});
  if (c.given("weight")) {
    Shape aligned(type.shape.size(), 1);
    aligned[static_cast<std::size_t>(classes_dim)] = static_cast<std::int64_t>(classes);
    terms = emit(c, "mul", {terms, c.reshape(c.tensor_as("weight", type.dtype), aligned)});
  }
  const ValueId loss = emit(
      c, "neg", {emit(c, "sum", {terms}, {{"dims", IntList{classes_dim}}, {"keepdim", false}})});
  c.result(c.cast(c.reshape(reduced(c, loss), result.shape), result.dtype));
}

void finish_cross_entropy(AtenCall& c, ValueId logits, double smoothing) {
  ValueId target = c.tensor("target");
  if (!c.ok()) {
    return;
  }
  if (ir::is_floating(c.builder().type(target).dtype)) {
    map_probability_targets(c, smoothing);
    return;
  }
  logits = unflattened(c, classes_last(c.builder(), logits));
  Shape rows = c.builder().type(logits).shape;
  if (!c.ok() || rows.empty()) {
    c.invalid("its logits have no classes");
    return;
  }
  rows.pop_back();
  target = c.reshape(target, rows);
  const ValueId loss = cross_entropy(c.builder(),
                                     logits,
                                     target,
                                     {.ignore_index = c.integer("ignore_index", -100),
                                      .reduction = reduction_of(c),
                                      .label_smoothing = smoothing,
                                      .weight = c.tensor_if_given("weight")});
  const TensorType type = c.result_type();
  c.result(c.cast(c.reshape(loss, type.shape), type.dtype));
}

void map_cross_entropy(AtenCall& c) {
  finish_cross_entropy(c, c.tensor("self"), c.real("label_smoothing", 0.0));
}

/// -weight · x at the target's class, of any x [n, c, ...] or [c].
void map_scores_at_target(AtenCall& c, ValueId x) {
  Builder& b = c.builder();
  const TensorType result = c.result_type();
  const TensorType type = b.type(x);
  const ValueId target = c.tensor("target");
  const Shape rows = b.type(target).shape;
  const std::int64_t dim = type.rank() == 1 ? 0 : 1;
  Shape aligned = type.shape;
  if (!c.ok() || aligned.empty()) {
    return;
  }
  aligned[static_cast<std::size_t>(dim)] = 1;
  const ClassWeights at = class_weights(
      b, target, c.integer("ignore_index", -100), c.tensor_if_given("weight"), type.dtype);
  const ValueId index = c.reshape(at.target, aligned);
  const ValueId score = c.reshape(emit(c, "gather", {x, index}, {{"dim", dim}}), rows);
  ValueId loss = emit(c, "neg", {emit(c, "mul", {score, at.weight})});
  if (reduction_of(c) != Reduction::kNone) {
    loss = sum_all(b, loss);
  }
  if (reduction_of(c) == Reduction::kMean) {
    loss = emit(c, "div", {loss, sum_all(b, at.weight)});
  }
  c.result(c.cast(c.reshape(loss, result.shape), result.dtype));
}

/// nll_loss: of a log_softmax over the last dimension it is cross-entropy.
void map_nll_loss(AtenCall& c) {
  const ValueId x = c.tensor("self");
  if (!c.ok()) {
    return;
  }
  const auto known = c.state().log_softmax_operand.find(x);
  if (known != c.state().log_softmax_operand.end() && c.builder().type(x).rank() <= 2) {
    finish_cross_entropy(c, known->second, 0.0);
    return;
  }
  map_scores_at_target(c, x);
}

// Of differences ----------------------------------------------------------------------------------

ValueId difference(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  return emit(c, "sub", {c.tensor_as("self", dtype), c.tensor_as("target", dtype)});
}

void map_mse(AtenCall& c) {
  const ValueId d = difference(c);
  c.result(reduced(c, emit(c, "mul", {d, d})));
}

void map_l1(AtenCall& c) {
  c.result(reduced(c, emit(c, "abs", {difference(c)})));
}

/// Square near 0, straight beyond `turn`: smooth_l1 is huber over its turning point.
void map_huber(AtenCall& c) {
  const bool smooth = c.ours() == "smooth_l1";
  const double turn = smooth ? c.real("beta", 1.0) : c.real("delta", 1.0);
  const ValueId d = difference(c);
  const ValueId size = emit(c, "abs", {d});
  if (turn == 0) {
    c.result(reduced(c, smooth ? size : scaled(c, size, 0.0)));
    return;
  }
  const ValueId square = scaled(c, emit(c, "mul", {d, d}), smooth ? 0.5 / turn : 0.5);
  const ValueId straight = scaled(c, shifted(c, size, -0.5 * turn), smooth ? 1.0 : turn);
  const ValueId near = emit(c, smooth ? "lt_scalar" : "le_scalar", {size}, {{"value", turn}});
  c.result(reduced(c, emit(c, "where", {near, square, straight})));
}

// Of probabilities --------------------------------------------------------------------------------

ValueId weighted(AtenCall& c, ValueId loss) {
  return c.given("weight") ? emit(c, "mul", {loss, c.tensor_as("weight", c.result_type().dtype)})
                           : loss;
}

void map_binary_cross_entropy(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId target = c.tensor_as("target", dtype);
  c.result(reduced(c, weighted(c, emit(c, "binary_cross_entropy", {x, target}))));
}

ValueId softplus(AtenCall& c, ValueId x) {
  return emit(c, "softplus", {x}, {{"beta", 1.0}, {"threshold", kStraight}});
}

/// (1 - t) x + (1 + (p - 1) t) log(1 + e^-x), where p is the weight of the positive answers.
void map_binary_cross_entropy_of_logits(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId t = c.tensor_as("target", dtype);
  ValueId tail = softplus(c, emit(c, "neg", {x}));
  if (c.given("pos_weight")) {
    const ValueId extra = emit(c, "mul", {shifted(c, c.tensor_as("pos_weight", dtype), -1.0), t});
    tail = emit(c, "mul", {tail, shifted(c, extra, 1.0)});
  }
  const ValueId straight = emit(c, "mul", {x, shifted(c, emit(c, "neg", {t}), 1.0)});
  c.result(reduced(c, weighted(c, emit(c, "add", {straight, tail}))));
}

/// target (log target - x), 0 where the target is 0.
void map_kl_div(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId t = c.tensor_as("target", dtype);
  if (c.flag("log_target", false)) {
    c.result(reduced(c, emit(c, "mul", {emit(c, "exp", {t}), emit(c, "sub", {t, x})})));
    return;
  }
  const ValueId one = c.materialize_compact(ConstTensor::full({dtype, {}}, Number::of(1.0)));
  const ValueId positive = emit(c, "gt_scalar", {t}, {{"value", 0.0}});
  const ValueId logarithm = emit(c, "log", {emit(c, "where", {positive, t, one})});
  c.result(reduced(c, emit(c, "mul", {t, emit(c, "sub", {logarithm, x})})));
}

void map_poisson(AtenCall& c) {
  const ValueId x = c.tensor("input");
  const ValueId t = c.tensor_as("target", c.result_type().dtype);
  if (c.flag("full", false)) {
    c.unsupported("with full is not supported");
    return;
  }
  if (c.flag("log_input", true)) {
    c.result(reduced(c, emit(c, "sub", {emit(c, "exp", {x}), emit(c, "mul", {t, x})})));
    return;
  }
  const ValueId logarithm = emit(c, "log", {shifted(c, x, c.real("eps", 1e-8))});
  c.result(reduced(c, emit(c, "sub", {x, emit(c, "mul", {t, logarithm})})));
}

// Of pairs ----------------------------------------------------------------------------------------

void map_margin_ranking(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId d = emit(c, "sub", {c.tensor_as("input2", dtype), c.tensor_as("input1", dtype)});
  const ValueId signed_d = emit(c, "mul", {d, c.tensor_as("target", dtype)});
  c.result(reduced(c, emit(c, "relu", {shifted(c, signed_d, c.real("margin", 0.0))})));
}

/// x where the target is 1, max(margin - x, 0) where it is -1.
void map_hinge_embedding(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId x = c.tensor_as("self", dtype);
  const ValueId t = c.tensor("target");
  const ValueId rest = emit(c, "relu", {shifted(c, emit(c, "neg", {x}), c.real("margin", 1.0))});
  const ValueId of_one =
      emit(c, "where", {emit(c, "ne_scalar", {t}, {{"value", -1.0}}), x, zero(c, dtype)});
  const ValueId of_minus_one =
      emit(c, "where", {emit(c, "ne_scalar", {t}, {{"value", 1.0}}), rest, zero(c, dtype)});
  c.result(reduced(c, emit(c, "add", {of_one, of_minus_one})));
}

void map_soft_margin(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId product =
      emit(c, "mul", {c.tensor_as("self", dtype), c.tensor_as("target", dtype)});
  c.result(reduced(c, softplus(c, emit(c, "neg", {product}))));
}

ValueId sum_along(AtenCall& c, ValueId x, std::int64_t dim) {
  return emit(c, "sum", {x}, {{"dims", IntList{dim}}, {"keepdim", false}});
}

ValueId product_along(AtenCall& c, ValueId a, ValueId b, std::int64_t dim) {
  return sum_along(c, emit(c, "mul", {a, b}), dim);
}

void map_cosine_similarity(AtenCall& c) {
  const TensorType type = c.result_type();
  const ValueId a = c.tensor_as("x1", type.dtype);
  const ValueId b = c.tensor_as("x2", type.dtype);
  const auto dim = static_cast<std::int64_t>(c.dim("dim", 1, type.rank() + 1));
  if (c.ok() && c.builder().type(a).rank() == 0) {
    c.unsupported("has a scalar operand");
    return;
  }
  if (!c.ok() || c.builder().type(a).shape != c.builder().type(b).shape) {
    c.unsupported("is supported on operands of equal shapes only");
    return;
  }
  const auto norm = [&](ValueId x) {
    const ValueId length = emit(c, "sqrt", {product_along(c, x, x, dim)});
    return emit(c, "maximum_scalar", {length}, {{"value", c.real("eps", 1e-8)}});
  };
  const ValueId lengths = emit(c, "mul", {norm(a), norm(b)});
  c.result(emit(c, "div", {product_along(c, a, b, dim), lengths}));
}

/// 1 - cosine where the target is 1, max(cosine - margin, 0) where it is -1.
void map_cosine_embedding(AtenCall& c) {
  const DType dtype = c.result_type().dtype;
  const ValueId a = c.tensor_as("input1", dtype);
  const ValueId b = c.tensor_as("input2", dtype);
  const ValueId t = c.tensor("target");
  const std::int64_t dim = c.type_of("input1").rank() - 1;
  constexpr double kTiny = 1e-12;
  const auto square = [&](ValueId x) { return shifted(c, product_along(c, x, x, dim), kTiny); };
  const ValueId lengths = emit(c, "sqrt", {emit(c, "mul", {square(a), square(b)})});
  const ValueId cosine = emit(c, "div", {product_along(c, a, b, dim), lengths});
  const ValueId apart = emit(c, "relu", {shifted(c, cosine, -c.real("margin", 0.0))});
  const ValueId together = shifted(c, emit(c, "neg", {cosine}), 1.0);
  const auto where_target_is = [&](double value, ValueId x) {
    return emit(c, "where", {emit(c, "eq_scalar", {t}, {{"value", value}}), x, zero(c, dtype)});
  };
  c.result(
      reduced(c, emit(c, "add", {where_target_is(1.0, together), where_target_is(-1.0, apart)})));
}

}  // namespace

std::vector<AtenOp> aten_loss() {
  return {{"aten.cross_entropy_loss.default", map_cross_entropy},
          {"aten.nll_loss_nd.default", map_nll_loss},
          {"aten.nll_loss2d.default", map_nll_loss},
          {"aten.nll_loss.default", map_nll_loss},
          {"aten.mse_loss.default", map_mse},
          {"aten.l1_loss.default", map_l1},
          {"aten.smooth_l1_loss.default", map_huber, "smooth_l1"},
          {"aten.huber_loss.default", map_huber, "huber"},
          {"aten.binary_cross_entropy.default", map_binary_cross_entropy},
          {"aten.binary_cross_entropy_with_logits.default", map_binary_cross_entropy_of_logits},
          {"aten.kl_div.default", map_kl_div},
          {"aten.poisson_nll_loss.default", map_poisson},
          {"aten.margin_ranking_loss.default", map_margin_ranking},
          {"aten.hinge_embedding_loss.default", map_hinge_embedding},
          {"aten.soft_margin_loss.default", map_soft_margin},
          {"aten.cosine_similarity.default", map_cosine_similarity},
          {"aten.cosine_embedding_loss.default", map_cosine_embedding}};
}

}  // namespace shardplan::frontends
