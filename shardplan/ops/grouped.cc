// Products of runs of rows, each with a matrix of its own: the experts of a mixture, once the rows
// are sorted by expert. Run i are the rows from ends[i - 1] (0 for the first) to ends[i]; rows
// after the last run give zeros.

#include <algorithm>
#include <string>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/product_workspace.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

constexpr const char* kTransposed = "transposed";

/// x [n, k], w [e, k, m] (transposed: [e, m, k]), ends [e] → [n, m].
Result<Types> infer_grouped_matmul(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3));
  SHARDPLAN_RETURN_IF_ERROR(
      check_attributes(attributes, {{kTransposed, AttributeKind::kFlag, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, 2));
  if (inputs[0].rank() != 2 || inputs[1].rank() != 3) {
    return invalid_input("the operands are " + list_types(inputs) +
                         ", rows [n, k], matrices [e, k, m] and ends [e] expected");
  }
  const bool transposed = attributes.flag_or(kTransposed, false);
  const ir::Shape& matrices = inputs[1].shape;
  SHARDPLAN_RETURN_IF_ERROR(
      check_shape(inputs, 0, {inputs[0].shape[0], matrices[transposed ? 2 : 1]}, "the rows"));
  SHARDPLAN_RETURN_IF_ERROR(check_shape(inputs, 2, {matrices[0]}, "the ends"));
  return Types{{inputs[0].dtype, {inputs[0].shape[0], matrices[transposed ? 1 : 2]}}};
}

/// A shard of the experts gives zeros for the rows of others: a partial sum.
AxisMap axes_grouped_matmul(const OpView& op) {
  const bool transposed = op.attributes.flag_or(kTransposed, false);
  const std::string text = transposed ? "* k, ?e m k, * -> * m" : "* k, ?e k m, * -> * m";
  return make_axis_map(text, op.inputs, op.results, {{{0}, {0}}, {{1}, {0}}});
}

Flops flops_grouped_matmul(const OpView& op) {
  return 2.0 * static_cast<Flops>(op.inputs[0].numel()) *
         static_cast<Flops>(op.results[0].shape[1]);
}

/// The ends as the kernel reads them, and a product of the longest run.
Bytes workspace_of_runs(const OpView& op, MatrixProduct product) {
  const Bytes ends = op.inputs[2].dtype == ir::DType::kInt64
                         ? 0
                         : op.inputs[2].numel() * ir::element_bytes(ir::DType::kInt64);
  return ends + product_workspace(product, op.results[0].dtype);
}

/// Of the longest run: no router deals rows out evenly.
std::int64_t rows_of_run(const OpView& op) {
  constexpr std::int64_t kUneven = 2;
  const std::int64_t rows = op.inputs[0].shape[0];
  const std::int64_t runs = std::max<std::int64_t>(1, op.inputs[2].numel());
  return std::min(rows, kUneven * ((rows + runs - 1) / runs));
}

Bytes workspace_grouped_matmul(const OpView& op) {
  return workspace_of_runs(
      op,
      {.rows = rows_of_run(op), .inner = op.inputs[0].shape[1], .columns = op.results[0].shape[1]});
}

void gradient_grouped_matmul(GradientBuilder& b) {
  const bool transposed = b.attributes().flag_or(kTransposed, false);
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(
        0, b.emit("grouped_matmul", {g, b.input(1), b.input(2)}, {{kTransposed, !transposed}}));
  }
  if (b.needed(1)) {
    const ir::ValueId left = transposed ? g : b.input(0);
    const ir::ValueId right = transposed ? b.input(0) : g;
    b.set_input_gradient(1, b.emit("grouped_outer", {left, right, b.input(2)}));
  }
}

/// a [n, k], b [n, m], ends [e] → [e, k, m]: the product of each run of a, transposed, with b's.
Result<Types> infer_grouped_outer(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 3));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {}));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_integer(inputs, 2));
  if (inputs[0].rank() != 2 || inputs[1].rank() != 2 || inputs[2].rank() != 1 ||
      inputs[0].shape[0] != inputs[1].shape[0]) {
    return invalid_input("the operands are " + list_types(inputs) +
                         ", rows [n, k], rows [n, m] and ends [e] expected");
  }
  ir::TensorType result{inputs[0].dtype,
                        {inputs[2].shape[0], inputs[0].shape[1], inputs[1].shape[1]}};
  SHARDPLAN_RETURN_IF_ERROR(check_result(result));
  return Types{std::move(result)};
}

AxisMap axes_grouped_outer(const OpView& op) {
  return make_axis_map("* k, * m, * -> @e k m", op.inputs, op.results, {{{0}, {0}}, {{1}, {0}}});
}

Flops flops_grouped_outer(const OpView& op) {
  return 2.0 * static_cast<Flops>(op.inputs[0].numel()) * static_cast<Flops>(op.inputs[1].shape[1]);
}

Bytes workspace_grouped_outer(const OpView& op) {
  return workspace_of_runs(op,
                           {.rows = op.inputs[0].shape[1],
                            .inner = rows_of_run(op),
                            .columns = op.inputs[1].shape[1],
                            .turned = true});
}

}  // namespace

std::vector<OpDef> grouped_ops() {
  return {
      {.name = "grouped_matmul",
       .summary = "runs of rows, each times a matrix of its own",
       .infer = infer_grouped_matmul,
       .axes = axes_grouped_matmul,
       .flops = flops_grouped_matmul,
       .workspace = workspace_grouped_matmul,
       .gradient = gradient_grouped_matmul,
       .matmul = true},
      {.name = "grouped_outer",
       .summary = "products of runs of rows with each other: gradient of the matrices",
       .infer = infer_grouped_outer,
       .axes = axes_grouped_outer,
       .flops = flops_grouped_outer,
       .workspace = workspace_grouped_outer,
       .matmul = true},
  };
}

}  // namespace shardplan::ops
