#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>

#include <utility>

#include "shardplan/runtime/kernel.h"

// Data movement and reductions. Only `reshape` and `identity` return views; every other result has
// storage of its own even where ATen could share it, because the program frees values one by one.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor copy_of(const at::Tensor& view) {
  return view.clone(at::MemoryFormat::Contiguous);
}

Tensors slice(const KernelCall& call) {
  const ir::Attributes& a = call.attributes;
  return {copy_of(call.input(0).slice(
      a.integer("dim"), a.integer("start"), a.integer("end"), a.integer_or("step", 1)))};
}

Tensors pad(const KernelCall& call) {
  const ir::Attributes& a = call.attributes;
  const std::int64_t from_last = call.input(0).dim() - 1 - a.integer("dim");
  // ATen's list goes from the last dimension to the first, two numbers each.
  std::vector<std::int64_t> amounts(static_cast<std::size_t>(2 * (from_last + 1)), 0);
  amounts[amounts.size() - 2] = a.integer("before");
  amounts[amounts.size() - 1] = a.integer("after");
  return {at::constant_pad_nd(call.input(0), amounts, a.number_or("value", 0.0)).contiguous()};
}

Tensors sum(const KernelCall& call) {
  const ir::IntList& dims = call.attributes.ints("dims");
  const at::ScalarType dtype = scalar_type(call.results[0].dtype);
  if (dims.empty()) {  // ATen reads an empty list as "all"
    return {call.input(0).to(dtype, false, /*copy=*/true)};
  }
  return {call.input(0).sum(dims, call.attributes.flag_or("keepdim", false), dtype).contiguous()};
}

Tensors max(const KernelCall& call) {
  const ir::IntList& dims = call.attributes.ints("dims");
  if (dims.empty()) {
    return {copy_of(call.input(0))};
  }
  return {at::amax(call.input(0), dims, call.attributes.flag_or("keepdim", false)).contiguous()};
}

Tensors iota(const KernelCall& call) {
  const ir::TensorType& type = call.results[0];
  const auto dim = static_cast<std::size_t>(call.attributes.integer("dim"));
  const GlobalAxis* axis = nullptr;
  for (const GlobalAxis& position : call.positions) {
    axis = position.result_dim == static_cast<int>(dim) ? &position : axis;
  }
  const std::int64_t start = axis == nullptr ? 0 : axis->start;
  const at::Tensor line = at::arange(
      start, start + type.shape[dim], at::TensorOptions().dtype(scalar_type(type.dtype)));
  std::vector<std::int64_t> aligned(type.shape.size(), 1);
  aligned[dim] = type.shape[dim];
  return {copy_of(line.view(aligned).expand(type.shape))};
}

Tensors full(const KernelCall& call) {
  const ir::TensorType& type = call.results[0];
  return {at::full(type.shape,
                   call.attributes.number("value"),
                   at::TensorOptions().dtype(scalar_type(type.dtype)))};
}

}  // namespace

std::vector<KernelEntry> shape_kernels() {
  using Call = const KernelCall&;
  return {
      {"identity", [](Call c) { return Tensors{c.input(0)}; }},
      {"detach", [](Call c) { return Tensors{c.input(0)}; }},
      {"reshape", [](Call c) { return Tensors{c.input(0).view(c.results[0].shape)}; }},
      {"transpose",
       [](Call c) {
         return Tensors{copy_of(c.input(0).permute(c.attributes.ints("permutation")))};
       }},
      {"broadcast", [](Call c) { return Tensors{copy_of(c.input(0).expand(c.results[0].shape))}; }},
      {"concat",
       [](Call c) { return Tensors{at::cat(c.inputs, c.attributes.integer("dim")).contiguous()}; }},
      {"slice", slice},
      {"pad", pad},
      {"sum", sum},
      {"max", max},
      {"cumsum",
       [](Call c) {
         return Tensors{
             c.input(0).cumsum(c.attributes.integer("dim"), scalar_type(c.results[0].dtype))};
       }},
      {"iota", iota},
      {"full", full},
  };
}

}  // namespace shardplan::runtime
