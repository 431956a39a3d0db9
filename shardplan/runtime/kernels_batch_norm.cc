#include <ATen/Parallel.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/vector_loops.h"

// Batch and group normalisation. Statistics are kept in float for narrow inputs.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

bool is_narrow(const at::Tensor& x) {
  return arithmetic_type(x.scalar_type()) != x.scalar_type();
}

at::Tensor in_arithmetic_type(const at::Tensor& x) {
  return x.to(arithmetic_type(x.scalar_type()));
}

/// Elements of a channel of x, [batch, channels, ...].
double elements_a_channel(const at::Tensor& x) {
  return static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
}

// ---- batch norm ----

/// Whether x is float on the CPU with runs of elements of one channel that are worth a loop of
/// their own: ATen's is several times slower.
bool has_long_runs(const at::Tensor& x) {
  constexpr std::int64_t kLong = 16;
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0 &&
         x.numel() / (x.size(0) * x.size(1)) >= kLong;
}

/// Calls `visit(channel, start of its run, elements)` for every run of elements of one channel;
/// channels go to different threads.
template <class Visit>
void for_each_run(const at::Tensor& x, const Visit& visit) {
  const std::int64_t channels = x.size(1);
  const std::int64_t space = x.numel() / (x.size(0) * channels);
  at::parallel_for(0, channels, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      for (std::int64_t n = 0; n < x.size(0); ++n) {
        visit(c, (n * channels + c) * space, space);
      }
    }
  });
}

constexpr std::int64_t kPiece = 1024;

/// Calls `visit(channel, start, elements)` as for_each_run, for pieces of kPiece elements at most.
template <class Visit>
void for_each_piece(const at::Tensor& x, const Visit& visit) {
  for_each_run(x, [&](std::int64_t c, std::int64_t start, std::int64_t count) {
    for (std::int64_t done = 0; done < count; done += kPiece) {
      visit(c, start + done, std::min(kPiece, count - done));
    }
  });
}

/// The numbers of a piece as float, where they are narrower in `room`.
template <class T>
const float* as_float(const T* x,
                      std::int64_t count,
                      [[maybe_unused]] std::array<float, kPiece>& room) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    std::copy(x, x + count, room.begin());
    return room.data();
  }
}

/// Calls `add(T{})` with the element type of x where its sums are added here, in double. Those of
/// narrow numbers always are. Added in float, the parts of a batch have other statistics than the
/// whole in the sixth digit, which rounds some results the other way; each layer behind multiplies
/// such differences, and gradients of elements that come out on the other side of a ReLU's zero
/// have nothing in common.
template <class Add>
bool added_in_double(const at::Tensor& x, const Add& add) {
  if (has_long_runs(x)) {
    add(float{});
  } else if (x.is_cpu() && x.scalar_type() == at::kBFloat16) {
    add(at::BFloat16{});
  } else if (x.is_cpu() && x.scalar_type() == at::kHalf) {
    add(at::Half{});
  } else {
    return false;
  }
  return true;
}

/// Sums and sums of squares of the channels of x into two rows of `moments`.
template <class T>
void sum_runs(const at::Tensor& x, const at::Tensor& moments) {
  const auto* const data = x.const_data_ptr<T>();
  auto* const sums = moments.mutable_data_ptr<double>() + x.size(1);
  auto* const squares = sums + x.size(1);
  for_each_piece(x, [&](std::int64_t c, std::int64_t start, std::int64_t count) {
    std::array<float, kPiece> room;  // NOLINT: written before it is read
    add_moments(as_float(data + start, count, room), count, sums[c], squares[c]);
  });
}

Tensors batch_moments(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  const at::Tensor moments = at::zeros(call.results[0].shape, options_of(x, call.results[0].dtype));
  if (x.numel() == 0) {  // a part without elements
    return {moments};
  }
  const double count = elements_a_channel(x);
  moments[0].fill_(count);
  if (added_in_double(x, [&](auto type) { sum_runs<decltype(type)>(x, moments); })) {
    return {moments};
  }
  std::optional<at::Tensor> unused;
  if (is_narrow(x)) {  // ATen keeps float statistics when there are running ones in float
    unused = at::zeros({x.size(1)}, x.options().dtype(arithmetic_type(x.scalar_type())));
  }
  const auto [mean, variance] = at::batch_norm_update_stats(x, unused, unused, 0.0);
  const at::Tensor sum = moments[1];
  const at::Tensor squares = moments[2];
  sum.copy_(mean);
  squares.copy_(variance);
  squares.addcmul_(sum, sum).mul_(count);
  sum.mul_(count);
  return {moments};
}

Tensors batch_statistics(const KernelCall& call) {
  const at::Tensor& moments = call.input(0);
  const at::Tensor mean = moments[1].div(moments[0]);
  const at::Tensor variance = moments[2].div(moments[0]).addcmul_(mean, mean, -1).clamp_min_(0);
  const at::ScalarType type = scalar_type(call.results[0].dtype);
  return {mean.to(type), variance.to(type)};
}

/// PyTorch's running variance is unbiased: it divides by one less than the count.
Tensors batch_running(const KernelCall& call) {
  const at::Tensor moments = call.input(0).to(at::kDouble);
  const double momentum = call.attributes.number("momentum");
  const at::Tensor mean = moments[1].div(moments[0]);
  const at::Tensor variance =
      moments[2].sub(moments[0].mul(mean).mul_(mean)).clamp_min_(0).div_(moments[0].sub(1));
  const auto moved = [&](const at::Tensor& running, const at::Tensor& now) {
    return running.mul(1 - momentum).add_(now.to(running.scalar_type()), momentum);
  };
  return {moved(call.input(1), mean), moved(call.input(2), variance)};
}

std::optional<at::Tensor> affine_operand(const KernelCall& call,
                                         std::string_view flag,
                                         std::size_t index,
                                         at::ScalarType type) {
  return call.attributes.flag_or(flag, false) ? std::optional(call.input(index).to(type))
                                              : std::nullopt;
}

Tensors batch_norm(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  if (x.numel() == 0) {
    return {at::empty_like(x)};
  }
  const at::ScalarType wide = arithmetic_type(x.scalar_type());
  const std::size_t bias = call.attributes.flag_or("weight", false) ? 4 : 3;
  auto [y, mean, rstd] = at::native_batch_norm(x,
                                               affine_operand(call, "weight", 3, wide),
                                               affine_operand(call, "bias", bias, wide),
                                               call.input(1),
                                               call.input(2),
                                               /*training=*/false,
                                               /*momentum=*/0.0,
                                               call.attributes.number("eps"));
  return {y.contiguous()};
}

/// Σ g and Σ g · x̂ of the channels into two rows of `sums`; mean and variance are float.
template <class T>
void sum_products(const KernelCall& call, const at::Tensor& sums) {
  const at::Tensor& x = call.input(1);
  const auto* const g_data = call.input(0).const_data_ptr<T>();
  const auto* const x_data = x.const_data_ptr<T>();
  const auto* const mean = call.input(2).const_data_ptr<float>();
  const auto* const variance = call.input(3).const_data_ptr<float>();
  auto* const of_g = sums.mutable_data_ptr<double>() + x.size(1);
  auto* const of_products = of_g + x.size(1);
  for_each_piece(x, [&](std::int64_t c, std::int64_t start, std::int64_t count) {
    std::array<float, kPiece> g_room;  // NOLINT: written before it is read
    std::array<float, kPiece> x_room;  // NOLINT: the same
    add_products(as_float(g_data + start, count, g_room),
                 as_float(x_data + start, count, x_room),
                 count,
                 mean[c],
                 of_g[c],
                 of_products[c]);
  });
  const double eps = call.attributes.number("eps");
  for (std::int64_t c = 0; c < x.size(1); ++c) {
    of_products[c] /= std::sqrt(static_cast<double>(variance[c]) + eps);
  }
}

Tensors batch_norm_sums(const KernelCall& call) {
  const at::Tensor& x = call.input(1);
  const at::Tensor sums = at::zeros(call.results[0].shape, options_of(x, call.results[0].dtype));
  if (x.numel() == 0) {
    return {sums};
  }
  sums[0].fill_(elements_a_channel(x));
  if (added_in_double(x, [&](auto type) { sum_products<decltype(type)>(call, sums); })) {
    return {sums};
  }
  const auto [dx, products, g] = at::native_batch_norm_backward(call.input(0),
                                                                x,
                                                                std::nullopt,
                                                                call.input(2),
                                                                call.input(3),
                                                                std::nullopt,
                                                                std::nullopt,
                                                                /*train=*/false,
                                                                call.attributes.number("eps"),
                                                                {false, true, true});
  sums[1].copy_(g);
  sums[2].copy_(products);
  return {sums};
}

/// dx = weight · rstd · (g - Σg / n - x̂ · Σ(g x̂) / n) as a · g + b · x + c, a, b and c by channel.
struct ChannelFactors {
  at::Tensor g;
  at::Tensor x;
  at::Tensor constant;
};

ChannelFactors channel_factors(const KernelCall& call) {
  const at::Tensor& mean = call.input(2);
  const at::Tensor sums = call.input(4).to(mean.scalar_type());
  const at::Tensor rstd = call.input(3).add(call.attributes.number("eps")).rsqrt_();
  at::Tensor a = rstd;
  if (call.attributes.flag_or("weight", false)) {
    a = a.mul(call.input(5));
  }
  const at::Tensor b = sums[2].div(sums[0]).mul_(rstd).mul_(a).neg_();
  const at::Tensor c = sums[1].div(sums[0]).mul_(a).neg_().addcmul_(b, mean, -1);
  std::vector<std::int64_t> aligned(static_cast<std::size_t>(call.input(1).dim() - 1), 1);
  aligned[0] = mean.size(0);
  return {a.view(aligned), b.view(aligned), c.view(aligned)};
}

Tensors batch_norm_backward(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  const at::Tensor& x = call.input(1);
  const ChannelFactors factors = channel_factors(call);
  if (has_long_runs(x)) {
    const at::Tensor result = at::empty_like(x);
    const auto* const g_data = g.const_data_ptr<float>();
    const auto* const x_data = x.const_data_ptr<float>();
    const auto* const a = factors.g.const_data_ptr<float>();
    const auto* const b = factors.x.const_data_ptr<float>();
    const auto* const constant = factors.constant.const_data_ptr<float>();
    auto* const out = result.mutable_data_ptr<float>();
    for_each_run(x, [&](std::int64_t c, std::int64_t start, std::int64_t count) {
      combine(g_data + start, x_data + start, count, a[c], b[c], constant[c], out + start);
    });
    return {result};
  }
  if (!is_narrow(x)) {
    return {g.mul(factors.g).addcmul_(x, factors.x).add_(factors.constant)};
  }
  const at::Tensor result = at::empty_like(x);
  for (std::int64_t n = 0; n < x.size(0); ++n) {  // a sample at a time in float
    result[n].copy_(in_arithmetic_type(g[n])
                        .mul_(factors.g)
                        .addcmul_(in_arithmetic_type(x[n]), factors.x)
                        .add_(factors.constant));
  }
  return {result};
}

// ---- group norm ----

/// x is [batch, groups, channels of a group, ...].
struct GroupShape {
  std::int64_t batch;
  std::int64_t groups;
  std::int64_t channels;  ///< of all groups
  std::int64_t space;     ///< elements a channel and sample

  explicit GroupShape(const at::Tensor& x)
      : batch(x.size(0)), groups(x.size(1)), channels(x.size(1) * x.size(2)), space(1) {
    for (std::int64_t d = 3; d < x.dim(); ++d) {
      space *= x.size(d);
    }
  }
};

/// A vector of all channels, as ATen takes it, with float statistics on the CPU for narrow x.
std::optional<at::Tensor> group_operand(const KernelCall& call,
                                        const at::Tensor& x,
                                        std::string_view flag,
                                        std::size_t index) {
  const bool mixed = is_narrow(x) && x.is_cpu();
  const at::ScalarType type = mixed ? arithmetic_type(x.scalar_type()) : x.scalar_type();
  if (call.attributes.flag_or(flag, false)) {
    return call.input(index).view({-1}).to(type);
  }
  if (mixed && flag == "weight") {
    return at::ones({x.size(1) * x.size(2)}, x.options().dtype(type));
  }
  return std::nullopt;
}

Tensors group_norm(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  if (x.numel() == 0) {  // a part without elements
    const at::Tensor statistics =
        at::zeros(call.results[1].shape, options_of(x, call.results[1].dtype));
    return {at::empty_like(x), statistics, statistics.clone()};
  }
  const GroupShape shape(x);
  const std::size_t bias = call.attributes.flag_or("weight", false) ? 2 : 1;
  auto [y, mean, rstd] = at::native_group_norm(x.view({shape.batch, shape.channels, shape.space}),
                                               group_operand(call, x, "weight", 1),
                                               group_operand(call, x, "bias", bias),
                                               shape.batch,
                                               shape.channels,
                                               shape.space,
                                               shape.groups,
                                               call.attributes.number("eps"));
  const at::ScalarType statistics = scalar_type(call.results[1].dtype);
  return {y.contiguous().view(x.sizes()), mean.to(statistics), rstd.to(statistics)};
}

Tensors group_norm_backward(const KernelCall& call) {
  const at::Tensor& x = call.input(1);
  const GroupShape shape(x);
  const bool has_weight = call.attributes.flag_or("weight", false);
  const bool has_bias = call.attributes.flag_or("bias", false);
  if (x.numel() == 0) {
    Tensors none{at::empty_like(x)};
    while (none.size() < call.results.size()) {
      const ir::TensorType& type = call.results[none.size()];
      none.push_back(at::zeros(type.shape, options_of(x, type.dtype)));
    }
    return none;
  }
  const std::optional<at::Tensor> weight = group_operand(call, x, "weight", 4);
  const at::ScalarType statistics = weight.has_value() ? weight->scalar_type() : x.scalar_type();
  const std::vector<std::int64_t> flat{shape.batch, shape.channels, shape.space};
  const auto [dx, dweight, dbias] = at::native_group_norm_backward(call.input(0).view(flat),
                                                                   x.view(flat),
                                                                   call.input(2).to(statistics),
                                                                   call.input(3).to(statistics),
                                                                   weight,
                                                                   shape.batch,
                                                                   shape.channels,
                                                                   shape.space,
                                                                   shape.groups,
                                                                   {true, has_weight, has_bias});
  Tensors results{dx.contiguous().view(x.sizes())};
  for (const auto& [wanted, gradient] :
       {std::pair(has_weight, dweight), std::pair(has_bias, dbias)}) {
    if (wanted) {
      const ir::TensorType& type = call.results[results.size()];
      results.push_back(gradient.to(scalar_type(type.dtype)).contiguous().view(type.shape));
    }
  }
  return results;
}

}  // namespace

std::vector<KernelEntry> batch_norm_kernels() {
  return {
      {"batch_moments", batch_moments},
      {"batch_statistics", batch_statistics},
      {"batch_running", batch_running},
      {"batch_norm", batch_norm},
      {"batch_norm_sums", batch_norm_sums},
      {"batch_norm_backward", batch_norm_backward},
      {"group_norm", group_norm},
      {"group_norm_backward", group_norm_backward},
  };
}

}  // namespace shardplan::runtime
