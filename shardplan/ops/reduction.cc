// Reductions over dimensions, and running sums.

#include <algorithm>
#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

bool reduces(const ir::IntList& dims, std::size_t dim) {
  return std::binary_search(dims.begin(), dims.end(), static_cast<std::int64_t>(dim));
}

ir::Shape reduced_shape(const ir::Shape& shape, const ir::IntList& dims, bool keepdim) {
  ir::Shape out;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!reduces(dims, d)) {
      out.push_back(shape[d]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

Result<Types> infer_reduction(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"dims", AttributeKind::kInts}, {"keepdim", AttributeKind::kFlag, false}}));
  const ir::IntList& dims = attributes.ints("dims");
  SHARDPLAN_RETURN_IF_ERROR(check_dims(inputs, 0, dims));
  const bool keepdim = attributes.flag_or("keepdim", false);
  return Types{ir::TensorType{inputs[0].dtype, reduced_shape(inputs[0].shape, dims, keepdim)}};
}

/// Booleans and bytes are counted in i64, as PyTorch does.
Result<Types> infer_sum(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_ASSIGN_OR_RETURN(Types types, infer_reduction(inputs, attributes));
  if (!ir::is_floating(inputs[0].dtype)) {
    types[0].dtype = ir::DType::kInt64;
  }
  return types;
}

AxisMap axes_reduction(const OpView& op, std::string_view marker) {
  const ir::IntList& dims = op.attributes.ints("dims");
  const bool keepdim = op.attributes.flag_or("keepdim", false);
  std::string from;
  std::string to;
  for (std::size_t d = 0; d < op.inputs[0].shape.size(); ++d) {
    const std::string name = "d" + std::to_string(d);
    from += " ";
    if (reduces(dims, d)) {
      from += marker;
      to += keepdim ? " *" : "";
    } else {
      to += " " + name;
    }
    from += name;
  }
  return make_axis_map(from + " ->" + to, op.inputs, op.results);
}

/// Reduced axes are in no result, hence partial sums.
AxisMap axes_sum(const OpView& op) {
  AxisMap map = axes_reduction(op, "");
  map.partials.push_back(PartialRule{{0}, {0}});
  return map;
}

/// Dimensions that are summed over, one after another, count as one run; those of one element count
/// for nothing.
int runs_of_sums(const OpView& op) {
  const ir::IntList& dims = op.attributes.ints("dims");
  int runs = 0;
  bool in_run = false;
  for (std::size_t d = 0; d < op.inputs[0].shape.size(); ++d) {
    if (op.inputs[0].shape[d] == 1) {
      continue;
    }
    const bool summed =
        std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) != dims.end();
    runs += summed && !in_run ? 1 : 0;
    in_run = summed;
  }
  return runs;
}

/// A sum in another type than the operand's converts the operand first; so does one of bf16 over
/// dimensions on both sides of one that stays.
Bytes workspace_sum(const OpView& op) {
  const ir::TensorType& x = op.inputs[0];
  const ir::DType made = op.results[0].dtype;
  if (x.dtype != made) {
    return x.numel() * ir::element_bytes(made);
  }
  constexpr Bytes kWide = 4;
  const bool narrow = ir::is_floating(made) && ir::element_bytes(made) < kWide;
  return narrow && runs_of_sums(op) > 1 ? kWide * (x.numel() + op.results[0].numel()) : 0;
}

AxisMap axes_max(const OpView& op) {
  return axes_reduction(op, "^");
}

Flops operand_elements(const OpView& op) {
  return static_cast<Flops>(op.inputs[0].numel());
}

void gradient_sum(GradientBuilder& b) {
  const ir::Shape shape = b.type(b.input(0)).shape;
  const ir::Shape kept = reduced_shape(shape, b.attributes().ints("dims"), true);
  ir::ValueId g = b.output_gradient(0);
  if (b.type(g).shape != kept) {
    g = b.emit("reshape", {g}, {{"shape", kept}});
  }
  if (kept != shape) {
    g = b.emit("broadcast", {g}, {{"shape", shape}});
  }
  b.set_input_gradient(0, g);
}

/// Elements that equal the maximum share its gradient.
void gradient_max(GradientBuilder& b) {
  const ir::Shape shape = b.type(b.input(0)).shape;
  const ir::IntList& dims = b.attributes().ints("dims");
  const ir::Shape kept = reduced_shape(shape, dims, true);
  const auto aligned = [&](ir::ValueId x) {
    return b.type(x).shape == kept ? x : b.emit("reshape", {x}, {{"shape", kept}});
  };
  const ir::ValueId g = b.output_gradient(0);
  const ir::ValueId wins = b.emit("eq", {b.input(0), aligned(b.output(0))});
  const ir::ValueId share =
      b.emit("cast", {wins}, {{"dtype", std::string(ir::dtype_name(b.type(g).dtype))}});
  const ir::ValueId count = b.emit("sum", {share}, {{"dims", dims}, {"keepdim", true}});
  b.set_input_gradient(0, b.emit("mul", {share, b.emit("div", {aligned(g), count})}));
}

Result<Types> infer_cumsum(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"dim", AttributeKind::kInteger}}));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, attributes.integer("dim")));
  Types types{inputs[0]};
  if (!ir::is_floating(inputs[0].dtype)) {
    types[0].dtype = ir::DType::kInt64;
  }
  return types;
}

AxisMap axes_cumsum(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  return make_axis_map(names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
}

/// dx_i = Σ_{j >= i} g_j: the total minus the running sum before i.
void gradient_cumsum(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const std::int64_t dim = b.attributes().integer("dim");
  const ir::ValueId total = b.emit("sum", {g}, {{"dims", ir::IntList{dim}}, {"keepdim", true}});
  const ir::ValueId before = b.emit("sub", {b.emit("cumsum", {g}, {{"dim", dim}}), g});
  b.set_input_gradient(0, b.emit("sub", {total, before}));
}

/// Σ x² in f32 or f64, whatever the operand: the square of a sum is not the sum of squares, so no
/// partial sum passes.
Result<Types> infer_sum_squares(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  return Types{ir::TensorType{accumulation_dtype(inputs[0].dtype), {}}};
}

AxisMap axes_sum_squares(const OpView& op) {
  return make_axis_map(axis_names("d", op.inputs[0].shape.size()) + " ->", op.inputs, op.results);
}

Flops flops_sum_squares(const OpView& op) {
  return 2 * operand_elements(op);
}

}  // namespace

std::vector<OpDef> reduction_ops() {
  return {
      {.name = "sum",
       .summary = "sum over dimensions",
       .infer = infer_sum,
       .axes = axes_sum,
       .flops = operand_elements,
       .workspace = workspace_sum,
       .gradient = gradient_sum},
      {.name = "max",
       .summary = "maximum over dimensions",
       .infer = infer_reduction,
       .axes = axes_max,
       .flops = operand_elements,
       .gradient = gradient_max},
      {.name = "cumsum",
       .summary = "running sum along one dimension",
       .infer = infer_cumsum,
       .axes = axes_cumsum,
       .flops = operand_elements,
       .gradient = gradient_cumsum},
      {.name = "sum_squares",
       .summary = "sum of the squares of all elements",
       .infer = infer_sum_squares,
       .axes = axes_sum_squares,
       .flops = flops_sum_squares},
  };
}

}  // namespace shardplan::ops
