// Looking elements up by index.

#include <algorithm>
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

/// The shape of x with dimension `dim` replaced by the shape of the indices.
Shape gathered_shape(const Shape& x, std::size_t dim, const Shape& indices) {
  Shape out(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(dim));
  out.insert(out.end(), indices.begin(), indices.end());
  out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(dim) + 1, x.end());
  return out;
}

/// Dimension `dim` first, all others after it in order.
IntList to_front(std::size_t rank, std::size_t dim) {
  IntList permutation{static_cast<std::int64_t>(dim)};
  for (std::size_t d = 0; d < rank; ++d) {
    if (d != dim) {
      permutation.push_back(static_cast<std::int64_t>(d));
    }
  }
  return permutation;
}

/// `count` dimensions that stand first move behind the `before` that follow them.
IntList from_front(std::size_t rank, std::size_t count, std::size_t before) {
  IntList permutation(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    const std::size_t from = d < before ? count + d : d < before + count ? d - before : d;
    permutation[d] = static_cast<std::int64_t>(from);
  }
  return permutation;
}

bool fold_gather(Call& c) {
  const ConstTensor* const x = c.constant(0);
  const ConstTensor* const indices = c.constant(1);
  if (x == nullptr || indices == nullptr) {
    return false;
  }
  const std::size_t dim = c.dim(c.integer("axis", 0), c.rank(0));
  if (!c.ok()) {
    return true;
  }
  const std::size_t rank = x->shape().size();
  const std::size_t count = indices->shape().size();
  const ConstTensor front = x->permute(to_front(rank, dim));
  const TensorType type{x->type().dtype, gathered_shape(front.shape(), 0, indices->shape())};
  const std::vector<ConstTensor> chosen{*indices};
  const std::optional<ConstTensor> y = gather(type, front, chosen);
  if (!y.has_value()) {
    return false;
  }
  c.constant_result(y->permute(from_front(rank - 1 + count, count, dim)));
  return true;
}

/// One known index: a slice without its dimension.
bool map_known_index(Call& c, std::size_t dim) {
  const std::optional<double> index = c.uniform(1);
  const Shape indices = c.type(1).shape;
  if (!index.has_value() || TensorType{DType::kInt64, indices}.numel() != 1) {
    return false;
  }
  const Shape shape = c.type(0).shape;
  const auto number = static_cast<std::int64_t>(*index);
  const std::int64_t at = number < 0 ? number + shape[dim] : number;
  if (at < 0 || at >= shape[dim]) {
    c.invalid("its index lies outside of its operand");
    return true;
  }
  const ValueId one = sliced(c.builder(), c.tensor(0), dim, at, at + 1);
  c.result(reshape_to(c.builder(), one, gathered_shape(shape, dim, indices)));
  return true;
}

/// Rows of a matrix: the embedding of models. Else the dimension comes first and the others merge.
void map_gather(Call& c) {
  Builder& b = c.builder();
  const std::size_t dim = c.dim(c.integer("axis", 0), c.rank(0));
  if (!c.ok() || map_known_index(c, dim)) {
    return;
  }
  const Shape shape = c.type(0).shape;
  ValueId x = c.tensor(0);
  ValueId indices = c.tensor(1);
  if (!c.ok()) {
    return;
  }
  const ConstTensor* const known = c.constant(1);
  const bool table =
      shape.size() == 2 && dim == 0 && b.graph().value(x).kind == ir::ValueKind::kParameter;
  if (!table || known != nullptr) {
    indices = wrapped(b, indices, shape[dim]);
  }
  if (shape.size() == 2 && dim == 0) {
    c.result(b.emit("embedding", {x, indices}));
    return;
  }
  const std::size_t count = b.type(indices).shape.size();
  x = dim == 0 ? x : permuted(b, x, to_front(shape.size(), dim));
  const std::int64_t size = shape[dim];
  const Shape rows = b.type(x).shape;
  const std::int64_t rest = std::accumulate(
      rows.begin() + (rows.empty() ? 0 : 1), rows.end(), std::int64_t{1}, std::multiplies<>());
  const ValueId y = b.emit("embedding", {reshape_to(b, x, {size, rest}), indices});
  if (!c.ok()) {
    return;
  }
  Shape apart = b.type(indices).shape;
  apart.insert(apart.end(), rows.begin() + 1, rows.end());
  const ValueId front = reshape_to(b, y, apart);
  c.result(dim == 0 ? front : permuted(b, front, from_front(apart.size(), count, dim)));
}

/// `on` where the index along a new dimension is the operand's element, else `off`.
void map_one_hot(Call& c) {
  Builder& b = c.builder();
  const std::int64_t rank = c.rank(0) + 1;
  const std::size_t dim = c.dim(c.integer("axis", -1), rank);
  const auto depth = static_cast<std::int64_t>(c.known_number(1, "depth", 0));
  if (!c.ok() || depth < 1) {
    c.invalid("its depth is below 1");
    return;
  }
  Shape shape = c.type(0).shape;
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  Shape line(static_cast<std::size_t>(rank), 1);
  line[dim] = depth;
  const ValueId count = b.emit(
      "iota",
      {},
      {{"shape", line}, {"dim", static_cast<std::int64_t>(dim)}, {"dtype", std::string("i64")}});
  const ValueId x = reshape_to(b, cast_to(b, c.tensor(0), DType::kInt64), shape);
  const ValueId chosen = b.emit("eq", {wrapped(b, x, depth), count});
  const ValueId values = c.tensor(2);
  if (!c.ok() || b.type(values).shape != Shape{2}) {
    c.invalid("its values are not two numbers");
    return;
  }
  const ValueId off = reshape_to(b, sliced(b, values, 0, 0, 1), {});
  const ValueId on = reshape_to(b, sliced(b, values, 0, 1, 2), {});
  c.result(b.emit("where", {chosen, on, off}));
}

/// The triangle of the last two dimensions below or above a diagonal.
void map_trilu(Call& c) {
  Builder& b = c.builder();
  const auto diagonal = static_cast<std::int64_t>(c.known_number(1, "k", 0));
  const bool upper = c.flag("upper", true);
  const TensorType type = c.type(0);
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;
  if (!c.ok() || type.rank() < 2 || std::abs(diagonal) > kLimit) {
    c.invalid("is for matrices");
    return;
  }
  const std::size_t rank = type.shape.size();
  Band band{.row = rank - 2, .column = rank - 1, .low = std::nullopt, .high = std::nullopt};
  (upper ? band.high : band.low) = -diagonal;
  if (const ConstTensor* const known = c.constant(0)) {
    const std::vector<ConstTensor> operands{ConstTensor::band_mask(type.shape, band), *known};
    std::optional<ConstTensor> folded = elementwise(type, operands, [](std::span<const Number> v) {
      return v[0].i != 0 ? v[1] : Number::of(std::int64_t{0});
    });
    if (folded.has_value()) {
      c.constant_result(std::move(*folded));
      return;
    }
  }
  const ValueId mask =
      band_mask(b, type.shape[rank - 2], type.shape[rank - 1], band.low, band.high);
  const ValueId zero = b.emit(
      "full",
      {},
      {{"shape", IntList{}}, {"value", 0.0}, {"dtype", std::string(ir::dtype_name(type.dtype))}});
  c.result(b.emit("where", {mask, c.tensor(0), zero}));
}

}  // namespace

ValueId wrapped(Builder& b, ValueId indices, std::int64_t size) {
  const ValueId negative = b.emit("lt_scalar", {indices}, {{"value", 0.0}});
  const ValueId from_end = b.emit("add_scalar", {indices}, {{"value", static_cast<double>(size)}});
  return b.emit("where", {negative, from_end, indices});
}

std::vector<Row> indexing_rows() {
  return {
      {"Gather", map_gather, "gather", fold_gather}, {"OneHot", map_one_hot}, {"Trilu", map_trilu}};
}

}  // namespace shardplan::frontends::onnx
