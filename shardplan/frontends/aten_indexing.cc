// Operators that look tensors up by index: embeddings, and the indexing with which models build
// their masks.

#include <algorithm>

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

void map_embedding(AtenCall& c) {
  const std::int64_t padding = c.integer("padding_idx", -1);
  if (padding >= 0) {
    c.unsupported("with padding_idx is not supported: its row gets no gradient");
    return;
  }
  if (c.flag("scale_grad_by_freq", false) || c.flag("sparse", false)) {
    c.unsupported("with scale_grad_by_freq or sparse is not supported");
    return;
  }
  const ValueId weight = c.tensor("weight");
  const ValueId ids = c.tensor("indices");
  c.result(c.builder().emit("embedding", {weight, ids}));
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

/// x[indices]: all elements in order, or rows of a matrix.
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
  const std::vector<ValueId> indices = c.tensors("indices");
  const bool rows = indices.size() == 1 && type.shape.size() == 2 && c.ok() &&
                    !ir::is_floating(c.builder().type(indices[0]).dtype) &&
                    c.builder().type(indices[0]).dtype != ir::DType::kBool &&
                    ir::is_floating(type.dtype);
  if (!rows) {
    c.unsupported("is supported for constant indices, or to look up rows of a matrix");
    return;
  }
  c.result(c.builder().emit("embedding", {x, indices[0]}));
}

/// index_select of rows of a matrix.
void map_index_select(AtenCall& c) {
  const TensorType type = c.type_of("self");
  if (type.shape.size() != 2 || c.dim("dim", 0, 2) != 0 || !ir::is_floating(type.dtype)) {
    c.unsupported("is supported to look up rows of a matrix only");
    return;
  }
  const ValueId x = c.tensor("self");
  const ValueId index = c.tensor("index");
  c.result(c.builder().emit("embedding", {x, index}));
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
          {"aten.index_select.default", map_index_select},
          {"aten.tril.default", nullptr, "tril", fold_triangle},
          {"aten.triu.default", nullptr, "triu", fold_triangle}};
}

}  // namespace shardplan::frontends
