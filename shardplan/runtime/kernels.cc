#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {

const GlobalAxis* KernelCall::position(std::string_view name) const {
  const auto found = std::find_if(
      positions.begin(), positions.end(), [&](const GlobalAxis& p) { return p.name == name; });
  return found == positions.end() ? nullptr : &*found;
}

const ops::CutWindow* KernelCall::cut_along(int dim) const {
  const auto found = std::find_if(
      cut.begin(), cut.end(), [&](const ops::CutWindow& w) { return w.halo.dim == dim; });
  return found == cut.end() ? nullptr : &*found;
}

std::vector<KernelEntry> all_kernels() {
  std::vector<KernelEntry> all;
  for (auto* table : {&elementwise_kernels,
                      &shape_kernels,
                      &product_kernels,
                      &model_kernels,
                      &batch_norm_kernels,
                      &indexing_kernels,
                      &convolution_kernels,
                      &pooling_kernels,
                      &resample_kernels,
                      &function_kernels,
                      &update_kernels,
                      &grouped_kernels,
                      &call_kernels}) {
    const std::vector<KernelEntry> entries = table();
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

Kernel find_kernel(std::string_view op) {
  const std::vector<KernelEntry> all = all_kernels();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const KernelEntry& e) { return e.op == op; });
  return found == all.end() ? nullptr : found->kernel;
}

namespace {

/// What a maximum over nothing is.
at::Scalar lowest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kLong:
      return std::numeric_limits<std::int64_t>::lowest();
    case at::kInt:
      return std::numeric_limits<std::int32_t>::lowest();
    case at::kByte:
    case at::kBool:
      return 0;
    default:
      return -std::numeric_limits<double>::infinity();
  }
}

}  // namespace

std::vector<at::Tensor> results_of_nothing(std::string_view op,
                                           const KernelCall& call,
                                           const std::vector<sharding::ShardingSpec>& layouts) {
  const ops::OpDef& def = ops::get(op);
  std::vector<at::Tensor> results;
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    const ir::TensorType& type = call.results[r];
    const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(type.dtype));
    if (const int operand = ops::storage_operand(def, r); operand >= 0) {
      results.push_back(call.input(static_cast<std::size_t>(operand)).view(type.shape));
      continue;
    }
    const std::vector<int> partial = layouts[r].partial_axes();
    const bool maximum =
        !partial.empty() && layouts[r].reduction(partial.front()) == sharding::Reduction::kMax;
    results.push_back(
        at::full(type.shape, maximum ? lowest(scalar_type(type.dtype)) : at::Scalar(0), options));
  }
  return results;
}

at::ScalarType scalar_type(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kBool:
      return at::kBool;
    case ir::DType::kUInt8:
      return at::kByte;
    case ir::DType::kInt32:
      return at::kInt;
    case ir::DType::kInt64:
      return at::kLong;
    case ir::DType::kBFloat16:
      return at::kBFloat16;
    case ir::DType::kFloat16:
      return at::kHalf;
    case ir::DType::kFloat32:
      return at::kFloat;
    case ir::DType::kFloat64:
      return at::kDouble;
  }
  SHARDPLAN_CHECK(false) << "dtype out of range";
  return at::kFloat;
}

at::ScalarType arithmetic_type(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

at::TensorOptions options_of(const at::Tensor& like, ir::DType dtype) {
  return like.options().dtype(scalar_type(dtype));
}

}  // namespace shardplan::runtime
