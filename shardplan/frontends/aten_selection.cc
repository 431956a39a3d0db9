// The largest and smallest elements, sorting, and questions about all elements.

#include <algorithm>
#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/materialize.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::DType;
using ir::IntList;
using ir::TensorType;
using ir::ValueId;

/// amax, amin, max and min of all elements: elements that tie share the gradient.
void map_extreme(AtenCall& c) {
  Builder& b = c.builder();
  const TensorType type = c.type_of("self");
  const bool smallest = c.ours() == "min";
  ValueId x = c.tensor("self");
  const IntList dims = c.dims("dim", type.rank());
  if (!c.ok() || type.dtype == DType::kBool) {
    c.unsupported("is not supported on bool tensors");
    return;
  }
  x = smallest ? b.emit("neg", {x}) : x;
  const ValueId y =
      type.rank() == 0
          ? x
          : b.emit("max", {x}, {{"dims", dims}, {"keepdim", c.flag("keepdim", false)}});
  c.result(smallest ? b.emit("neg", {y}) : y);
}

/// max and min along one dimension, with places; argmax and argmin, of one dimension or of all.
void map_extreme_place(AtenCall& c) {
  Builder& b = c.builder();
  TensorType type = c.type_of("self");
  const bool smallest = c.ours().ends_with("min");
  const bool place_only = c.ours().starts_with("arg");
  ValueId x = c.tensor("self");
  if (place_only && !c.given("dim")) {
    type.shape = {type.numel()};
    x = c.reshape(x, type.shape);
  }
  if (type.rank() == 0) {
    type.shape = {1};
    x = c.reshape(x, type.shape);
  }
  const auto dim = static_cast<std::int64_t>(c.dim("dim", 0, type.rank()));
  const std::vector<ValueId> both =
      b.emit_all("max_index", {x}, {{"dim", dim}, {"smallest", smallest}});
  for (std::size_t i = 0; i < c.result_count() && c.ok(); ++i) {
    c.result(c.reshape(both[place_only ? 1 : i], c.result_type(i).shape), i);
  }
}

void map_topk(AtenCall& c) {
  const auto dim = static_cast<std::int64_t>(c.dim("dim", -1, c.type_of("self").rank()));
  const std::vector<ValueId> both = c.builder().emit_all(
      "topk",
      {c.tensor("self")},
      {{"dim", dim}, {"k", c.integer("k", 1)}, {"smallest", !c.flag("largest", true)}});
  for (std::size_t i = 0; i < c.result_count() && c.ok(); ++i) {
    c.result(both[i], i);
  }
}

void map_sort(AtenCall& c) {
  const bool places_only = c.ours() == "argsort";
  const auto dim = static_cast<std::int64_t>(c.dim("dim", -1, c.type_of("self").rank()));
  const std::vector<ValueId> both = c.builder().emit_all(
      "sort", {c.tensor("self")}, {{"dim", dim}, {"descending", c.flag("descending", false)}});
  for (std::size_t i = 0; i < c.result_count() && c.ok(); ++i) {
    c.result(both[places_only ? 1 : i], i);
  }
}

/// any: some element is not zero; all: none is zero.
void map_any_all(AtenCall& c) {
  Builder& b = c.builder();
  const TensorType type = c.type_of("self");
  const bool any = c.ours() == "any";
  ValueId x = c.cast(c.tensor("self"), DType::kBool);
  if (!any) {
    x = b.emit("logical_not", {x});
  }
  IntList dims = c.dims("dim", type.rank());
  if (c.ok() && type.rank() > 0) {
    x = b.emit("sum", {x}, {{"dims", dims}, {"keepdim", c.flag("keepdim", false)}});
    x = b.emit("gt_scalar", {x}, {{"value", 0.0}});
  }
  c.result(any ? x : b.emit("logical_not", {x}));
}

}  // namespace

std::vector<AtenOp> aten_selection() {
  return {{"aten.amax.default", map_extreme, "max"},
          {"aten.amin.default", map_extreme, "min"},
          {"aten.max.default", map_extreme, "max"},
          {"aten.min.default", map_extreme, "min"},
          {"aten.max.dim", map_extreme_place, "max"},
          {"aten.min.dim", map_extreme_place, "min"},
          {"aten.argmax.default", map_extreme_place, "argmax"},
          {"aten.argmin.default", map_extreme_place, "argmin"},
          {"aten.topk.default", map_topk},
          {"aten.sort.default", map_sort, "sort"},
          {"aten.sort.stable", map_sort, "sort"},
          {"aten.argsort.default", map_sort, "argsort"},
          {"aten.argsort.stable", map_sort, "argsort"},
          {"aten.any.default", map_any_all, "any"},
          {"aten.any.dim", map_any_all, "any"},
          {"aten.any.dims", map_any_all, "any"},
          {"aten.all.default", map_any_all, "all"},
          {"aten.all.dim", map_any_all, "all"},
          {"aten.all.dims", map_any_all, "all"}};
}

}  // namespace shardplan::frontends
