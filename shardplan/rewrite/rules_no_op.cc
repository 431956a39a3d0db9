// Ops that do nothing, and chains of which one op does the work of two.

#include <algorithm>
#include <numeric>

#include "shardplan/rewrite/rewriter.h"

namespace shardplan::rewrite {

namespace {

using ir::Op;
using ir::Shape;
using ir::ValueId;
using Results = std::optional<std::vector<ValueId>>;

bool is_identity_permutation(const ir::IntList& permutation) {
  for (std::size_t d = 0; d < permutation.size(); ++d) {
    if (permutation[d] != static_cast<std::int64_t>(d)) {
      return false;
    }
  }
  return true;
}

bool does_nothing(const Rewriter& r, const Op& op) {
  const Shape& shape = r.shape(op.inputs[0]);
  const ir::Attributes& a = op.attributes;
  const std::string& name = op.name;
  if (name == "identity") {
    return true;
  }
  if (name == "reshape" || name == "broadcast") {
    return a.ints("shape") == shape;
  }
  if (name == "transpose") {
    return is_identity_permutation(a.ints("permutation"));
  }
  if (name == "cast") {
    return a.string("dtype") == ir::dtype_name(r.type(op.inputs[0]).dtype);
  }
  if (name == "slice") {
    return a.integer("start") == 0 && a.integer("step") == 1 &&
           a.integer("end") == shape[static_cast<std::size_t>(a.integer("dim"))];
  }
  if (name == "pad") {
    return a.integer("before") == 0 && a.integer("after") == 0;
  }
  return (name == "scale" && a.number("factor") == 1.0) ||
         (name == "add_scalar" && a.number("value") == 0.0) ||
         (name == "pow_scalar" && a.number("exponent") == 1.0) ||
         (name == "dropout" && a.number("p") == 0.0) ||
         (name == "concat" && op.inputs.size() == 1) ||
         (name == "sum" && a.ints("dims").empty() && ir::is_floating(r.type(op.inputs[0]).dtype)) ||
         (name == "max" && a.ints("dims").empty());
}

Results drop_no_op(Rewriter& r, const Op& op) {
  if (op.inputs.empty() || !does_nothing(r, op)) {
    return std::nullopt;
  }
  return std::vector{op.inputs[0]};
}

/// reshape(reshape(x)), and reshapes of what can be made in any shape.
Results merge_reshapes(Rewriter& r, const Op& op) {
  if (op.name != "reshape") {
    return std::nullopt;
  }
  const ir::IntList& shape = op.attributes.ints("shape");
  if (const Op* const inner = r.made_by(op.inputs[0], "reshape")) {
    return std::vector{r.reshape(inner->inputs[0], shape)};
  }
  if (const Op* const full = r.made_by(op.inputs[0], "full")) {
    ir::Attributes attributes = full->attributes;
    attributes.set("shape", shape);
    return std::vector{r.emit("full", {}, std::move(attributes))};
  }
  return std::nullopt;
}

Results merge_transposes(Rewriter& r, const Op& op) {
  const Op* const inner = op.name == "transpose" ? r.made_by(op.inputs[0], "transpose") : nullptr;
  if (inner == nullptr) {
    return std::nullopt;
  }
  const ir::IntList first = inner->attributes.ints("permutation");
  ir::IntList both = op.attributes.ints("permutation");
  for (std::int64_t& dim : both) {
    dim = first[static_cast<std::size_t>(dim)];
  }
  return std::vector{r.transpose(inner->inputs[0], both)};
}

/// A transpose that moves only dimensions of size 1 is a reshape, which copies nothing.
Results transpose_to_reshape(Rewriter& r, const Op& op) {
  if (op.name != "transpose") {
    return std::nullopt;
  }
  const Shape shape = r.shape(op.inputs[0]);
  Shape result;
  std::int64_t last = -1;
  for (const std::int64_t dim : op.attributes.ints("permutation")) {
    result.push_back(shape[static_cast<std::size_t>(dim)]);
    if (result.back() != 1) {
      if (dim < last) {
        return std::nullopt;
      }
      last = dim;
    }
  }
  return std::vector{r.reshape(op.inputs[0], result)};
}

Results merge_scales(Rewriter& r, const Op& op) {
  const Op* const inner = op.name == "scale" ? r.made_by(op.inputs[0], "scale") : nullptr;
  if (inner == nullptr || !r.read_once(op.inputs[0])) {
    return std::nullopt;
  }
  const double factor = inner->attributes.number("factor") * op.attributes.number("factor");
  return std::vector{r.emit("scale", {inner->inputs[0]}, {{"factor", factor}})};
}

}  // namespace

std::vector<Rule> no_op_rules() {
  return {{"drop_no_op", "an op that does nothing goes", drop_no_op},
          {"merge_reshapes", "a chain of reshapes is one", merge_reshapes},
          {"merge_transposes", "a chain of transposes is one", merge_transposes},
          {"transpose_to_reshape",
           "a transpose that moves only dimensions of size 1 is a reshape",
           transpose_to_reshape},
          {"merge_scales", "a chain of scales is one", merge_scales}};
}

}  // namespace shardplan::rewrite
