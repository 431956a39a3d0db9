#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/ops/halo.h"
#include "shardplan/sharding/spec.h"

namespace shardplan::runtime {

/// Where a shard lies along a positional axis of the op (program.h: Position), for this rank.
struct GlobalAxis {
  std::string name{};
  int result_dim = -1;  ///< dimension of result 0 that the axis is, -1 when it is none
  std::int64_t start = 0;
  std::int64_t local_size = 0;
  std::int64_t global_size = 0;

  [[nodiscard]] bool whole() const { return local_size == global_size; }
};

/// Which draw of the dropout masks this is.
struct RandomState {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t microbatch = 0;
};

/// One execution of one op on this rank's shards. All tensors are contiguous, in local shapes; none
/// is empty because an uneven cut left nothing for this rank.
struct KernelCall {
  std::vector<at::Tensor> inputs{};
  const ir::Attributes& attributes;
  const std::vector<ir::TensorType>& results;  ///< types of this rank's parts, to be produced
  std::vector<GlobalAxis> positions{};
  RandomState random{};
  /// Along dimensions that are cut and that windows slide over: operands have what the windows
  /// need, so the kernel pads nothing there.
  std::vector<ops::CutWindow> cut{};

  [[nodiscard]] const at::Tensor& input(std::size_t i) const { return inputs[i]; }
  /// The positional axis with this name, or null when the op has none (so it is not sharded).
  [[nodiscard]] const GlobalAxis* position(std::string_view name) const;
  /// The window along this dimension, or null when it is not cut.
  [[nodiscard]] const ops::CutWindow* cut_along(int dim) const;
};

/// Returns the results, contiguous, with the types of `call.results`. Ops with `view` return their
/// input; results with `in_place` are the overwritten input tensor itself; everything else is fresh
/// storage. Throws what ATen throws (c10::Error) when data is bad, for example an id out of range.
using Kernel = std::vector<at::Tensor> (*)(const KernelCall& call);

/// One line of a table of kernels.
struct KernelEntry {
  std::string_view op;
  Kernel kernel;
};

/// The results of an op where this rank's part has no elements along an axis that is cut, in the
/// place of a call of the kernel: empty parts, and what adds nothing to results that are partial
/// sums or maxima (`layouts`: of the results).
[[nodiscard]] std::vector<at::Tensor> results_of_nothing(
    std::string_view op,
    const KernelCall& call,
    const std::vector<sharding::ShardingSpec>& layouts);

/// The kernel of an op; null when this runtime has none.
[[nodiscard]] Kernel find_kernel(std::string_view op);
/// Whether this process can run the op: the error of a `call` says that PyTorch's dispatcher does
/// not know its operator.
[[nodiscard]] Status check_runnable(const ir::Op& op);
/// All entries, in no particular order. One table a file; kernels.cc joins them.
[[nodiscard]] std::vector<KernelEntry> all_kernels();
[[nodiscard]] std::vector<KernelEntry> elementwise_kernels();
[[nodiscard]] std::vector<KernelEntry> shape_kernels();
[[nodiscard]] std::vector<KernelEntry> product_kernels();  ///< einsum, attention
[[nodiscard]] std::vector<KernelEntry> model_kernels();    ///< norms, softmax, lookups, losses
[[nodiscard]] std::vector<KernelEntry> batch_norm_kernels();
[[nodiscard]] std::vector<KernelEntry> indexing_kernels();
[[nodiscard]] std::vector<KernelEntry> convolution_kernels();
[[nodiscard]] std::vector<KernelEntry> pooling_kernels();
[[nodiscard]] std::vector<KernelEntry> resample_kernels();
[[nodiscard]] std::vector<KernelEntry> function_kernels();
[[nodiscard]] std::vector<KernelEntry> update_kernels();   ///< dropout, optimizers, accumulation
[[nodiscard]] std::vector<KernelEntry> grouped_kernels();  ///< products of runs of rows
[[nodiscard]] std::vector<KernelEntry> call_kernels();     ///< operators called by name

[[nodiscard]] at::ScalarType scalar_type(ir::DType dtype);
/// A type that arithmetic on `dtype` is done in: float for narrower floating types, else itself.
[[nodiscard]] at::ScalarType arithmetic_type(at::ScalarType dtype);
/// Options of a fresh tensor like `like` with another element type.
[[nodiscard]] at::TensorOptions options_of(const at::Tensor& like, ir::DType dtype);

}  // namespace shardplan::runtime
