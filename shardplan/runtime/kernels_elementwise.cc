#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "shardplan/runtime/kernel.h"

// One line a kernel. Every table entry is a function of the call that returns one tensor; `one`
// gives it the result's dtype and wraps it.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors one(const KernelCall& call, const at::Tensor& result) {
  return {result.to(scalar_type(call.results[0].dtype)).contiguous()};
}

template <at::Tensor (at::Tensor::*Method)() const>
Tensors unary(const KernelCall& call) {
  return one(call, (call.input(0).*Method)());
}

template <at::Tensor (at::Tensor::*Method)(const at::Tensor&) const>
Tensors binary(const KernelCall& call) {
  return one(call, (call.input(0).*Method)(call.input(1)));
}

/// A number that is whole stays so for integers: as a double it would turn all of them into floats.
at::Scalar number_for(const at::Tensor& x, double value) {
  const auto whole = static_cast<std::int64_t>(value);
  const bool exact = std::abs(value) < 0x1p53 && static_cast<double>(whole) == value;
  return exact && c10::isIntegralType(x.scalar_type(), /*includeBool=*/false) ? at::Scalar(whole)
                                                                              : at::Scalar(value);
}

at::Scalar number_of(const KernelCall& call, std::string_view name) {
  return number_for(call.input(0), call.attributes.number(name));
}

template <at::Tensor (at::Tensor::*Method)(const at::Scalar&) const>
Tensors with_value(const KernelCall& call) {
  return one(call, (call.input(0).*Method)(number_of(call, "value")));
}

template <class Narrow>
at::Tensor narrow_rsqrt(const at::Tensor& x) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  const auto* const from = in.const_data_ptr<Narrow>();
  auto* const to = out.mutable_data_ptr<Narrow>();
  for (std::int64_t i = 0; i < in.numel(); ++i) {
    to[i] = static_cast<Narrow>(1.F / std::sqrt(static_cast<float>(from[i])));
  }
  return out;
}

/// x^(-1/2). ATen rounds the root of a narrow number before it divides, but only of those that are
/// left when its vector registers have been filled: the result of an element would depend on where
/// in a tensor it lies, and so on how the tensor is cut.
at::Tensor rsqrt(const at::Tensor& x) {
  if (x.is_cpu() && x.scalar_type() == at::kBFloat16) {
    return narrow_rsqrt<at::BFloat16>(x);
  }
  if (x.is_cpu() && x.scalar_type() == at::kHalf) {
    return narrow_rsqrt<at::Half>(x);
  }
  return x.rsqrt();
}

at::Tensor power(const at::Tensor& x, double exponent) {
  return exponent == -0.5 ? rsqrt(x) : x.pow(exponent);
}

template <at::Tensor (*Function)(const at::Tensor&, const at::Tensor&)>
Tensors backward(const KernelCall& call) {
  return one(call, Function(call.input(0), call.input(1)));
}

Tensors cast(const KernelCall& call) {
  return {call.input(0).to(scalar_type(call.results[0].dtype),
                           /*non_blocking=*/false,
                           /*copy=*/true)};
}

}  // namespace

std::vector<KernelEntry> elementwise_kernels() {
  using T = at::Tensor;
  using Call = const KernelCall&;
  return {
      {"neg", unary<&T::neg>},
      {"exp", unary<&T::exp>},
      {"log", unary<&T::log>},
      {"sqrt", unary<&T::sqrt>},
      {"rsqrt", [](Call c) { return one(c, rsqrt(c.input(0))); }},
      {"reciprocal", unary<&T::reciprocal>},
      {"tanh", unary<&T::tanh>},
      {"sigmoid", unary<&T::sigmoid>},
      {"relu", unary<&T::relu>},
      {"sin", unary<&T::sin>},
      {"cos", unary<&T::cos>},
      {"abs", unary<&T::abs>},
      {"logical_not", unary<&T::logical_not>},
      {"silu", [](Call c) { return one(c, at::silu(c.input(0))); }},
      {"gelu",
       [](Call c) { return one(c, at::gelu(c.input(0), c.attributes.string("approximate"))); }},
      {"scale", [](Call c) { return one(c, c.input(0).mul(number_of(c, "factor"))); }},
      {"add_scalar", [](Call c) { return one(c, c.input(0).add(number_of(c, "value"))); }},
      {"pow_scalar",
       [](Call c) { return one(c, power(c.input(0), c.attributes.number("exponent"))); }},
      {"maximum_scalar",
       [](Call c) { return one(c, c.input(0).clamp_min(number_of(c, "value"))); }},
      {"minimum_scalar",
       [](Call c) { return one(c, c.input(0).clamp_max(number_of(c, "value"))); }},
      {"cast", cast},
      {"add", [](Call c) { return one(c, c.input(0).add(c.input(1))); }},
      {"sub", [](Call c) { return one(c, c.input(0).sub(c.input(1))); }},
      {"mul", binary<&T::mul>},
      {"div", binary<&T::div>},
      {"maximum", binary<&T::maximum>},
      {"minimum", binary<&T::minimum>},
      {"eq", binary<&T::eq>},
      {"ne", binary<&T::ne>},
      {"lt", binary<&T::lt>},
      {"le", binary<&T::le>},
      {"gt", binary<&T::gt>},
      {"ge", binary<&T::ge>},
      {"logical_and", binary<&T::logical_and>},
      {"logical_or", binary<&T::logical_or>},
      {"eq_scalar", with_value<&T::eq>},
      {"ne_scalar", with_value<&T::ne>},
      {"lt_scalar", with_value<&T::lt>},
      {"le_scalar", with_value<&T::le>},
      {"gt_scalar", with_value<&T::gt>},
      {"ge_scalar", with_value<&T::ge>},
      {"where", [](Call c) { return one(c, at::where(c.input(0), c.input(1), c.input(2))); }},
      {"tanh_backward", backward<&at::tanh_backward>},
      {"sigmoid_backward", backward<&at::sigmoid_backward>},
      {"silu_backward", backward<&at::silu_backward>},
      {"relu_backward",
       [](Call c) { return one(c, at::threshold_backward(c.input(0), c.input(1), 0)); }},
      {"gelu_backward",
       [](Call c) {
         return one(c,
                    at::gelu_backward(c.input(0), c.input(1), c.attributes.string("approximate")));
       }},
  };
}

}  // namespace shardplan::runtime
