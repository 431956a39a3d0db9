// Products of runs of rows, each with a matrix of its own; this rank may hold a part of the
// matrices.

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Rows [begin, end) of one run, and the matrix of this rank's part that they go with.
struct Run {
  std::int64_t matrix;
  std::int64_t begin;
  std::int64_t end;
};

/// The runs that are not empty and whose matrix is in this rank's part.
std::vector<Run> local_runs(const KernelCall& call, std::int64_t matrices, std::int64_t rows) {
  const at::Tensor ends = call.input(2).to(at::kLong);
  const auto* const end = ends.const_data_ptr<std::int64_t>();
  const GlobalAxis* const axis = call.position("e");
  const std::int64_t start = axis == nullptr ? 0 : axis->start;
  std::vector<Run> runs;
  for (std::int64_t i = 0; i < matrices; ++i) {
    const std::int64_t global = start + i;
    const std::int64_t first = global == 0 ? 0 : end[global - 1];
    const Run run{i, std::clamp<std::int64_t>(first, 0, rows), std::min(end[global], rows)};
    if (run.begin < run.end) {
      runs.push_back(run);
    }
  }
  return runs;
}

Tensors grouped_matmul(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  const at::Tensor& w = call.input(1);
  const at::Tensor result = at::zeros(call.results[0].shape, x.options());
  const bool transposed = call.attributes.flag_or("transposed", false);
  for (const Run& run : local_runs(call, w.size(0), x.size(0))) {
    const at::Tensor matrix = w.select(0, run.matrix);
    at::Tensor rows = result.slice(0, run.begin, run.end);
    at::mm_out(rows, x.slice(0, run.begin, run.end), transposed ? matrix.t() : matrix);
  }
  return {result};
}

Tensors grouped_outer(const KernelCall& call) {
  const at::Tensor& a = call.input(0);
  const at::Tensor& b = call.input(1);
  const at::Tensor result = at::zeros(call.results[0].shape, a.options());
  for (const Run& run : local_runs(call, result.size(0), a.size(0))) {
    at::Tensor matrix = result.select(0, run.matrix);
    at::mm_out(matrix, a.slice(0, run.begin, run.end).t(), b.slice(0, run.begin, run.end));
  }
  return {result};
}

}  // namespace

std::vector<KernelEntry> grouped_kernels() {
  return {{"grouped_matmul", grouped_matmul}, {"grouped_outer", grouped_outer}};
}

}  // namespace shardplan::runtime
