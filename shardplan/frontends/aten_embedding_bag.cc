// Sums and means of rows of a table, in bags.

#include <algorithm>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::TensorType;
using ir::ValueId;

/// The size of every bag when all offsets are known and equally far apart.
std::optional<std::int64_t> equal_bags(AtenCall& c, std::int64_t indices, std::int64_t bags) {
  const ConstTensor* const offsets = c.constant("offsets");
  const std::optional<std::vector<Number>> starts =
      offsets == nullptr ? std::nullopt : offsets->compact_elements();
  if (!starts.has_value() || bags < 1 || indices % bags != 0) {
    return std::nullopt;
  }
  const std::int64_t size = indices / bags;
  for (std::size_t i = 0; i < starts->size(); ++i) {
    if ((*starts)[i].i != static_cast<std::int64_t>(i) * size) {
      return std::nullopt;
    }
  }
  return size > 0 && starts->size() == static_cast<std::size_t>(offsets->shape()[0])
             ? std::optional(size)
             : std::nullopt;
}

/// The bag of each index: how many bags have begun before it. Indices before the first bag, which
/// PyTorch does not allow, go to it.
ValueId bag_of_each(AtenCall& c, std::int64_t indices, std::int64_t bags) {
  Builder& b = c.builder();
  const ValueId starts = sliced(b, c.cast(c.tensor("offsets"), DType::kInt64), 0, 0, bags);
  const ValueId ones =
      c.materialize(ConstTensor::full({DType::kInt64, {bags}}, Number::of(std::int64_t{1})));
  const ValueId begun = b.emit(
      "scatter_sum", {ones, starts}, {{"dim", std::int64_t{0}}, {"shape", IntList{indices + 1}}});
  const ValueId count =
      b.emit("cumsum", {sliced(b, begun, 0, 0, indices)}, {{"dim", std::int64_t{0}}});
  const ValueId bag = b.emit("add_scalar", {count}, {{"value", -1.0}});
  return b.emit("maximum_scalar", {bag}, {{"value", 0.0}});
}

/// Sums over the bags of x [indices, d].
ValueId bag_sums(AtenCall& c, ValueId x, ValueId bag, std::int64_t bags, std::int64_t size) {
  Builder& b = c.builder();
  if (!bag.valid()) {
    const ValueId apart = c.reshape(x, {bags, size, b.type(x).shape[1]});
    return b.emit("sum", {apart}, {{"dims", IntList{1}}, {"keepdim", false}});
  }
  return b.emit("embedding_backward", {x, bag}, {{"rows", bags}});
}

void map_embedding_bag(AtenCall& c) {
  Builder& b = c.builder();
  const std::int64_t mode = c.integer("mode", 0);
  std::int64_t padding = c.integer("padding_idx", -1);
  if (mode > 1 || c.flag("scale_grad_by_freq", false) || c.flag("sparse", false)) {
    c.unsupported("is supported for sums and means with dense gradients only");
    return;
  }
  const ValueId weight = c.tensor("weight");
  const ValueId ids = c.tensor("indices");
  const TensorType result = c.result_type();
  if (!c.ok() || b.type(ids).rank() != 1 || result.rank() != 2) {
    c.invalid("has indices of another rank than expected");
    return;
  }
  if (padding < 0 && c.node().target == "aten.embedding_bag.padding_idx" &&
      c.given("padding_idx")) {
    padding += b.type(weight).shape[0];  // counted from the last row
  }
  const std::int64_t indices = b.type(ids).numel();
  const std::int64_t bags = result.shape[0];
  Attributes attributes;
  if (padding >= 0) {
    attributes.set("padding_idx", padding);
  }
  ValueId rows = b.emit("embedding", {weight, ids}, attributes);
  ValueId counted = c.materialize(ConstTensor::full({result.dtype, {indices, 1}}, Number::of(1.0)));
  if (padding >= 0) {
    const ValueId kept = b.emit("ne_scalar", {ids}, {{"value", static_cast<double>(padding)}});
    counted = c.reshape(c.cast(kept, result.dtype), {indices, 1});
    rows = b.emit("mul", {rows, counted});
  }
  if (c.given("per_sample_weights")) {
    const ValueId weights = c.tensor_as("per_sample_weights", result.dtype);
    rows = b.emit("mul", {rows, c.reshape(weights, {indices, 1})});
  }
  const std::optional<std::int64_t> size = equal_bags(c, indices, bags);
  const ValueId bag = size.has_value() ? ValueId{} : bag_of_each(c, indices, bags);
  ValueId y = bag_sums(c, rows, bag, bags, size.value_or(1));
  if (mode == 1) {
    const ValueId count = bag_sums(c, counted, bag, bags, size.value_or(1));
    y = b.emit("div", {y, b.emit("maximum_scalar", {count}, {{"value", 1.0}})});
  }
  c.result(y);
}

}  // namespace

std::vector<AtenOp> aten_embedding_bag() {
  return {{"aten.embedding_bag.default", map_embedding_bag},
          {"aten.embedding_bag.padding_idx", map_embedding_bag},
          {"aten._embedding_bag.default", map_embedding_bag}};
}

}  // namespace shardplan::frontends
