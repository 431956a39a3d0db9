// Sums, means, maxima and running sums.

#include <cmath>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::IntList;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

Attributes along(AtenCall& c, const IntList& dims) {
  return {{"dims", dims}, {"keepdim", c.flag("keepdim", false)}};
}

double elements_along(const TensorType& type, const IntList& dims) {
  double count = 1;
  for (const std::int64_t dim : dims) {
    count *= static_cast<double>(type.shape[static_cast<std::size_t>(dim)]);
  }
  return count;
}

void map_sum(AtenCall& c) {
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  const IntList dims = c.dims("dim", c.type_of("self").rank());
  c.result(c.builder().emit("sum", {x}, along(c, dims)));
}

void map_mean(AtenCall& c) {
  const TensorType type = c.type_of("self");
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  const IntList dims = c.dims("dim", type.rank());
  if (!c.ok()) {
    return;
  }
  const ValueId sum = c.builder().emit("sum", {x}, along(c, dims));
  c.result(c.builder().emit("scale", {sum}, {{"factor", 1.0 / elements_along(type, dims)}}));
}

/// var and std with a correction: mean of squared differences from the mean, which var_mean and
/// std_mean give besides.
void map_variance(AtenCall& c) {
  Builder& b = c.builder();
  const TensorType type = c.type_of("self");
  const ValueId x = c.tensor("self");
  const IntList dims = c.dims("dim", type.rank());
  const double correction = c.flag("unbiased", true) ? c.real("correction", 1.0) : 0.0;
  if (!c.ok()) {
    return;
  }
  const double count = elements_along(type, dims);
  const ValueId sum = b.emit("sum", {x}, {{"dims", dims}, {"keepdim", true}});
  const ValueId mean = b.emit("scale", {sum}, {{"factor", 1.0 / count}});
  const ValueId difference = b.emit("sub", {x, mean});
  const ValueId squares = b.emit("sum", {b.emit("mul", {difference, difference})}, along(c, dims));
  const ValueId variance =
      b.emit("scale", {squares}, {{"factor", 1.0 / std::max(count - correction, 0.0)}});
  c.result(c.ours() == "std" ? b.emit("sqrt", {variance}) : variance);
  if (c.result_count() > 1) {
    c.result(c.reshape(mean, c.result_type(1).shape), 1);
  }
}

/// (Σ |x|^p)^(1/p) along dimensions; p = ∞ is the maximum.
ValueId norm_along(AtenCall& c, ValueId x, const IntList& dims, double p, bool keepdim) {
  Builder& b = c.builder();
  const Attributes where{{"dims", dims}, {"keepdim", keepdim}};
  if (p == 2.0) {
    return b.emit("sqrt", {b.emit("sum", {b.emit("mul", {x, x})}, where)});
  }
  const ValueId size = b.emit("abs", {x});
  if (std::isinf(p) && p > 0) {
    return b.emit("max", {size}, where);
  }
  if (p == 1.0) {
    return b.emit("sum", {size}, where);
  }
  const ValueId powers = b.emit("sum", {b.emit("pow_scalar", {size}, {{"exponent", p}})}, where);
  return b.emit("pow_scalar", {powers}, {{"exponent", 1.0 / p}});
}

void map_vector_norm(AtenCall& c) {
  const char* const name = c.ours() == "norm" ? "p" : "ord";
  const double p = c.real(name, 2.0);
  if (p <= 0) {
    c.unsupported("is supported with a positive order only");
    return;
  }
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  const IntList dims = c.dims("dim", c.type_of("self").rank());
  c.result(norm_along(c, x, dims, p, c.flag("keepdim", false)));
}

/// The norm of the difference along the last dimension.
void map_pairwise_distance(AtenCall& c) {
  const TensorType type = c.type_of("x1");
  const double p = c.real("p", 2.0);
  if (p <= 0 || type.rank() < 1 || type.shape != c.type_of("x2").shape) {
    c.unsupported("is supported with a positive order and equal shapes only");
    return;
  }
  const ValueId difference = c.builder().emit("sub", {c.tensor("x1"), c.tensor("x2")});
  const ValueId x = c.builder().emit("add_scalar", {difference}, {{"value", c.real("eps", 1e-6)}});
  c.result(norm_along(c, x, {type.rank() - 1}, p, c.flag("keepdim", false)));
}

void map_cumsum(AtenCall& c) {
  const ValueId x = c.tensor_as("self", c.result_type().dtype);
  const std::size_t dim = c.dim("dim", 0, c.type_of("self").rank());
  c.result(c.builder().emit("cumsum", {x}, {{"dim", static_cast<std::int64_t>(dim)}}));
}

Folded fold_cumsum(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  if (x == nullptr || type.shape != x->shape() || !c.ok()) {
    return std::nullopt;
  }
  const std::size_t dim = c.dim("dim", 0, type.rank());
  return c.ok() ? cumulative_sum(type, *x, dim) : std::nullopt;
}

/// diff of order 1: each element minus the one before it, with `prepend` and `append` at the ends.
Folded fold_diff(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  if (x == nullptr || c.integer("n", 1) != 1 || x->shape().size() != type.shape.size() ||
      type.dtype == ir::DType::kBool) {
    return std::nullopt;
  }
  const std::size_t dim = c.dim("dim", -1, type.rank());
  std::vector<ConstTensor> parts;
  std::int64_t total = 0;
  for (const std::string_view name : {"prepend", "self", "append"}) {
    const ConstTensor* const part = c.constant(name);
    if (part == nullptr && c.given(name)) {
      return std::nullopt;
    }
    if (part != nullptr && part->shape().size() == type.shape.size() && c.ok()) {
      parts.push_back(*part);
      total += part->shape()[dim];
    }
  }
  TensorType joined = type;
  joined.shape[dim] = total;
  const Folded whole =
      c.ok() && total == type.shape[dim] + 1 ? concatenate(joined, parts, dim) : std::nullopt;
  if (!whole.has_value()) {
    return std::nullopt;
  }
  const Folded after = whole->slice(dim, 1, total - 1, 1);
  const Folded before = whole->slice(dim, 0, total - 1, 1);
  const std::vector<ConstTensor> operands{*after, *before};
  return elementwise(type, operands, [](std::span<const Number> v) {
    return v[0].real ? Number::of(v[0].d - v[1].d)
                     : Number::of(static_cast<std::int64_t>(static_cast<std::uint64_t>(v[0].i) -
                                                            static_cast<std::uint64_t>(v[1].i)));
  });
}

void map_logsumexp(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const IntList dims = c.dims("dim", type.rank());
  if (!c.ok() || dims.size() != 1) {
    c.unsupported("is supported along one dimension only");
    return;
  }
  c.result(c.reshape(log_sum_exp(c.builder(), x, dims[0]), c.result_type().shape));
}

}  // namespace

std::vector<AtenOp> aten_reduction() {
  return {{"aten.sum.default", map_sum},
          {"aten.sum.dim_IntList", map_sum},
          {"aten.mean.default", map_mean},
          {"aten.mean.dim", map_mean},
          {"aten.var.correction", map_variance, "var"},
          {"aten.var.dim", map_variance, "var"},
          {"aten.var.default", map_variance, "var"},
          {"aten.std.dim", map_variance, "std"},
          {"aten.std.default", map_variance, "std"},
          {"aten.std.correction", map_variance, "std"},
          {"aten.var_mean.correction", map_variance, "var"},
          {"aten.var_mean.dim", map_variance, "var"},
          {"aten.var_mean.default", map_variance, "var"},
          {"aten.std_mean.correction", map_variance, "std"},
          {"aten.std_mean.dim", map_variance, "std"},
          {"aten.std_mean.default", map_variance, "std"},
          {"aten.linalg_vector_norm.default", map_vector_norm},
          {"aten.norm.Scalar", map_vector_norm, "norm"},
          {"aten.norm.ScalarOpt_dim", map_vector_norm, "norm"},
          {"aten.frobenius_norm.dim", map_vector_norm},
          {"aten.pairwise_distance.default", map_pairwise_distance},
          {"aten.cumsum.default", map_cumsum, "cumsum", fold_cumsum},
          {"aten.diff.default", nullptr, "diff", fold_diff},
          {"aten.logsumexp.default", map_logsumexp}};
}

}  // namespace shardplan::frontends
