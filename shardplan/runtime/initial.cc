#include "shardplan/runtime/initial.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/random.h"

namespace shardplan::runtime {
namespace {

/// The tensor that is this rank's part of [0, 1, 2, ...] in the shape of `type` would be too large
/// to make; calls body(local offset, global index) for every element of the part instead.
template <class Body>
void for_each_global_index(const ir::Shape& shape,
                           const sharding::ShardingSpec& spec,
                           const cluster::DeviceMesh& mesh,
                           std::int64_t rank,
                           const Body& body) {
  const std::vector<sharding::Range> part = sharding::part(spec, shape, mesh, rank);
  ir::Shape stride(shape.size(), 1);
  std::int64_t numel = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    stride[d] = d + 1 < shape.size() ? stride[d + 1] * shape[d + 1] : 1;
    numel *= part[d].size;
  }
  for (std::int64_t offset = 0; offset < numel; ++offset) {
    std::int64_t rest = offset;
    std::int64_t global = 0;
    for (std::size_t d = shape.size(); d-- > 0;) {
      global += (part[d].start + rest % part[d].size) * stride[d];
      rest /= part[d].size;
    }
    body(offset, static_cast<std::uint64_t>(global));
  }
}

at::Tensor draw_parameter(const ir::Value& value,
                          const sharding::ShardingSpec& spec,
                          const cluster::DeviceMesh& mesh,
                          std::int64_t rank,
                          std::uint64_t seed) {
  const ir::Shape local = sharding::part_shape(spec, value.type.shape, mesh, rank);
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(value.type.dtype));
  const ir::Shape& shape = value.module_shape.empty() ? value.type.shape : value.module_shape;
  if (value.kind != ir::ValueKind::kParameter || value.name.ends_with("bias")) {
    return at::zeros(local, options);
  }
  if (shape.size() < 2 || !ir::is_floating(value.type.dtype)) {
    return at::ones(local, options);
  }
  constexpr double kDeviation = 0.02;
  const at::Tensor drawn = at::empty(local, at::TensorOptions().dtype(at::kFloat));
  auto* const data = drawn.mutable_data_ptr<float>();
  RandomStream stream(random_key(seed, value.name), 0);
  for_each_global_index(
      value.type.shape, spec, mesh, rank, [&](std::int64_t offset, std::uint64_t global) {
        data[offset] = static_cast<float>(kDeviation * stream.normal(global));
      });
  return drawn.to(options.dtype());
}

at::Tensor from_data(const ir::Value& value) {
  // The graph owns the bytes and nothing writes to this view of them.
  auto* const bytes = const_cast<std::byte*>(value.data->data());  // NOLINT
  return at::from_blob(
      bytes, value.type.shape, at::TensorOptions().dtype(scalar_type(value.type.dtype)));
}

bool moves_numbers_unchanged(std::string_view op) {
  static const std::set<std::string_view> moves{
      "identity", "reshape", "transpose", "broadcast", "slice", "pad", "cast", "concat", "where"};
  return moves.contains(op);
}

/// Smallest bound that op's own lookups put on its inputs.
void bound_by_lookup(const ir::Graph& step, const ir::Op& op, std::vector<std::int64_t>& bounds) {
  const auto put = [&](std::size_t input, std::int64_t bound) {
    std::int64_t& now = bounds[op.inputs[input].index()];
    now = now == 0 ? bound : std::min(now, bound);
  };
  if (op.name == "embedding") {
    put(1, step.type(op.inputs[0]).shape[0]);
  } else if (op.name == "label_score") {
    put(1, step.type(op.inputs[0]).shape.back());
  } else if (op.name == "gather" || op.name == "scatter_sum") {
    const ir::ValueId indexed = op.name == "gather" ? op.inputs[0] : op.outputs[0];
    const auto dim = static_cast<std::size_t>(op.attributes.integer("dim"));
    put(1, step.type(indexed).shape[dim]);
  } else if (op.name == "binary_cross_entropy") {
    put(1, 1);  // PyTorch refuses targets that are no probabilities
  }
}

}  // namespace

at::Tensor initial_shard(const ir::Graph& step,
                         ir::ValueId id,
                         const sharding::ShardingSpec& spec,
                         const cluster::DeviceMesh& mesh,
                         std::int64_t rank,
                         std::uint64_t seed) {
  const ir::Value& value = step.value(id);
  if (value.data != nullptr) {
    return shard_of(from_data(value), spec, mesh, rank);
  }
  const ir::Shape local = sharding::part_shape(spec, value.type.shape, mesh, rank);
  const at::ScalarType dtype = scalar_type(value.type.dtype);
  if (value.kind == ir::ValueKind::kState || value.kind == ir::ValueKind::kAccumulator) {
    if (value.init_from.valid()) {
      return initial_shard(step, value.init_from, spec, mesh, rank, seed).to(dtype);
    }
    return at::zeros(local, at::TensorOptions().dtype(dtype));
  }
  return draw_parameter(value, spec, mesh, rank, seed);
}

std::vector<std::int64_t> lookup_bounds(const ir::Graph& step) {
  std::vector<std::int64_t> bounds(step.values().size(), 0);
  for (std::size_t i = step.ops().size(); i-- > 0;) {
    const ir::Op& op = step.ops()[i];
    bound_by_lookup(step, op, bounds);
    if (!moves_numbers_unchanged(op.name)) {
      continue;
    }
    const std::int64_t bound = bounds[op.outputs[0].index()];
    for (const ir::ValueId input : op.inputs) {
      std::int64_t& now = bounds[input.index()];
      if (bound != 0) {
        now = now == 0 ? bound : std::min(now, bound);
      }
    }
  }
  return bounds;
}

at::Tensor random_input(const ir::Graph& step,
                        ir::ValueId input,
                        std::int64_t bound,
                        std::uint64_t seed,
                        std::int64_t step_number,
                        std::int64_t microbatch) {
  const ir::Value& value = step.value(input);
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(value.type.dtype));
  const bool floating = ir::is_floating(value.type.dtype);
  if (!floating && bound == 0) {
    return at::ones(value.type.shape, options);
  }
  const auto draw =
      (static_cast<std::uint64_t>(step_number) << 32U) | static_cast<std::uint64_t>(microbatch);
  RandomStream stream(random_key(seed, "input " + value.name), draw);
  const std::int64_t numel = value.type.numel();
  const at::Tensor drawn =
      at::empty(value.type.shape, at::TensorOptions().dtype(floating ? at::kDouble : at::kLong));
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    if (floating) {
      drawn.mutable_data_ptr<double>()[i] =
          bound == 0 ? stream.normal(index)
                     : static_cast<double>(bound) * stream.bits(index) * 0x1p-32;
    } else {
      drawn.mutable_data_ptr<std::int64_t>()[i] =
          static_cast<std::int64_t>(stream.bits(index) % static_cast<std::uint64_t>(bound));
    }
  }
  return drawn.to(options.dtype());
}

}  // namespace shardplan::runtime
