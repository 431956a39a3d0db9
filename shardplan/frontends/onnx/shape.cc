// Operators that give the same elements another shape or order.

#include <algorithm>
#include <numeric>

#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/shapes.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

// Views: a function of the call gives the shape -------------------------------------------------

/// Gives operand 0 a shape, whether it is a constant or not.
void give_shape(Call& c, const Shape& shape) {
  if (!c.ok()) {
    return;
  }
  if (const ConstTensor* const known = c.constant(0)) {
    std::optional<ConstTensor> view = known->reshape(shape);
    if (view.has_value()) {
      c.constant_result(std::move(*view));
      return;
    }
  }
  c.result(reshape_to(c.builder(), c.tensor(0), shape));
}

void map_reshape(Call& c) {
  const IntList wanted = c.has("shape") ? c.integers("shape") : c.known_integers(1, "shape");
  const std::optional<Shape> shape = reshaped(c.type(0).shape, wanted, c.flag("allowzero", false));
  if (c.ok() && !shape.has_value()) {
    c.invalid("the shape does not fit its operand " + to_string(c.type(0)));
    return;
  }
  give_shape(c, shape.value_or(Shape()));
}

void map_flatten(Call& c) {
  const Shape x = c.type(0).shape;
  const auto rank = static_cast<std::int64_t>(x.size());
  const std::int64_t axis = c.integer("axis", 1);
  const std::int64_t at = axis < 0 ? axis + rank : axis;
  if (!c.ok() || at < 0 || at > rank) {
    c.invalid("the attribute 'axis' does not fit its operand");
    return;
  }
  const auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
  };
  give_shape(c, {product(x.begin(), x.begin() + at), product(x.begin() + at, x.end())});
}

void map_squeeze(Call& c) {
  const Shape x = c.type(0).shape;
  const std::optional<IntList> given = c.axes(1);
  const IntList axes = c.dims(given.value_or(IntList()), c.rank(0));
  Shape shape;
  for (std::size_t d = 0; d < x.size(); ++d) {
    const bool named = std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(d));
    if (named && x[d] != 1) {
      c.invalid("a dimension to be removed has not size 1");
      return;
    }
    if (!(given.has_value() ? named : x[d] == 1)) {
      shape.push_back(x[d]);
    }
  }
  give_shape(c, shape);
}

void map_unsqueeze(Call& c) {
  const Shape x = c.type(0).shape;
  const IntList given = c.axes(1).value_or(IntList());
  const std::int64_t rank = c.rank(0) + static_cast<std::int64_t>(given.size());
  const IntList axes = c.dims(given, rank);
  if (!c.ok() || axes.size() != given.size()) {
    c.invalid("its axes name a dimension twice");
    return;
  }
  Shape shape;
  std::size_t from = 0;
  for (std::int64_t d = 0; d < rank; ++d) {
    const bool added = std::binary_search(axes.begin(), axes.end(), d);
    shape.push_back(added ? 1 : x[from++]);
  }
  give_shape(c, shape);
}

void map_identity(Call& c) {
  if (const ConstTensor* const known = c.constant(0)) {
    c.constant_result(*known);
    return;
  }
  const ValueId x = c.tensor(0);
  c.result(x);
}

// Permutations ------------------------------------------------------------------------------------

void map_transpose(Call& c) {
  const auto rank = static_cast<std::size_t>(c.rank(0));
  IntList reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const IntList permutation = c.has("perm") ? c.integers("perm") : reversed;
  IntList sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  std::reverse(reversed.begin(), reversed.end());
  if (sorted != reversed) {
    c.invalid("the attribute 'perm' is no permutation of the dimensions of its operand");
    return;
  }
  if (const ConstTensor* const known = c.constant(0)) {
    c.constant_result(known->permute(permutation));
    return;
  }
  c.result(permuted(c.builder(), c.tensor(0), permutation));
}

/// Blocks of the channels become blocks of the plane, or back: [n, c, h, w] and a block size.
void map_depth_to_space(Call& c) {
  Builder& b = c.builder();
  const ValueId x = c.tensor(0);
  const Shape s = c.type(0).shape;
  const std::int64_t block = c.integer("blocksize", 1);
  const bool to_space = c.ours() == "to_space";
  if (!c.ok() || s.size() != 4 || block < 1 || (to_space && s[1] % (block * block) != 0) ||
      (!to_space && (s[2] % block != 0 || s[3] % block != 0))) {
    c.invalid("its operand has not 4 dimensions that the block size divides");
    return;
  }
  const bool blocks_first = c.text("mode", "DCR") == "DCR";
  if (!to_space) {
    const ValueId y = reshape_to(b, x, {s[0], s[1], s[2] / block, block, s[3] / block, block});
    const IntList order = blocks_first ? IntList{0, 3, 5, 1, 2, 4} : IntList{0, 1, 3, 5, 2, 4};
    c.result(reshape_to(
        b, permuted(b, y, order), {s[0], s[1] * block * block, s[2] / block, s[3] / block}));
    return;
  }
  const std::int64_t depth = s[1] / (block * block);
  const Shape apart = blocks_first ? Shape{s[0], block, block, depth, s[2], s[3]}
                                   : Shape{s[0], depth, block, block, s[2], s[3]};
  const IntList order = blocks_first ? IntList{0, 3, 4, 1, 5, 2} : IntList{0, 1, 4, 2, 5, 3};
  c.result(reshape_to(
      b, permuted(b, reshape_to(b, x, apart), order), {s[0], depth, s[2] * block, s[3] * block}));
}

// Stretching --------------------------------------------------------------------------------------

void map_expand(Call& c) {
  const IntList wanted = c.known_integers(1, "shape");
  const std::optional<Shape> shape = broadcast_shape(c.type(0).shape, wanted);
  if (!c.ok() || !shape.has_value() ||
      std::any_of(shape->begin(), shape->end(), [](std::int64_t d) { return d < 0; })) {
    c.invalid("its operand does not broadcast to the shape");
    return;
  }
  if (const ConstTensor* const known = c.constant(0)) {
    c.constant_result(known->expand(*shape));
    return;
  }
  c.result(broadcast_to(c.builder(), c.tensor(0), *shape));
}

/// Each dimension is stretched in a dimension of its own, then merged.
void map_tile(Call& c) {
  Builder& b = c.builder();
  const IntList repeats = c.known_integers(1, "repeats");
  const Shape shape = c.type(0).shape;
  const bool positive =
      std::all_of(repeats.begin(), repeats.end(), [](std::int64_t r) { return r > 0; });
  if (!c.ok() || repeats.size() != shape.size() || !positive) {
    c.invalid("its repeats do not fit its operand");
    return;
  }
  Shape apart;
  Shape stretched;
  Shape merged;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    apart.insert(apart.end(), {1, shape[d]});
    stretched.insert(stretched.end(), {repeats[d], shape[d]});
    merged.push_back(repeats[d] * shape[d]);
  }
  if (!ir::is_valid({c.type(0).dtype, stretched})) {
    c.invalid("makes a tensor of an impossible shape");
    return;
  }
  const ValueId x = c.tensor(0);
  c.result(reshape_to(b, broadcast_to(b, reshape_to(b, x, apart), stretched), merged));
}

}  // namespace

std::vector<Row> shape_rows() {
  return {{"Reshape", map_reshape},
          {"Flatten", map_flatten},
          {"Squeeze", map_squeeze},
          {"Unsqueeze", map_unsqueeze},
          {"Identity", map_identity},
          {"Transpose", map_transpose},
          {"DepthToSpace", map_depth_to_space, "to_space"},
          {"SpaceToDepth", map_depth_to_space, "to_depth"},
          {"Expand", map_expand},
          {"Tile", map_tile}};
}

}  // namespace shardplan::frontends::onnx
