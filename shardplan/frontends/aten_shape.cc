// Operators that only move elements: views, permutations, cutting and joining.

#include <algorithm>
#include <array>
#include <numeric>

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;
using Folded = std::optional<ConstTensor>;

// Every view has the shape that the archive gives for the result.
// -----------------------------------

void map_view(AtenCall& c) {
  const ValueId x = c.tensor("self");
  c.result(c.reshape(x, c.result_type().shape));
}

Folded fold_view(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  return x != nullptr && c.ok() && x->type().numel() == type.numel() ? x->reshape(type.shape)
                                                                     : std::nullopt;
}

ValueId broadcast(AtenCall& c, ValueId x, const Shape& shape) {
  if (!c.ok() || c.builder().type(x).shape == shape) {
    return x;
  }
  return c.builder().emit("broadcast", {x}, {{"shape", IntList(shape)}});
}

void map_expand(AtenCall& c) {
  const ValueId x = c.tensor("self");
  c.result(broadcast(c, x, c.result_type().shape));
}

Folded fold_expand(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const TensorType type = c.result_type();
  return x != nullptr && c.ok() && x->expands_to(type.shape) ? Folded(x->expand(type.shape))
                                                             : std::nullopt;
}

// Permutations
// --------------------------------------------------------------------------------------

IntList permutation_of(AtenCall& c) {
  const std::int64_t rank = c.type_of("self").rank();
  IntList permutation(static_cast<std::size_t>(rank));
  std::iota(permutation.begin(), permutation.end(), 0);
  if (c.ours() == "permute") {
    IntList dims = c.integers("dims");
    for (std::int64_t& dim : dims) {
      dim += dim < 0 ? rank : 0;
    }
    IntList sorted = dims;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != permutation) {
      c.invalid("the argument 'dims' is no permutation");
      return permutation;
    }
    return dims;
  }
  if (rank < 2) {
    return permutation;
  }
  if (c.ours() == "numpy_T") {
    std::reverse(permutation.begin(), permutation.end());
    return permutation;
  }
  const bool named = c.ours() == "transpose";
  const auto last = static_cast<std::size_t>(rank) - 1;
  const std::size_t b = named ? c.dim("dim1", 1, rank) : last;
  const std::size_t a = named ? c.dim("dim0", 0, rank) : last - 1;
  std::swap(permutation[a], permutation[b]);
  return permutation;
}

void map_permute(AtenCall& c) {
  const IntList permutation = permutation_of(c);
  const ValueId x = c.tensor("self");
  c.result(c.permute(x, permutation));
}

Folded fold_permute(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  if (x == nullptr) {
    return std::nullopt;
  }
  const IntList permutation = permutation_of(c);
  return c.ok() && permutation.size() == x->shape().size() ? Folded(x->permute(permutation))
                                                           : std::nullopt;
}

// Cutting
// -------------------------------------------------------------------------------------------

ValueId cut(AtenCall& c,
            ValueId x,
            std::size_t dim,
            std::int64_t start,
            std::int64_t end,
            std::int64_t step = 1) {
  if (!c.ok() || (start == 0 && step == 1 && end == c.builder().type(x).shape[dim])) {
    return x;
  }
  return c.builder().emit(
      "slice",
      {x},
      {{"dim", static_cast<std::int64_t>(dim)}, {"start", start}, {"end", end}, {"step", step}});
}

/// Where a slice, select or narrow cuts.
struct Cut {
  std::size_t dim = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

/// PyTorch's rule: negative positions count from the end, positions outside are moved to the ends.
std::int64_t position(std::int64_t at, std::int64_t size) {
  return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
}

std::optional<Cut> cut_of(AtenCall& c) {
  const TensorType type = c.type_of("self");
  Cut cut;
  cut.dim = c.dim("dim", 0, type.rank());
  if (!c.ok()) {
    return std::nullopt;
  }
  const std::int64_t size = type.shape[cut.dim];
  if (c.ours() == "select") {
    const std::int64_t index = c.integer("index", 0);
    cut.start = index < 0 ? index + size : index;
    cut.end = cut.start + 1;
  } else if (c.ours() == "narrow") {
    cut.start = position(c.integer("start", 0), size);
    cut.end = cut.start + std::min(c.integer("length", 1), size);
  } else {
    cut.start = position(c.integer("start", 0), size);
    cut.end = position(c.integer("end", size), size);
    cut.step = c.integer("step", 1);
  }
  if (cut.start < 0 || cut.end > size || cut.step < 1) {
    c.invalid("cuts outside of its operand");
    return std::nullopt;
  }
  return cut;
}

void map_cut(AtenCall& c) {
  const std::optional<Cut> at = cut_of(c);
  const ValueId x = c.tensor("self");
  if (at.has_value()) {
    c.result(c.reshape(cut(c, x, at->dim, at->start, at->end, at->step), c.result_type().shape));
  }
}

Folded fold_cut(AtenCall& c) {
  const ConstTensor* const x = c.constant("self");
  const std::optional<Cut> at = x == nullptr ? std::nullopt : cut_of(c);
  if (!at.has_value() || at->end <= at->start) {
    return std::nullopt;
  }
  const std::int64_t size = (at->end - at->start + at->step - 1) / at->step;
  const Folded part = x->slice(at->dim, at->start, size, at->step);
  const Shape shape = c.result_type().shape;
  return part.has_value() && part->type().numel() == TensorType{part->type().dtype, shape}.numel()
             ? part->reshape(shape)
             : std::nullopt;
}

/// split, split_with_sizes, chunk, unbind: the archive tells the size of each part.
void map_split(AtenCall& c) {
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  const std::size_t dim = c.dim("dim", 0, type.rank());
  std::int64_t start = 0;
  for (std::size_t i = 0; i < c.result_count() && c.ok(); ++i) {
    const Shape shape = c.result_type(i).shape;
    const std::int64_t size = c.ours() == "unbind" || dim >= shape.size() ? 1 : shape[dim];
    if (size < 0 || start + size > type.shape[dim]) {
      c.invalid("its parts do not fit its operand");
      return;
    }
    if (size > 0) {  // a part without elements is left out wherever it is joined
      c.result(c.reshape(cut(c, x, dim, start, start + size), shape), i);
    }
    start += size;
  }
}

/// slice_scatter, select_scatter: the operand with a cut of it replaced.
void map_replace_cut(AtenCall& c) {
  const std::optional<Cut> at = cut_of(c);
  const ValueId x = c.tensor("self");
  const TensorType type = c.type_of("self");
  ValueId part = c.tensor_as("src", type.dtype);
  if (!at.has_value() || !c.ok()) {
    return;
  }
  if (at->step != 1) {
    c.unsupported("is supported with step 1 only");
    return;
  }
  if (at->end <= at->start) {
    c.result(x);
    return;
  }
  Shape shape = type.shape;
  shape[at->dim] = at->end - at->start;
  part = c.reshape(part, shape);
  std::vector<ValueId> parts;
  if (at->start > 0) {
    parts.push_back(cut(c, x, at->dim, 0, at->start));
  }
  parts.push_back(part);
  if (at->end < type.shape[at->dim]) {
    parts.push_back(cut(c, x, at->dim, at->end, type.shape[at->dim]));
  }
  c.result(parts.size() == 1
               ? part
               : c.builder().emit("concat", parts, {{"dim", static_cast<std::int64_t>(at->dim)}}));
}

// Joining
// -------------------------------------------------------------------------------------------

void map_cat(AtenCall& c) {
  const TensorType type = c.result_type();
  const bool stack = c.ours() == "stack";
  const std::size_t dim = c.dim("dim", 0, type.rank());
  std::vector<ValueId> parts;
  for (const ValueId part : c.tensors("tensors")) {
    ValueId x = c.cast(part, type.dtype);
    if (stack && c.ok()) {
      Shape shape = c.builder().type(x).shape;
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(std::min(dim, shape.size())), 1);
      x = c.reshape(x, shape);
    }
    parts.push_back(x);
  }
  if (c.ok()) {
    c.result(parts.size() == 1
                 ? parts.front()
                 : c.builder().emit("concat", parts, {{"dim", static_cast<std::int64_t>(dim)}}));
  }
}

Folded fold_cat(AtenCall& c) {
  const std::optional<std::vector<ConstTensor>> parts = c.constants("tensors");
  const TensorType type = c.result_type();
  if (c.ours() == "stack" || !parts.has_value() || parts->empty() || !c.ok()) {
    return std::nullopt;
  }
  const std::size_t dim = c.dim("dim", 0, type.rank());
  std::int64_t total = 0;
  for (const ConstTensor& part : *parts) {
    total += part.shape().size() == type.shape.size() ? part.shape()[dim] : 0;
  }
  return c.ok() && total == type.shape[dim] ? concatenate(type, *parts, dim) : std::nullopt;
}

/// pad with a constant: pairs (before, after) from the last dimension on; negative ones cut.
void map_pad(AtenCall& c) {
  if (const std::string mode = c.text("mode", "constant"); mode != "constant") {
    map_pad_by_content(c, mode, c.integers("pad"));
    return;
  }
  ValueId x = c.tensor("self");
  const std::vector<std::int64_t> pad = c.integers("pad");
  const double value = c.real("value", 0.0);
  const TensorType type = c.type_of("self");
  if (!c.ok() || pad.size() % 2 != 0 || pad.size() / 2 > type.shape.size()) {
    c.invalid("the argument 'pad' does not fit its operand");
    return;
  }
  for (std::size_t i = 0; 2 * i < pad.size() && c.ok(); ++i) {
    const std::size_t dim = type.shape.size() - 1 - i;
    const std::int64_t before = pad[2 * i];
    const std::int64_t after = pad[2 * i + 1];
    const std::int64_t size = c.builder().type(x).shape[dim];
    if (before <= -size || after <= -size) {
      c.invalid("the argument 'pad' cuts everything");
      return;
    }
    x = cut(c, x, dim, std::max<std::int64_t>(-before, 0), size + std::min<std::int64_t>(after, 0));
    if (before > 0 || after > 0) {
      x = c.builder().emit("pad",
                           {x},
                           {{"dim", static_cast<std::int64_t>(dim)},
                            {"before", std::max<std::int64_t>(before, 0)},
                            {"after", std::max<std::int64_t>(after, 0)},
                            {"value", value}});
    }
  }
  c.result(x);
}

/// repeat: each dimension is stretched in a dimension of its own, then merged.
void map_repeat(AtenCall& c) {
  const std::vector<std::int64_t> repeats = c.integers("repeats");
  const ValueId x = c.tensor("self");
  Shape shape = c.type_of("self").shape;
  if (!c.ok() || repeats.size() < shape.size()) {
    c.invalid("the argument 'repeats' does not fit its operand");
    return;
  }
  shape.insert(shape.begin(), repeats.size() - shape.size(), 1);
  Shape apart;
  Shape stretched;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    apart.insert(apart.end(), {1, shape[d]});
    stretched.insert(stretched.end(), {repeats[d], shape[d]});
  }
  c.result(c.reshape(broadcast(c, c.reshape(x, apart), stretched), c.result_type().shape));
}

void map_broadcast_tensors(AtenCall& c) {
  const std::vector<ValueId> tensors = c.tensors("tensors");
  for (std::size_t i = 0; i < std::min(tensors.size(), c.result_count()); ++i) {
    c.result(broadcast(c, tensors[i], c.result_type(i).shape), i);
  }
}

}  // namespace

std::vector<AtenOp> aten_shape() {
  std::vector<AtenOp> rows;
  for (const std::string_view target : {"aten.view.default",
                                        "aten._unsafe_view.default",
                                        "aten.reshape.default",
                                        "aten.view_as.default",
                                        "aten.flatten.using_ints",
                                        "aten.unflatten.int",
                                        "aten.unsqueeze.default",
                                        "aten.squeeze.default",
                                        "aten.squeeze.dim",
                                        "aten.squeeze.dims"}) {
    rows.push_back({.target = target, .map = map_view, .fold = fold_view});
  }
  for (const std::string_view target :
       {"aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default"}) {
    rows.push_back({.target = target, .map = map_expand, .fold = fold_expand});
  }
  rows.push_back({"aten.permute.default", map_permute, "permute", fold_permute});
  rows.push_back({"aten.transpose.int", map_permute, "transpose", fold_permute});
  rows.push_back({"aten.swapaxes.default", map_permute, "transpose", fold_permute});
  rows.push_back({"aten.swapdims.default", map_permute, "transpose", fold_permute});
  rows.push_back({"aten.t.default", map_permute, "t", fold_permute});
  rows.push_back({"aten.mT.default", map_permute, "mT", fold_permute});
  rows.push_back({"aten.numpy_T.default", map_permute, "numpy_T", fold_permute});
  rows.push_back({"aten.slice.Tensor", map_cut, "slice", fold_cut});
  rows.push_back({"aten.select.int", map_cut, "select", fold_cut});
  rows.push_back({"aten.narrow.default", map_cut, "narrow", fold_cut});
  for (const std::string_view target : {"aten.split.Tensor",
                                        "aten.split.sizes",
                                        "aten.split_with_sizes.default",
                                        "aten.chunk.default",
                                        "aten.tensor_split.sections"}) {
    rows.push_back({.target = target, .map = map_split});
  }
  rows.push_back({"aten.unbind.int", map_split, "unbind"});
  rows.push_back({"aten.slice_scatter.default", map_replace_cut, "slice"});
  rows.push_back({"aten.select_scatter.default", map_replace_cut, "select"});
  rows.push_back({"aten.cat.default", map_cat, "cat", fold_cat});
  rows.push_back({"aten.concat.default", map_cat, "cat", fold_cat});
  rows.push_back({"aten.stack.default", map_cat, "stack", fold_cat});
  rows.push_back({"aten.pad.default", map_pad});
  rows.push_back({"aten.constant_pad_nd.default", map_pad});
  rows.push_back({"aten.repeat.default", map_repeat});
  rows.push_back({"aten.broadcast_tensors.default", map_broadcast_tensors});
  return rows;
}

}  // namespace shardplan::frontends
