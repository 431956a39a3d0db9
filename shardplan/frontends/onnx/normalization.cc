// Softmax and the normalisations.

#include <algorithm>
#include <functional>
#include <numeric>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/onnx/call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// Before operator set 13 all dimensions from `axis` on are one.
void map_softmax(Call& c) {
  Builder& b = c.builder();
  const bool flattens = c.opset() < 13;
  const TensorType type = c.type(0);
  const std::size_t axis = c.dim(c.integer("axis", flattens ? 1 : -1), type.rank());
  ValueId x = c.tensor(0);
  if (!c.ok()) {
    return;
  }
  auto dim = static_cast<std::int64_t>(axis);
  const bool merged = flattens && axis + 1 < type.shape.size();
  if (merged) {
    Shape shape(type.shape.begin(), type.shape.begin() + dim);
    shape.push_back(std::accumulate(
        type.shape.begin() + dim, type.shape.end(), std::int64_t{1}, std::multiplies<>()));
    x = reshape_to(b, x, shape);
  }
  if (c.ours() == "softmax") {
    c.result(reshape_to(b, b.emit("softmax", {x}, {{"dim", dim}}), type.shape));
    return;
  }
  const ValueId y = b.emit("sub", {x, log_sum_exp(b, x, dim)});
  const ValueId shaped = reshape_to(b, y, type.shape);
  if (!merged && dim + 1 == type.rank()) {
    c.state().log_softmax_operand[shaped] = x;
  }
  c.result(shaped);
}

double elements_of(const Shape& shape, const IntList& dims) {
  double count = 1;
  for (const std::int64_t dim : dims) {
    count *= static_cast<double>(shape[static_cast<std::size_t>(dim)]);
  }
  return count;
}

IntList dims_from(std::int64_t first, std::int64_t rank) {
  IntList dims;
  for (std::int64_t d = first; d < rank; ++d) {
    dims.push_back(d);
  }
  return dims;
}

ValueId mean_over(Builder& b, ValueId x, const IntList& dims) {
  const double count = elements_of(b.type(x).shape, dims);
  const ValueId sum = b.emit("sum", {x}, {{"dims", dims}, {"keepdim", true}});
  return b.emit("scale", {sum}, {{"factor", 1.0 / count}});
}

/// Statistics in `stash_type`, then scale and bias in the type of the operand. One layer_norm op
/// where scale and bias have the normalised shape.
void map_layer_norm(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const std::size_t axis = c.dim(c.integer("axis", -1), type.rank());
  const double eps = c.real("epsilon", 1e-5);
  std::vector<ValueId> operands{c.tensor(0), c.tensor(1)};
  if (c.given(2)) {
    operands.push_back(c.tensor(2));
  }
  if (!c.ok()) {
    return;
  }
  const Shape normal(type.shape.begin() + static_cast<std::ptrdiff_t>(axis), type.shape.end());
  for (std::size_t i = 1; i < operands.size(); ++i) {
    operands[i] = broadcast_to(b, operands[i], normal);
  }
  const auto dims = type.rank() - static_cast<std::int64_t>(axis);
  const std::vector<ValueId> results =
      b.emit_all("layer_norm",
                 operands,
                 {{"dims", dims}, {"eps", eps}, {"weight", true}, {"bias", operands.size() > 2}});
  if (!c.ok()) {
    return;
  }
  Shape kept = type.shape;
  std::fill(kept.begin() + static_cast<std::ptrdiff_t>(axis), kept.end(), 1);
  c.result(results[0], 0);
  for (std::size_t i = 1; i < 3; ++i) {
    if (c.wants(i)) {
      c.result(reshape_to(b, results[i], kept), i);
    }
  }
}

/// x / sqrt(mean(x²) + eps) · scale.
void map_rms_norm(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const auto axis = static_cast<std::int64_t>(c.dim(c.integer("axis", -1), type.rank()));
  const ValueId x = c.tensor(0);
  const ValueId scale = c.tensor(1);
  if (!c.ok()) {
    return;
  }
  const bool narrow = ir::element_bytes(type.dtype) < 4 && c.integer("stash_type", 1) == 1;
  const ValueId wide = cast_to(b, x, narrow ? DType::kFloat32 : type.dtype);
  const ValueId mean = mean_over(b, b.emit("mul", {wide, wide}), dims_from(axis, type.rank()));
  const ValueId shifted = b.emit("add_scalar", {mean}, {{"value", c.real("epsilon", 1e-5)}});
  const ValueId y = b.emit("mul", {wide, b.emit("rsqrt", {shifted})});
  c.result(b.emit("mul", {cast_to(b, y, type.dtype), scale}));
}

/// x [n, c, ...] as [n, groups, c / groups, ...], its weights likewise.
void map_grouped(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const bool instance = c.ours() == "instance";
  const std::int64_t channels = type.rank() < 2 ? 1 : type.shape[1];
  const std::int64_t groups = instance ? channels : c.integer("num_groups", 1);
  const ValueId x = c.tensor(0);
  const std::vector<ValueId> vectors{c.tensor(1), c.tensor(2)};
  if (!c.ok() || type.rank() < 3 || groups < 1 || channels % groups != 0) {
    c.invalid("its groups do not divide the channels of its operand");
    return;
  }
  const std::int64_t each = channels / groups;
  Shape grouped = type.shape;
  grouped[1] = groups;
  grouped.insert(grouped.begin() + 2, each);
  std::vector<ValueId> operands{reshape_to(b, x, grouped)};
  for (const ValueId vector : vectors) {
    // Before operator set 21 scale and bias are per group, since then per channel.
    const bool per_group = b.type(vector).numel() == groups;
    const ValueId matrix = reshape_to(b, vector, {groups, per_group ? 1 : each});
    operands.push_back(broadcast_to(b, matrix, {groups, each}));
  }
  const ValueId y = b.emit(
      "group_norm", operands, {{"eps", c.real("epsilon", 1e-5)}, {"weight", true}, {"bias", true}});
  c.result(reshape_to(b, y, type.shape));
}

/// New running statistics: most of the old ones and a little of those of this batch.
ValueId moved(Builder& b, ValueId before, ValueId now, double momentum) {
  const ValueId kept = b.emit("scale", {before}, {{"factor", momentum}});
  const ValueId added =
      b.emit("scale", {cast_to(b, now, b.type(before).dtype)}, {{"factor", 1.0 - momentum}});
  return b.emit("add", {kept, added});
}

/// By the running statistics, or, where the node trains, by those of its operand, towards which the
/// running ones then move.
void map_batch_norm(Call& c) {
  Builder& b = c.builder();
  const DType dtype = c.type(0).dtype;
  const DType wide = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  const bool training = c.opset() < 7 ? !c.flag("is_test", false) : c.flag("training_mode", false);
  const ValueId x = c.tensor(0);
  const ValueId weight = c.tensor(1);
  const ValueId bias = c.tensor(2);
  const ValueId mean = c.tensor(3);
  const ValueId variance = c.tensor(4);
  std::vector<ValueId> statistics{cast_to(b, mean, wide), cast_to(b, variance, wide)};
  if (training) {
    const ValueId moments = b.emit("batch_moments", {x});
    statistics =
        b.emit_all("batch_statistics", {moments}, {{"dtype", std::string(ir::dtype_name(wide))}});
  }
  if (!c.ok()) {
    return;
  }
  c.result(b.emit("batch_norm",
                  {x, statistics[0], statistics[1], weight, bias},
                  {{"eps", c.real("epsilon", 1e-5)},
                   {"training", training},
                   {"weight", true},
                   {"bias", true}}));
  const double momentum = c.real("momentum", 0.9);
  for (std::size_t i = 0; training && i < 2 && c.ok(); ++i) {
    const ValueId before = i == 0 ? mean : variance;
    const ValueId after = moved(b, before, statistics[i], momentum);
    c.result(after, i + 1);
    if (b.ok() && b.graph().value(before).kind == ir::ValueKind::kBuffer) {
      c.state().writes.push_back({before, after});
    }
  }
}

/// x / ‖x‖ along one dimension; 0 where the norm is 0.
void map_lp_norm(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const auto dim = static_cast<std::int64_t>(c.dim(c.integer("axis", -1), type.rank()));
  const std::int64_t p = c.integer("p", 2);
  const ValueId x = c.tensor(0);
  if (!c.ok() || (p != 1 && p != 2)) {
    c.unsupported("is supported with p = 1 and 2");
    return;
  }
  const ValueId sizes = p == 1 ? b.emit("abs", {x}) : b.emit("mul", {x, x});
  const ValueId sum = b.emit("sum", {sizes}, {{"dims", IntList{dim}}, {"keepdim", true}});
  const ValueId norm = p == 1 ? sum : b.emit("sqrt", {sum});
  const ValueId empty = b.emit("eq_scalar", {norm}, {{"value", 0.0}});
  const ValueId one = b.emit(
      "full",
      {},
      {{"shape", IntList{}}, {"value", 1.0}, {"dtype", std::string(ir::dtype_name(type.dtype))}});
  c.result(b.emit("div", {x, b.emit("where", {empty, one, norm})}));
}

/// (x - mean) / (standard deviation + 1e-9) over the attribute's dimensions.
void map_mean_variance(Call& c) {
  Builder& b = c.builder();
  const IntList given = c.has("axes") ? c.integers("axes") : IntList{0, 2, 3};
  const IntList dims = c.dims(given, c.rank(0));
  const ValueId x = c.tensor(0);
  if (!c.ok()) {
    return;
  }
  const ValueId centred = b.emit("sub", {x, mean_over(b, x, dims)});
  const ValueId variance = mean_over(b, b.emit("mul", {centred, centred}), dims);
  const ValueId deviation = b.emit("add_scalar", {b.emit("sqrt", {variance})}, {{"value", 1e-9}});
  c.result(b.emit("div", {centred, deviation}));
}

/// x / (bias + alpha / size · Σ x²)^beta, the sum over neighbouring channels.
void map_lrn(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const std::int64_t size = c.integer("size", 1);
  const ValueId x = c.tensor(0);
  if (!c.ok() || type.rank() < 2 || size < 1 || size > 1024) {
    c.invalid("its size does not fit its operand");
    return;
  }
  const ValueId square = b.emit("mul", {x, x});
  const ValueId wide = b.emit("pad",
                              {square},
                              {{"dim", std::int64_t{1}},
                               {"before", (size - 1) / 2},
                               {"after", size - 1 - (size - 1) / 2},
                               {"value", 0.0}});
  ValueId sum;
  for (std::int64_t k = 0; k < size; ++k) {
    const ValueId part = sliced(b, wide, 1, k, k + type.shape[1]);
    sum = sum.valid() ? b.emit("add", {sum, part}) : part;
  }
  const double alpha = c.real("alpha", 1e-4) / static_cast<double>(size);
  const ValueId base = b.emit("add_scalar",
                              {b.emit("scale", {sum}, {{"factor", alpha}})},
                              {{"value", c.real("bias", 1.0)}});
  const ValueId power = b.emit("pow_scalar", {base}, {{"exponent", -c.real("beta", 0.75)}});
  c.result(b.emit("mul", {x, power}));
}

}  // namespace

std::vector<Row> normalization_rows() {
  return {{"Softmax", map_softmax, "softmax"},
          {"LogSoftmax", map_softmax, "log_softmax"},
          {"LayerNormalization", map_layer_norm},
          {"RMSNormalization", map_rms_norm},
          {"InstanceNormalization", map_grouped, "instance"},
          {"GroupNormalization", map_grouped, "group"},
          {"BatchNormalization", map_batch_norm},
          {"LpNormalization", map_lp_norm},
          {"MeanVarianceNormalization", map_mean_variance},
          {"LRN", map_lrn}};
}

}  // namespace shardplan::frontends::onnx
