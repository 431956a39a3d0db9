#include <algorithm>
#include <array>
#include <utility>

#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {

const GlobalAxis* KernelCall::position(std::string_view name) const {
  const auto found = std::find_if(
      positions.begin(), positions.end(), [&](const GlobalAxis& p) { return p.name == name; });
  return found == positions.end() ? nullptr : &*found;
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
                      &update_kernels,
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
