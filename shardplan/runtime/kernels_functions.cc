#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_backward.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_backward.h>

#include "shardplan/runtime/kernel.h"

// Functions of elements and activations, each one of ATen's.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;
using Call = const KernelCall&;

template <at::Tensor (at::Tensor::*Method)() const>
Tensors unary(Call call) {
  return {(call.input(0).*Method)().contiguous()};
}

template <at::Tensor (*Function)(const at::Tensor&)>
Tensors plain(Call call) {
  return {Function(call.input(0)).contiguous()};
}

template <at::Tensor (*Function)(const at::Tensor&, const at::Tensor&)>
Tensors plain_backward(Call call) {
  return {Function(call.input(0), call.input(1)).contiguous()};
}

double number(Call call, const char* name) {
  return call.attributes.number(name);
}

Tensors elu(Call call) {
  return {at::elu(
      call.input(0), number(call, "alpha"), number(call, "scale"), number(call, "input_scale"))};
}

Tensors elu_backward(Call call) {
  return {at::elu_backward(call.input(0),
                           number(call, "alpha"),
                           number(call, "scale"),
                           number(call, "input_scale"),
                           /*is_result=*/false,
                           call.input(1))};
}

}  // namespace

std::vector<KernelEntry> function_kernels() {
  using T = at::Tensor;
  return {
      {"erf", unary<&T::erf>},
      {"tan", unary<&T::tan>},
      {"asin", unary<&T::asin>},
      {"acos", unary<&T::acos>},
      {"atan", unary<&T::atan>},
      {"sinh", unary<&T::sinh>},
      {"cosh", unary<&T::cosh>},
      {"expm1", unary<&T::expm1>},
      {"log1p", unary<&T::log1p>},
      {"sign", unary<&T::sign>},
      {"floor", unary<&T::floor>},
      {"ceil", unary<&T::ceil>},
      {"round", unary<&T::round>},
      {"trunc", unary<&T::trunc>},
      {"pow", [](Call c) { return Tensors{c.input(0).pow(c.input(1))}; }},
      {"atan2", [](Call c) { return Tensors{c.input(0).atan2(c.input(1))}; }},
      {"remainder", [](Call c) { return Tensors{c.input(0).remainder(c.input(1))}; }},
      {"floor_div", [](Call c) { return Tensors{c.input(0).div(c.input(1), "floor")}; }},
      {"leaky_relu",
       [](Call c) { return Tensors{at::leaky_relu(c.input(0), number(c, "slope"))}; }},
      {"leaky_relu_backward",
       [](Call c) {
         return Tensors{at::leaky_relu_backward(c.input(0), c.input(1), number(c, "slope"), false)};
       }},
      {"elu", elu},
      {"elu_backward", elu_backward},
      {"softplus",
       [](Call c) {
         return Tensors{at::softplus(c.input(0), number(c, "beta"), number(c, "threshold"))};
       }},
      {"softplus_backward",
       [](Call c) {
         return Tensors{at::softplus_backward(
             c.input(0), c.input(1), number(c, "beta"), number(c, "threshold"))};
       }},
      {"hardtanh",
       [](Call c) {
         return Tensors{at::hardtanh(c.input(0), number(c, "low"), number(c, "high"))};
       }},
      {"hardtanh_backward",
       [](Call c) {
         return Tensors{
             at::hardtanh_backward(c.input(0), c.input(1), number(c, "low"), number(c, "high"))};
       }},
      {"binary_cross_entropy",
       [](Call c) {
         return Tensors{
             at::binary_cross_entropy(c.input(0), c.input(1), std::nullopt, at::Reduction::None)};
       }},
      {"binary_cross_entropy_backward",
       [](Call c) {
         return Tensors{at::binary_cross_entropy_backward(
             c.input(0), c.input(1), c.input(2), std::nullopt, at::Reduction::None)};
       }},
      {"hardswish", plain<&at::hardswish>},
      {"hardswish_backward", plain_backward<&at::hardswish_backward>},
      {"hardsigmoid", plain<&at::hardsigmoid>},
      {"hardsigmoid_backward", plain_backward<&at::hardsigmoid_backward>},
      {"mish", plain<&at::mish>},
      {"mish_backward", plain_backward<&at::mish_backward>},
  };
}

}  // namespace shardplan::runtime
