#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"

namespace shardplan::runtime {

/// One op at one size, to be timed.
struct KernelSample {
  std::string op{};
  ir::Attributes attributes{};
  std::vector<ir::TensorType> inputs{};
};

/// What models spend their time in beside matrix products, one sample an op: tensors of about
/// `elements` floats (a whole number of rows of 512).
[[nodiscard]] std::vector<KernelSample> kernel_samples(std::int64_t elements);

/// The size by which the cost model reads a kernel's curve (cluster::Device::kernel_curves).
[[nodiscard]] double size_of(const KernelSample& sample);

/// Sets of operands of so many bytes to go through in turn, so that each comes from memory and not
/// from a cache, as the tensors of a training step do.
[[nodiscard]] std::int64_t cold_sets(Bytes bytes);

/// Fresh operands, several sets of them, and a call of the kernel on the next set as the executor
/// makes it.
[[nodiscard]] std::function<void()> work_of(const KernelSample& sample);

}  // namespace shardplan::runtime
