#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

#include "shardplan/runtime/chunks.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/random.h"
#include "shardplan/runtime/vector_loops.h"

// Dropout, gradient accumulation and clipping, optimizers. Loops over chunks of 1024 elements that
// are converted to the type of the arithmetic (double for double parameters, else float), so that
// bf16 gradients meet fp32 master weights without a converted copy.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

// ---- dropout ----

/// Global row-major index of each local row (all dimensions but the last), and the place of the
/// local run in the last dimension.
struct GlobalIndex {
  ir::Shape local{}, start{}, stride{};

  GlobalIndex(const KernelCall& call, const ir::Shape& shape) : local(shape) {
    start.assign(shape.size(), 0);
    ir::Shape global = shape;
    for (const GlobalAxis& axis : call.positions) {
      const auto dim = static_cast<std::size_t>(axis.result_dim);
      start[dim] = axis.start;
      global[dim] = axis.global_size;
    }
    stride.assign(shape.size(), 1);
    for (std::size_t d = shape.size(); d-- > 1;) {
      stride[d - 1] = stride[d] * global[d];
    }
  }

  [[nodiscard]] std::int64_t of_row(std::int64_t row) const {
    std::int64_t index = local.empty() ? 0 : start.back();
    for (std::size_t d = local.size(); d-- > 1;) {
      index += (start[d - 1] + row % local[d - 1]) * stride[d - 1];
      row /= local[d - 1];
    }
    return index;
  }
};

template <class C>
void dropout_row(const KernelCall& call,
                 const at::Tensor& result,
                 std::int64_t offset,
                 std::int64_t length,
                 std::int64_t global,
                 RandomStream& stream) {
  const double p = call.attributes.number("p");
  const auto threshold = static_cast<std::uint64_t>(p * 0x1p32);
  const C factor = p < 1.0 ? static_cast<C>(1.0 / (1.0 - p)) : C{0};
  Chunk<C> chunk;
  for (std::int64_t done = 0; done < length; done += kChunk) {
    const std::int64_t count = std::min(kChunk, length - done);
    load(call.input(0), offset + done, count, chunk);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool keep = stream.bits(static_cast<std::uint64_t>(global + done + i)) >= threshold;
      C& x = chunk[static_cast<std::size_t>(i)];
      x = keep ? x * factor : C{0};
    }
    store(result, offset + done, count, chunk);
  }
}

Tensors dropout(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor result = at::empty(x.sizes(), x.options());
  const GlobalIndex index(call, call.results[0].shape);
  const std::int64_t length = x.dim() == 0 ? 1 : x.size(-1);
  const std::uint64_t key =
      random_key(call.random.seed, "dropout " + std::to_string(call.attributes.integer("seed")));
  const auto draw = (static_cast<std::uint64_t>(call.random.step) << 32U) |
                    static_cast<std::uint64_t>(call.random.microbatch);
  at::parallel_for(
      0,
      x.numel() / length,
      std::max<std::int64_t>(1, 16 * kChunk / length),
      [&](std::int64_t first, std::int64_t last) {
        RandomStream stream(key, draw);
        for (std::int64_t row = first; row < last; ++row) {
          if (x.scalar_type() == at::kDouble) {
            dropout_row<double>(call, result, row * length, length, index.of_row(row), stream);
          } else {
            dropout_row<float>(call, result, row * length, length, index.of_row(row), stream);
          }
        }
      });
  return {result};
}

// ---- accumulation and clipping ----

template <class C>
void accumulate_in(const at::Tensor& sum, const at::Tensor& g) {
  for_each_chunk(sum.numel(), [&](std::int64_t offset, std::int64_t count) {
    Chunk<C> a;
    Chunk<C> b;
    load(sum, offset, count, a);
    load(g, offset, count, b);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      a[i] += b[i];
    }
    store(sum, offset, count, a);
  });
}

Tensors accumulate(const KernelCall& call) {
  if (call.input(0).scalar_type() == at::kDouble) {
    accumulate_in<double>(call.input(0), call.input(1));
  } else {
    accumulate_in<float>(call.input(0), call.input(1));
  }
  return {call.input(0)};
}

Tensors sum_squares(const KernelCall& call) {
  double total = 0;
  for (std::int64_t offset = 0; offset < call.input(0).numel(); offset += kChunk) {
    const std::int64_t count = std::min(kChunk, call.input(0).numel() - offset);
    Chunk<double> x;
    load(call.input(0), offset, count, x);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      total += x[i] * x[i];
    }
  }
  const at::Tensor result = at::empty({}, options_of(call.input(0), call.results[0].dtype));
  result.fill_(total);
  return {result};
}

Tensors clip_scale(const KernelCall& call) {
  constexpr double kEpsilon = 1e-6;  // torch.nn.utils.clip_grad_norm_
  const double norm = std::sqrt(call.input(0).item<double>());
  const at::Tensor result = at::empty({}, options_of(call.input(0), call.results[0].dtype));
  result.fill_(std::min(1.0, call.attributes.number("max_norm") / (norm + kEpsilon)));
  return {result};
}

// ---- optimizers: torch.optim's SGD, Adam and AdamW ----

struct SgdSettings {
  double lr, momentum, dampening, weight_decay, clip;
  bool nesterov, has_momentum, first_step;
};

template <class C>
void sgd_run(
    const SgdSettings& s, std::int64_t count, Chunk<C>& p, const Chunk<C>& g, Chunk<C>& buffer) {
  const auto lr = static_cast<C>(s.lr);
  const auto momentum = static_cast<C>(s.momentum);
  const auto rest = static_cast<C>(1.0 - s.dampening);
  const auto decay = static_cast<C>(s.weight_decay);
  const auto clip = static_cast<C>(s.clip);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const C d = g[i] * clip + decay * p[i];
    C change = d;
    if (s.has_momentum) {
      buffer[i] = s.first_step ? d : momentum * buffer[i] + rest * d;
      change = s.nesterov ? d + momentum * buffer[i] : buffer[i];
    }
    p[i] -= lr * change;
  }
}

template <class C>
void sgd_in(const SgdSettings& s,
            const at::Tensor& p,
            const at::Tensor& g,
            const at::Tensor& buffer) {
  for_each_chunk(p.numel(), [&](std::int64_t offset, std::int64_t count) {
    Chunk<C> cp;
    Chunk<C> cg;
    Chunk<C> cb;
    load(p, offset, count, cp);
    load(g, offset, count, cg);
    if (s.has_momentum) {
      load(buffer, offset, count, cb);
    }
    sgd_run(s, count, cp, cg, cb);
    store(p, offset, count, cp);
    if (s.has_momentum) {
      store(buffer, offset, count, cb);
    }
  });
}

double clip_factor(const KernelCall& call, std::size_t index) {
  return call.attributes.flag_or("clip", false) ? call.input(index).item<double>() : 1.0;
}

Tensors sgd_update(const KernelCall& call) {
  const ir::Attributes& a = call.attributes;
  const bool has_momentum = a.flag_or("has_momentum", false);
  const std::size_t step_index = has_momentum ? 3 : 2;
  const SgdSettings settings{a.number("lr"),
                             a.number_or("momentum", 0),
                             a.number_or("dampening", 0),
                             a.number_or("weight_decay", 0),
                             clip_factor(call, step_index + 1),
                             a.flag_or("nesterov", false),
                             has_momentum,
                             call.input(step_index).item<double>() == 0};
  const at::Tensor& p = call.input(0);
  const at::Tensor& buffer = call.input(has_momentum ? 2 : 0);
  if (p.scalar_type() == at::kDouble) {
    sgd_in<double>(settings, p, call.input(1), buffer);
  } else {
    sgd_in<float>(settings, p, call.input(1), buffer);
  }
  return has_momentum ? Tensors{p, buffer} : Tensors{p};
}

struct AdamSettings {
  double beta1, beta2, eps, clip, shrink, l2, step_size, root_correction;  ///< as AdamNumbers
};

/// A run of a tensor's elements in type C: in place where the tensor has that type, else a
/// converted copy that write_back() returns.
template <class C>
class Run {
 public:
  Run(const at::Tensor& tensor, std::int64_t offset, std::int64_t count)
      : tensor_(tensor), offset_(offset), count_(count) {
    if (tensor.scalar_type() == c10::CppTypeToScalarType<C>::value) {
      data_ = static_cast<C*>(tensor.data_ptr()) + offset;
    } else {
      load(tensor, offset, count, copy_);
    }
  }
  [[nodiscard]] C* data() { return data_ == nullptr ? copy_.data() : data_; }
  void write_back() {
    if (data_ == nullptr) {
      store(tensor_, offset_, count_, copy_);
    }
  }

 private:
  const at::Tensor& tensor_;
  std::int64_t offset_;
  std::int64_t count_;
  C* data_ = nullptr;
  Chunk<C> copy_;
};

template <class C>
void adam_in(const AdamSettings& s, const KernelCall& call) {
  const AdamNumbers<C> numbers{static_cast<C>(s.beta1),
                               static_cast<C>(s.beta2),
                               static_cast<C>(s.eps),
                               static_cast<C>(s.clip),
                               static_cast<C>(s.shrink),
                               static_cast<C>(s.l2),
                               static_cast<C>(s.step_size),
                               static_cast<C>(s.root_correction)};
  for_each_chunk(call.input(0).numel(), [&](std::int64_t offset, std::int64_t count) {
    Run<C> p(call.input(0), offset, count);
    Run<C> g(call.input(1), offset, count);
    Run<C> m(call.input(2), offset, count);
    Run<C> v(call.input(3), offset, count);
    adam_loop(numbers, count, p.data(), g.data(), m.data(), v.data());
    p.write_back();
    m.write_back();
    v.write_back();
  });
}

Tensors adam_update(const KernelCall& call) {
  const ir::Attributes& a = call.attributes;
  const double t = call.input(4).item<double>() + 1;
  const double lr = a.number("lr");
  const double decay = a.number_or("weight_decay", 0);
  const bool decoupled = a.flag_or("decoupled", false);
  AdamSettings s{};
  s.beta1 = a.number("beta1");
  s.beta2 = a.number("beta2");
  s.eps = a.number("eps");
  s.clip = clip_factor(call, 5);
  s.shrink = decoupled ? 1.0 - lr * decay : 1.0;
  s.l2 = decoupled ? 0.0 : decay;
  s.step_size = lr / (1.0 - std::pow(s.beta1, t));
  s.root_correction = std::sqrt(1.0 - std::pow(s.beta2, t));
  if (call.input(0).scalar_type() == at::kDouble) {
    adam_in<double>(s, call);
  } else {
    adam_in<float>(s, call);
  }
  return {call.input(0), call.input(2), call.input(3)};
}

}  // namespace

std::vector<KernelEntry> update_kernels() {
  return {
      {"dropout", dropout},
      {"accumulate", accumulate},
      {"sum_squares", sum_squares},
      {"clip_scale", clip_scale},
      {"sgd_update", sgd_update},
      {"adam_update", adam_update},
  };
}

}  // namespace shardplan::runtime
