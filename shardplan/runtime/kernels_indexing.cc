#include <ATen/ops/gather.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "shardplan/runtime/kernel.h"

// Elements chosen along one dimension, of which this rank may hold a part.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Places within this rank's part of the indexed dimension, moved into range; `outside` is defined
/// when some may lie in another part.
struct LocalIndex {
  at::Tensor index;
  at::Tensor outside;
};

LocalIndex local_index(const KernelCall& call, const at::Tensor& index) {
  const GlobalAxis* const axis = call.position("v");
  const at::Tensor wide = index.to(at::kLong);
  if (axis == nullptr || axis->whole()) {
    return {wide, {}};
  }
  const at::Tensor local = wide.sub(axis->start);
  at::Tensor outside = local.lt(0).logical_or_(local.ge(axis->local_size));
  return {local.clamp_(0, std::max<std::int64_t>(axis->local_size - 1, 0)), std::move(outside)};
}

Tensors gather(const KernelCall& call) {
  if (call.input(0).numel() == 0) {  // a part without elements
    return {at::zeros(call.results[0].shape, call.input(0).options())};
  }
  const LocalIndex at = local_index(call, call.input(1));
  const at::Tensor result = call.input(0).gather(call.attributes.integer("dim"), at.index);
  if (at.outside.defined()) {
    result.masked_fill_(at.outside, 0);
  }
  return {result.contiguous()};
}

Tensors scatter_sum(const KernelCall& call) {
  const at::Tensor result = at::zeros(call.results[0].shape, call.input(0).options());
  if (result.numel() == 0) {
    return {result};
  }
  const LocalIndex at = local_index(call, call.input(1));
  const at::Tensor src =
      at.outside.defined() ? call.input(0).masked_fill(at.outside, 0) : call.input(0);
  return {result.scatter_add_(call.attributes.integer("dim"), at.index, src)};
}

Tensors max_index(const KernelCall& call) {
  const std::int64_t dim = call.attributes.integer("dim");
  auto [values, places] = call.attributes.flag_or("smallest", false)
                              ? call.input(0).min(dim, /*keepdim=*/true)
                              : call.input(0).max(dim, /*keepdim=*/true);
  return {values.contiguous(), places.contiguous()};
}

Tensors topk(const KernelCall& call) {
  auto [values, places] = call.input(0).topk(call.attributes.integer("k"),
                                             call.attributes.integer("dim"),
                                             !call.attributes.flag_or("smallest", false),
                                             /*sorted=*/true);
  return {values.contiguous(), places.contiguous()};
}

Tensors sort(const KernelCall& call) {
  auto [values, places] = call.input(0).sort(/*stable=*/true,
                                             call.attributes.integer("dim"),
                                             call.attributes.flag_or("descending", false));
  return {values.contiguous(), places.contiguous()};
}

}  // namespace

std::vector<KernelEntry> indexing_kernels() {
  return {
      {"gather", gather},
      {"scatter_sum", scatter_sum},
      {"max_index", max_index},
      {"topk", topk},
      {"sort", sort},
  };
}

}  // namespace shardplan::runtime
