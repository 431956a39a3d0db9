// Maxima and means over windows of space.

#include <algorithm>
#include <numeric>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::IntList;
using ir::Shape;
using ir::ValueId;

/// How many dimensions of space an operator has: `ours` says it.
std::size_t space_of(const AtenCall& c) {
  return static_cast<std::size_t>(c.ours().front() - '0');
}

/// x as [batch, channels, space...], a batch of one if it has none.
ValueId batched(AtenCall& c, std::size_t space) {
  const ValueId x = c.tensor("self");
  Shape shape = c.builder().type(x).shape;
  if (!c.ok() || shape.size() < space + 1 || shape.size() > space + 2) {
    c.invalid("its operand has another rank than expected");
    return {};
  }
  if (shape.size() == space + 1) {
    shape.insert(shape.begin(), 1);
  }
  return c.reshape(x, shape);
}

/// One number for each dimension of space; a single one stands for all.
IntList sizes_of(AtenCall& c, std::string_view name, std::size_t space, const IntList& fallback) {
  IntList sizes = c.integers(name);
  if (sizes.size() == 1) {
    sizes = IntList(space, sizes.front());
  }
  return sizes.empty() ? fallback : sizes;
}

Attributes windows(AtenCall& c, std::size_t space) {
  const IntList kernel = sizes_of(c, "kernel_size", space, {});
  return {{"kernel", kernel},
          {"stride", sizes_of(c, "stride", space, kernel)},
          {"padding", sizes_of(c, "padding", space, IntList(space, 0))},
          {"ceil", c.flag("ceil_mode", false)}};
}

void map_max_pool(AtenCall& c) {
  const std::size_t space = space_of(c);
  const ValueId x = batched(c, space);
  Attributes attributes = windows(c, space);
  attributes.set("dilation", sizes_of(c, "dilation", space, IntList(space, 1)));
  const std::vector<ValueId> results = c.builder().emit_all("max_pool", {x}, std::move(attributes));
  for (std::size_t i = 0; i < std::min(results.size(), c.result_count()); ++i) {
    c.result(c.reshape(results[i], c.result_type(i).shape), i);
  }
}

void map_adaptive_max_pool(AtenCall& c) {
  const std::size_t space = space_of(c);
  const ValueId x = batched(c, space);
  const std::vector<ValueId> results = c.builder().emit_all(
      "adaptive_max_pool", {x}, {{"size", sizes_of(c, "output_size", space, {})}});
  for (std::size_t i = 0; i < std::min(results.size(), c.result_count()); ++i) {
    c.result(c.reshape(results[i], c.result_type(i).shape), i);
  }
}

void map_avg_pool(AtenCall& c) {
  const std::size_t space = space_of(c);
  const ValueId x = batched(c, space);
  Attributes attributes = windows(c, space);
  attributes.set("count_padding", c.flag("count_include_pad", true));
  if (c.given("divisor_override")) {
    attributes.set("divisor", c.integer("divisor_override", 1));
  }
  c.result(
      c.reshape(c.builder().emit("avg_pool", {x}, std::move(attributes)), c.result_type().shape));
}

/// The mean over all of space.
ValueId mean_of_space(AtenCall& c, ValueId x) {
  const Shape shape = c.builder().type(x).shape;
  IntList dims;
  double count = 1;
  for (std::size_t d = 2; d < shape.size(); ++d) {
    dims.push_back(static_cast<std::int64_t>(d));
    count *= static_cast<double>(shape[d]);
  }
  const ValueId sum = c.builder().emit("sum", {x}, {{"dims", dims}, {"keepdim", true}});
  return c.builder().emit("scale", {sum}, {{"factor", 1.0 / count}});
}

/// One dimension of x in `parts` parts that may overlap, each their mean: a product with a constant
/// matrix.
ValueId mean_of_parts(AtenCall& c, ValueId x, std::size_t dim, std::int64_t parts) {
  const ir::TensorType type = c.builder().type(x);
  const std::int64_t size = type.shape[dim];
  std::vector<Number> elements;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t start = part * size / parts;
    const std::int64_t end = ((part + 1) * size + parts - 1) / parts;
    for (std::int64_t i = 0; i < size; ++i) {
      const bool inside = i >= start && i < end;
      elements.push_back(Number::of(inside ? 1.0 / static_cast<double>(end - start) : 0.0));
    }
  }
  const ir::DType dtype =
      type.dtype == ir::DType::kFloat64 ? ir::DType::kFloat64 : ir::DType::kFloat32;
  const std::optional<ConstTensor> matrix =
      from_compact({dtype, {parts, size}}, {parts, size}, std::move(elements));
  if (!matrix.has_value()) {
    c.unsupported("has too many parts");
    return {};
  }
  const ValueId weights = c.cast(c.materialize(*matrix), type.dtype);
  std::string from = std::string("abcde").substr(0, type.shape.size());
  std::string to = from;
  to[dim] = 'p';
  return c.builder().emit(
      "einsum", {x, weights}, {{"equation", from + ",p" + from[dim] + "->" + to}});
}

/// Means over parts of space: all of it, equal parts, or parts that overlap.
void map_adaptive_avg_pool(AtenCall& c) {
  const std::size_t space = space_of(c);
  ValueId x = batched(c, space);
  const Shape shape = c.builder().type(x).shape;
  const IntList sizes = sizes_of(c, "output_size", space, {});
  if (!c.ok() || sizes.size() != space) {
    c.invalid("the argument 'output_size' does not fit its operand");
    return;
  }
  bool one = true;
  bool equal = true;
  IntList kernel;
  for (std::size_t d = 0; d < space; ++d) {
    if (sizes[d] < 1) {
      c.invalid("the argument 'output_size' is not positive");
      return;
    }
    one = one && sizes[d] == 1;
    equal = equal && shape[d + 2] % sizes[d] == 0;
    kernel.push_back(shape[d + 2] / std::max<std::int64_t>(sizes[d], 1));
  }
  if (one) {
    x = mean_of_space(c, x);
  } else if (equal) {
    x = c.builder().emit("avg_pool",
                         {x},
                         {{"kernel", kernel},
                          {"stride", kernel},
                          {"padding", IntList(space, 0)},
                          {"ceil", false},
                          {"count_padding", true}});
  } else {
    for (std::size_t d = 0; d < space && c.ok(); ++d) {
      x = sizes[d] == shape[d + 2] ? x : mean_of_parts(c, x, d + 2, sizes[d]);
    }
  }
  c.result(c.reshape(x, c.result_type().shape));
}

}  // namespace

std::vector<AtenOp> aten_pooling() {
  return {{"aten.max_pool1d.default", map_max_pool, "1"},
          {"aten.max_pool2d.default", map_max_pool, "2"},
          {"aten.max_pool3d.default", map_max_pool, "3"},
          {"aten.max_pool1d_with_indices.default", map_max_pool, "1"},
          {"aten.max_pool2d_with_indices.default", map_max_pool, "2"},
          {"aten.max_pool3d_with_indices.default", map_max_pool, "3"},
          {"aten.adaptive_max_pool1d.default", map_adaptive_max_pool, "1"},
          {"aten.adaptive_max_pool2d.default", map_adaptive_max_pool, "2"},
          {"aten.adaptive_max_pool3d.default", map_adaptive_max_pool, "3"},
          {"aten.avg_pool1d.default", map_avg_pool, "1"},
          {"aten.avg_pool2d.default", map_avg_pool, "2"},
          {"aten.avg_pool3d.default", map_avg_pool, "3"},
          {"aten.adaptive_avg_pool1d.default", map_adaptive_avg_pool, "1"},
          {"aten.adaptive_avg_pool2d.default", map_adaptive_avg_pool, "2"},
          {"aten._adaptive_avg_pool2d.default", map_adaptive_avg_pool, "2"},
          {"aten.adaptive_avg_pool3d.default", map_adaptive_avg_pool, "3"},
          {"aten._adaptive_avg_pool3d.default", map_adaptive_avg_pool, "3"}};
}

}  // namespace shardplan::frontends
