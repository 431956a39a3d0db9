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

struct Normalized {
  ValueId y{};
  ValueId mean{};
  ValueId rstd{};
};

/// (x - mean) / sqrt(variance + eps) over dimensions.
Normalized normalized(Builder& b, ValueId x, const IntList& dims, double eps) {
  Normalized out;
  out.mean = mean_over(b, x, dims);
  const ValueId centred = b.emit("sub", {x, out.mean});
  const ValueId variance = mean_over(b, b.emit("mul", {centred, centred}), dims);
  out.rstd = b.emit("rsqrt", {b.emit("add_scalar", {variance}, {{"value", eps}})});
  out.y = b.emit("mul", {centred, out.rstd});
  return out;
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

/// A vector of channels beside x [n, c, ...].
ValueId along_channels(Builder& b, ValueId vector, std::int64_t rank) {
  if (!b.ok()) {
    return vector;
  }
  Shape shape(static_cast<std::size_t>(rank), 1);
  shape[1] = b.type(vector).numel();
  return reshape_to(b, vector, shape);
}

void map_instance_norm(Call& c) {
  Builder& b = c.builder();
  const std::int64_t rank = c.rank(0);
  const ValueId x = c.tensor(0);
  const ValueId scale = c.tensor(1);
  const ValueId bias = c.tensor(2);
  if (!c.ok() || rank < 3) {
    c.invalid("its operand has no plane");
    return;
  }
  const Normalized n = normalized(b, x, dims_from(2, rank), c.real("epsilon", 1e-5));
  const ValueId scaled = b.emit("mul", {n.y, along_channels(b, scale, rank)});
  c.result(b.emit("add", {scaled, along_channels(b, bias, rank)}));
}

/// Before operator set 21 scale and bias are per group, since then per channel.
void map_group_norm(Call& c) {
  Builder& b = c.builder();
  const TensorType type = c.type(0);
  const std::int64_t groups = c.integer("num_groups", 1);
  const ValueId x = c.tensor(0);
  const ValueId scale = c.tensor(1);
  const ValueId bias = c.tensor(2);
  if (!c.ok() || type.rank() < 3 || groups < 1 || type.shape[1] % groups != 0) {
    c.invalid("its groups do not divide the channels of its operand");
    return;
  }
  Shape grouped{type.shape[0], groups, type.shape[1] / groups};
  grouped.insert(grouped.end(), type.shape.begin() + 2, type.shape.end());
  const auto rank = static_cast<std::int64_t>(grouped.size());
  const ValueId apart = reshape_to(b, x, grouped);
  const Normalized n = normalized(b, apart, dims_from(2, rank), c.real("epsilon", 1e-5));
  const auto apply = [&](const char* op, ValueId y, ValueId vector) {
    if (!b.ok()) {
      return y;
    }
    Shape shape(grouped.size(), 1);
    shape[1] = groups;
    shape[2] = b.type(vector).numel() / groups;
    return b.emit(op, {y, reshape_to(b, vector, shape)});
  };
  c.result(reshape_to(b, apply("add", apply("mul", n.y, scale), bias), type.shape));
}

/// Inference: the running statistics are fixed.
void map_batch_norm(Call& c) {
  Builder& b = c.builder();
  const std::int64_t rank = c.rank(0);
  const double eps = c.real("epsilon", 1e-5);
  std::vector<ValueId> vectors;
  const ValueId x = c.tensor(0);
  for (std::size_t i = 1; i < 5; ++i) {
    vectors.push_back(c.tensor(i));
  }
  if (!c.ok() || rank < 2) {
    c.invalid("its operand has no channels");
    return;
  }
  if (c.flag("training_mode", false)) {
    c.unsupported("is not supported while it trains");
    return;
  }
  const DType dtype = c.type(0).dtype;
  const ValueId rstd = b.emit("rsqrt", {b.emit("add_scalar", {vectors[3]}, {{"value", eps}})});
  const ValueId factor = b.emit("mul", {cast_to(b, vectors[0], b.type(rstd).dtype), rstd});
  const auto beside = [&](ValueId vector) {
    return along_channels(b, cast_to(b, vector, dtype), rank);
  };
  const ValueId centred = b.emit("sub", {x, beside(vectors[2])});
  const ValueId scaled = b.emit("mul", {centred, beside(factor)});
  c.result(b.emit("add", {scaled, beside(vectors[1])}));
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
          {"InstanceNormalization", map_instance_norm},
          {"GroupNormalization", map_group_norm},
          {"BatchNormalization", map_batch_norm},
          {"LpNormalization", map_lp_norm},
          {"MeanVarianceNormalization", map_mean_variance},
          {"LRN", map_lrn}};
}

}  // namespace shardplan::frontends::onnx
