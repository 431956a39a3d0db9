#pragma once

#include <vector>

#include "shardplan/ops/op.h"

namespace shardplan::ops {

/// One table a family file; registry.cc joins them. A new op in an existing family needs no line
/// here.
[[nodiscard]] std::vector<OpDef> unary_ops();          // unary.cc: one operand, elementwise
[[nodiscard]] std::vector<OpDef> binary_ops();         // binary.cc: broadcasting, elementwise
[[nodiscard]] std::vector<OpDef> shape_ops();          // shape.cc: reshape, transpose, slice, ...
[[nodiscard]] std::vector<OpDef> reduction_ops();      // reduction.cc
[[nodiscard]] std::vector<OpDef> einsum_ops();         // einsum.cc
[[nodiscard]] std::vector<OpDef> normalization_ops();  // normalization.cc
[[nodiscard]] std::vector<OpDef> batch_norm_ops();     // batch_norm.cc
[[nodiscard]] std::vector<OpDef> attention_ops();      // attention.cc
[[nodiscard]] std::vector<OpDef> embedding_ops();      // embedding.cc
[[nodiscard]] std::vector<OpDef> indexing_ops();       // indexing.cc
[[nodiscard]] std::vector<OpDef> convolution_ops();    // convolution.cc
[[nodiscard]] std::vector<OpDef> pooling_ops();        // pooling.cc
[[nodiscard]] std::vector<OpDef> resample_ops();       // resample.cc
[[nodiscard]] std::vector<OpDef> function_ops();       // functions.cc
[[nodiscard]] std::vector<OpDef> selection_ops();      // selection.cc
[[nodiscard]] std::vector<OpDef> loss_ops();           // loss.cc
[[nodiscard]] std::vector<OpDef> random_ops();         // random.cc: dropout
[[nodiscard]] std::vector<OpDef> optimizer_ops();      // optimizer.cc
[[nodiscard]] std::vector<OpDef> grouped_ops();        // grouped.cc: products of runs of rows
[[nodiscard]] std::vector<OpDef> call_ops();           // call.cc: operators called by name
[[nodiscard]] std::vector<OpDef> transfer_ops();       // transfer.cc: between pipeline stages

}  // namespace shardplan::ops
