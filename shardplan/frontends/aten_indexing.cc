// Operators that look tensors up by index: embeddings, and the indexing with which models build
// their masks.

#include <algorithm>
#include <numeric>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

/// Rows of a table; the row `padding_idx` gets no gradient.
void map_embedding(AtenCall& c) {
  if (c.flag("scale_grad_by_freq", false) || c.flag("sparse", false)) {
    c.unsupported("with scale_grad_by_freq or sparse is not supported");
    return;
  }
  const ValueId weight = c.tensor("weight");
  const ValueId ids = c.tensor("indices");
  const std::int64_t padding = c.integer("padding_idx", -1);
  c.result(padding >= 0 ? c.builder().emit("embedding", {weight, ids}, {{"padding_idx", padding}})
                        : c.builder().emit("embedding", {weight, ids}));
}

Folded fold_index(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const std::optional<std::vector<ConstTensor>> indices = c.constants("indices");
  const TensorType type = c.result_type();
  if (x == nullptr || !indices.has_value() || indices->size() > x->shape().size() || !c.ok() ||
      type.shape.size() + indices->size() < x->shape().size()) {
    return std::nullopt;
  }
  for (const ConstTensor& index : *indices) {
    if (index.type().dtype == ir::DType::kBool) {
      return std::nullopt;
    }
  }
  return gather(type, *x, *indices);
}

/// Whether the indices choose every element of x in order, so that x[indices] only has dimensions
/// of size 1 inserted: index k counts through dimension k of x along a result dimension of its own.
bool chooses_all(const std::vector<ConstTensor>& indices,
                 const TensorType& x,
                 const Shape& result) {
  std::int64_t last = -1;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    if (x.shape[k] == 1 && indices[k].uniform() == Number::of(std::int64_t{0})) {
      continue;
    }
    const std::size_t rank = indices[k].shape().size();
    const std::optional<IndexLike> index = indices[k].index_like();
    if (!index.has_value() || index->start != 0 || rank > result.size()) {
      return false;
    }
    // Indices are aligned at the right of the broadcast index shape, which leads the result.
    const std::size_t chosen = result.size() - (x.shape.size() - indices.size());
    const auto dim = static_cast<std::int64_t>(index->dim + chosen - rank);
    if (dim <= last || indices[k].shape()[index->dim] != x.shape[k]) {
      return false;
    }
    last = dim;
  }
  return TensorType{x.dtype, result}.numel() == x.numel();
}

/// `count` dimensions of x moved from `from` to `to`.
ValueId moved(AtenCall& c, ValueId x, std::size_t from, std::size_t count, std::size_t to) {
  if (!c.ok() || from == to || count == 0) {
    return x;
  }
  IntList order(c.builder().type(x).shape.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to) {
    std::rotate(at(from), at(from + count), at(to + count));
  } else {
    std::rotate(at(to), at(from), at(from + count));
  }
  return c.permute(x, order);
}

Shape joined(const Shape& a, const Shape& b) {
  Shape out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

/// x [v, rest...] as the matrix [v, rest].
ValueId as_rows(AtenCall& c, ValueId x, std::int64_t rows) {
  return c.ok() ? c.reshape(x, {rows, c.builder().type(x).numel() / rows}) : x;
}

/// The rows of `ids` of x [v, rest...] in the shape of ids, then rest.
ValueId lookup(AtenCall& c, ValueId x, ValueId ids) {
  const Shape shape = c.builder().type(x).shape;
  if (!c.ok() || shape.empty()) {
    c.invalid("indexes a scalar");
    return {};
  }
  const ValueId rows = c.builder().emit("embedding", {as_rows(c, x, shape.front()), ids});
  const Shape rest(shape.begin() + 1, shape.end());
  return c.reshape(rows, joined(c.builder().type(ids).shape, rest));
}

/// Zeros [count, rest...] to whose rows `ids`, a vector, the rows of src [k, rest...] are added.
ValueId sum_rows(AtenCall& c, ValueId src, ValueId ids, std::int64_t count) {
  Shape shape = c.builder().type(src).shape;
  if (!c.ok() || shape.empty()) {
    c.invalid("has a scalar for rows");
    return {};
  }
  const ValueId rows = as_rows(c, src, shape.front());
  const ValueId sums = c.builder().emit("embedding_backward", {rows, ids}, {{"rows", count}});
  shape.front() = count;
  return c.reshape(sums, shape);
}

/// Whether all indices are known, and none counts from the end.
bool none_is_negative(AtenCall& c) {
  const std::optional<std::vector<ConstTensor>> indices = c.constants("indices");
  return indices.has_value() && std::all_of(indices->begin(), indices->end(), [](const auto& i) {
           const std::optional<std::vector<Number>> elements = i.compact_elements();
           return elements.has_value() &&
                  std::all_of(elements->begin(), elements->end(), [](const Number& n) {
                    return n.as_double() >= 0;
                  });
         });
}

/// Indices that may count from the end, counted from the front.
ValueId from_front(AtenCall& c, ValueId index, std::int64_t size) {
  Builder& b = c.builder();
  const ValueId negative = b.emit("lt_scalar", {index}, {{"value", 0.0}});
  const ValueId shifted = b.emit("add_scalar", {index}, {{"value", static_cast<double>(size)}});
  return b.emit("where", {negative, shifted, index});
}

/// x[..., i, j, ...] with integer tensors at some dimensions.
struct Indexed {
  std::vector<std::size_t> dims;  ///< with an index, increasing
  ValueId ids;                    ///< place among these dimensions of x, merged
  std::int64_t rows = 1;          ///< their elements
};

/// The indices as one index; nothing after an error.
std::optional<Indexed> merged_index(AtenCall& c, const TensorType& x) {
  Builder& b = c.builder();
  const std::vector<ValueId> indices = c.tensors_if_given("indices");
  const bool from_start = none_is_negative(c);
  Indexed out;
  for (std::size_t d = 0; d < indices.size() && c.ok(); ++d) {
    if (!indices[d].valid()) {
      continue;
    }
    const ir::DType dtype = b.type(indices[d]).dtype;
    if (d >= x.shape.size() || ir::is_floating(dtype) || dtype == ir::DType::kBool) {
      c.unsupported("is supported with integer indices only");
      return std::nullopt;
    }
    const std::int64_t size = x.shape[d];
    const ValueId given = c.cast(indices[d], ir::DType::kInt64);
    const ValueId index = from_start ? given : from_front(c, given, size);
    const bool first = out.dims.empty();
    out.ids =
        first
            ? index
            : b.emit("add",
                     {b.emit("scale", {out.ids}, {{"factor", static_cast<double>(size)}}), index});
    out.dims.push_back(d);
    out.rows *= size;
  }
  if (!c.ok() || out.dims.empty()) {
    c.invalid("has no index");
    return std::nullopt;
  }
  return out;
}

/// x with the indexed dimensions first, merged.
ValueId indexed_rows_first(AtenCall& c, ValueId x, const Indexed& at) {
  for (std::size_t i = 0; i < at.dims.size(); ++i) {
    x = moved(c, x, at.dims[i], 1, i);
  }
  Shape shape{at.rows};
  const Shape from = c.builder().type(x).shape;
  shape.insert(shape.end(), from.begin() + static_cast<std::ptrdiff_t>(at.dims.size()), from.end());
  return c.reshape(x, shape);
}

/// x[indices]: all elements in order, or a lookup of rows.
void map_index(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const TensorType result = c.result_type();
  const std::optional<std::vector<ConstTensor>> constants = c.constants("indices");
  if (!c.ok()) {
    return;
  }
  const bool fits = constants.has_value() && constants->size() <= type.shape.size() &&
                    result.shape.size() + constants->size() >= type.shape.size();
  if (fits && chooses_all(*constants, type, result.shape)) {
    c.result(c.reshape(x, result.shape));
    return;
  }
  const std::optional<Indexed> at = merged_index(c, type);
  if (!at.has_value()) {
    return;
  }
  const ValueId y = lookup(c, indexed_rows_first(c, x, *at), at->ids);
  // Indices side by side put their dimensions where they were, others to the front.
  const bool together = at->dims.back() - at->dims.front() + 1 == at->dims.size();
  c.result(together ? moved(c, y, 0, c.builder().type(at->ids).shape.size(), at->dims.front()) : y);
}

/// index_put that accumulates: x plus the values in their places.
void map_index_put(AtenCall& c) {
  Builder& b = c.builder();
  const TensorType type = c.type_of("self");
  const ValueId x = c.tensor("self");
  const ValueId values = c.tensor_as("values", type.dtype);
  if (!c.flag("accumulate", false)) {
    c.unsupported("is supported with accumulate only");
    return;
  }
  const std::optional<Indexed> at = merged_index(c, type);
  if (!at.has_value()) {
    return;
  }
  bool leading = true;
  for (std::size_t i = 0; i < at->dims.size(); ++i) {
    leading = leading && at->dims[i] == i;
  }
  const Shape ids = b.type(at->ids).shape;
  const Shape rest(type.shape.begin() + static_cast<std::ptrdiff_t>(at->dims.size()),
                   type.shape.end());
  const TensorType whole{type.dtype, joined(ids, rest)};
  if (!leading) {
    c.unsupported("is supported for indices of the first dimensions only");
    return;
  }
  const std::int64_t count = b.type(at->ids).numel();
  ValueId src = values;
  if (c.ok() && b.type(src).shape != whole.shape) {
    src = b.emit("broadcast", {src}, {{"shape", IntList(whole.shape)}});
  }
  src = c.reshape(src, joined({count}, rest));
  const ValueId sums = sum_rows(c, src, c.reshape(at->ids, {count}), at->rows);
  c.result(b.emit("add", {x, c.reshape(sums, type.shape)}));
}

void map_index_select(AtenCall& c) {
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dim", 0, type.rank());
  const ValueId x = c.tensor("self");
  const ValueId index = c.tensor("index");
  c.result(moved(c, lookup(c, moved(c, x, dim, 1, 0), index), 0, 1, dim));
}

/// index_add: x plus the rows of the source in their places.
void map_index_add(AtenCall& c) {
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dim", 0, type.rank());
  const ValueId x = c.tensor("self");
  const ValueId source = c.tensor_as("source", type.dtype);
  const ValueId index = c.tensor("index");
  const double alpha = c.real("alpha", 1.0);
  if (!c.ok()) {
    return;
  }
  ValueId sums = sum_rows(c, moved(c, source, dim, 1, 0), index, type.shape[dim]);
  if (alpha != 1.0) {
    sums = c.builder().emit("scale", {sums}, {{"factor", alpha}});
  }
  c.result(c.builder().emit("add", {x, moved(c, sums, 0, 1, dim)}));
}

void map_gather(AtenCall& c) {
  const auto dim = static_cast<std::int64_t>(c.dim("dim", 0, c.type_of("self").rank()));
  const ValueId x = c.tensor("self");
  const ValueId index = c.tensor("index");
  c.result(c.builder().emit("gather", {x, index}, {{"dim", dim}}));
}

/// Of equal elements, whatever the index.
Folded fold_gather(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  const std::optional<Number> value = x == nullptr ? std::nullopt : x->uniform();
  return value.has_value() && c.ok() ? Folded(ConstTensor::full(type, *value)) : std::nullopt;
}

/// scatter_add, and scatter_reduce by sum: self plus the source in its places.
void map_scatter_add(AtenCall& c) {
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dim", 0, type.rank());
  if (c.given("reduce") && (c.text("reduce", "") != "sum" || !c.flag("include_self", true))) {
    c.unsupported("is supported with reduce = \"sum\" and include_self only");
    return;
  }
  const ValueId x = c.tensor("self");
  ValueId src = c.tensor_as("src", type.dtype);
  const ValueId index = c.tensor("index");
  const Shape places = c.builder().type(index).shape;
  for (std::size_t d = 0; d < places.size() && c.ok(); ++d) {  // only the elements with an index
    if (c.builder().type(src).shape[d] > places[d]) {
      src = c.builder().emit("slice",
                             {src},
                             {{"dim", static_cast<std::int64_t>(d)},
                              {"start", std::int64_t{0}},
                              {"end", places[d]},
                              {"step", std::int64_t{1}}});
    }
  }
  const ValueId sums =
      c.builder().emit("scatter_sum",
                       {src, index},
                       {{"dim", static_cast<std::int64_t>(dim)}, {"shape", IntList(type.shape)}});
  c.result(c.builder().emit("add", {x, sums}));
}

/// Each element `repeats` times in a row.
void map_repeat_interleave(AtenCall& c) {
  ValueId x = c.tensor("self");
  Shape shape = c.type_of("self").shape;
  const std::int64_t repeats = c.integer("repeats", 1);
  if (!c.given("dim")) {
    shape = {c.type_of("self").numel()};
    x = c.reshape(x, shape);
  }
  const auto dim =
      static_cast<std::ptrdiff_t>(c.dim("dim", 0, static_cast<std::int64_t>(shape.size())));
  if (!c.ok() || repeats < 1) {
    c.unsupported("is supported with a positive number of repeats only");
    return;
  }
  shape.insert(shape.begin() + dim + 1, 1);
  x = c.reshape(x, shape);
  shape[static_cast<std::size_t>(dim) + 1] = repeats;
  c.result(c.reshape(broadcast_to(c.builder(), x, shape), c.result_type().shape));
}

/// The lower or upper triangle: zeros elsewhere.
void map_triangle(AtenCall& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const std::int64_t diagonal = c.integer("diagonal", 0);
  constexpr std::int64_t kLimit = std::int64_t{1} << 40;
  if (!c.ok() || type.rank() < 2 || std::abs(diagonal) > kLimit) {
    c.unsupported("is supported on matrices only");
    return;
  }
  const std::int64_t rows = type.shape[type.shape.size() - 2];
  const std::int64_t columns = type.shape.back();
  const bool lower = c.ours() == "tril";
  const std::optional<std::int64_t> bound(-diagonal);
  const ValueId mask = lower ? band_mask(b, rows, columns, bound, std::nullopt)
                             : band_mask(b, rows, columns, std::nullopt, bound);
  const ValueId zero =
      c.materialize_compact(ConstTensor::full({type.dtype, {}}, Number::of(std::int64_t{0})));
  c.result(b.emit("where", {mask, x, zero}));
}

/// The lower or upper triangle of a constant matrix.
Folded fold_triangle(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  const std::int64_t diagonal = c.integer("diagonal", 0);
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;
  if (x == nullptr || type.shape.size() < 2 || std::abs(diagonal) > kLimit || !c.ok()) {
    return std::nullopt;
  }
  const std::size_t rank = type.shape.size();
  Band band{.row = rank - 2, .column = rank - 1, .low = std::nullopt, .high = std::nullopt};
  (c.ours() == "tril" ? band.low : band.high) = -diagonal;
  const ConstTensor mask = ConstTensor::band_mask(type.shape, band);
  const std::vector<ConstTensor> operands{mask, *x};
  return elementwise(type, operands, [](std::span<const Number> v) {
    return v[0].i != 0 ? v[1] : Number::of(std::int64_t{0});
  });
}

}  // namespace

std::vector<AtenOp> aten_indexing() {
  return {{"aten.embedding.default", map_embedding},
          {"aten.index.Tensor", map_index, "index", fold_index},
          {"aten.index_put.default", map_index_put},
          {"aten.index_select.default", map_index_select},
          {"aten.index_add.default", map_index_add},
          {"aten.gather.default", map_gather, "gather", fold_gather},
          {"aten.scatter_add.default", map_scatter_add},
          {"aten.scatter_reduce.two", map_scatter_add},
          {"aten.repeat_interleave.self_int", map_repeat_interleave},
          {"aten.tril.default", map_triangle, "tril", fold_triangle},
          {"aten.triu.default", map_triangle, "triu", fold_triangle}};
}

}  // namespace shardplan::frontends
