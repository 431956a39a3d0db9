#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "shardplan/runtime/chunks.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/vector_loops.h"

// Norms, softmax, lookups and the pieces of the cross-entropy loss. What is as large as the logits
// is read and written once, in chunks, so no kernel here allocates another tensor of that size.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor to_result(const KernelCall& call, std::size_t i, const at::Tensor& tensor) {
  return tensor.to(scalar_type(call.results[i].dtype)).contiguous();
}

// ---- softmax and layer norm ----

Tensors softmax(const KernelCall& call) {
  return {at::_softmax(call.input(0), call.attributes.integer("dim"), false).contiguous()};
}

Tensors softmax_backward(const KernelCall& call) {
  return {
      at::_softmax_backward_data(
          call.input(0), call.input(1), call.attributes.integer("dim"), call.input(1).scalar_type())
          .contiguous()};
}

Tensors log_softmax(const KernelCall& call) {
  return {at::_log_softmax(call.input(0), call.attributes.integer("dim"), false).contiguous()};
}

Tensors log_softmax_backward(const KernelCall& call) {
  return {
      at::_log_softmax_backward_data(
          call.input(0), call.input(1), call.attributes.integer("dim"), call.input(1).scalar_type())
          .contiguous()};
}

std::vector<std::int64_t> normalized_shape(const KernelCall& call, const at::Tensor& x) {
  const std::int64_t dims = call.attributes.integer("dims");
  return x.sizes().slice(static_cast<std::size_t>(x.dim() - dims)).vec();
}

/// ATen keeps mean and rstd in float for narrow inputs only when the weight is float.
std::optional<at::Tensor> norm_operand(const at::Tensor& x, const at::Tensor& operand) {
  return operand.to(arithmetic_type(x.scalar_type()));
}

std::optional<at::Tensor> norm_weight(const KernelCall& call,
                                      const at::Tensor& x,
                                      std::size_t index) {
  if (call.attributes.flag_or("weight", false)) {
    return norm_operand(x, call.input(index));
  }
  const at::ScalarType wide = arithmetic_type(x.scalar_type());
  if (wide != x.scalar_type()) {
    return at::ones(normalized_shape(call, x), x.options().dtype(wide));
  }
  return std::nullopt;
}

Tensors layer_norm(const KernelCall& call) {
  const at::Tensor& x = call.input(0);
  const bool has_weight = call.attributes.flag_or("weight", false);
  std::optional<at::Tensor> bias;
  if (call.attributes.flag_or("bias", false)) {
    bias = norm_operand(x, call.input(has_weight ? 2 : 1));
  }
  auto [y, mean, rstd] = at::native_layer_norm(
      x, normalized_shape(call, x), norm_weight(call, x, 1), bias, call.attributes.number("eps"));
  return {to_result(call, 0, y),
          to_result(call, 1, mean).view(call.results[1].shape),
          to_result(call, 2, rstd).view(call.results[2].shape)};
}

Tensors layer_norm_backward(const KernelCall& call) {
  const at::Tensor& x = call.input(1);
  const bool has_weight = call.attributes.flag_or("weight", false);
  const bool has_bias = call.attributes.flag_or("bias", false);
  std::vector<std::int64_t> statistics_shape(x.sizes().begin(), x.sizes().end());
  for (std::int64_t i = 0; i < call.attributes.integer("dims"); ++i) {
    statistics_shape[static_cast<std::size_t>(x.dim() - 1 - i)] = 1;
  }
  const std::optional<at::Tensor> weight = norm_weight(call, x, 4);
  std::optional<at::Tensor> bias;
  if (has_bias) {  // its values are not read
    bias =
        at::empty(normalized_shape(call, x), x.options().dtype(arithmetic_type(x.scalar_type())));
  }
  auto [dx, dweight, dbias] = at::native_layer_norm_backward(call.input(0),
                                                             x,
                                                             normalized_shape(call, x),
                                                             call.input(2).view(statistics_shape),
                                                             call.input(3).view(statistics_shape),
                                                             weight,
                                                             bias,
                                                             {true, has_weight, has_bias});
  Tensors results{to_result(call, 0, dx)};
  if (has_weight) {
    results.push_back(to_result(call, results.size(), dweight));
  }
  if (has_bias) {
    results.push_back(to_result(call, results.size(), dbias));
  }
  return results;
}

// ---- lookups in a table of which this rank may hold only some rows ----

struct LocalIds {
  at::Tensor ids;     ///< relative to the shard
  at::Tensor inside;  ///< bool: the row is in this shard
};

LocalIds localize(const at::Tensor& ids, const GlobalAxis& rows) {
  at::Tensor local = ids.sub(rows.start);
  at::Tensor inside = local.ge(0).logical_and_(local.lt(rows.local_size));
  return {std::move(local), std::move(inside)};
}

/// Rows of this rank's part of a table, zeros for ids of other ranks; takes no memory.
void copy_rows(const at::Tensor& weight,
               const at::Tensor& ids,
               const GlobalAxis& rows,
               const at::Tensor& result) {
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  const auto* const from = static_cast<const std::byte*>(weight.const_data_ptr());
  auto* const to = static_cast<std::byte*>(result.mutable_data_ptr());
  const auto width = static_cast<std::size_t>(weight.size(1)) * weight.itemsize();
  constexpr std::int64_t kRows = 256;  // worth a thread
  at::parallel_for(0, ids.numel(), kRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = id[i] - rows.start;
      std::byte* const target = to + static_cast<std::size_t>(i) * width;
      if (row >= 0 && row < rows.local_size) {
        std::memcpy(target, from + static_cast<std::size_t>(row) * width, width);
      } else {
        std::memset(target, 0, width);
      }
    }
  });
}

template <class T>
void add_rows_in(const at::Tensor& g,
                 const at::Tensor& ids,
                 const GlobalAxis& rows,
                 std::int64_t padding,
                 const at::Tensor& result) {
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  const auto* const from = g.const_data_ptr<T>();
  auto* const to = result.mutable_data_ptr<T>();
  const std::int64_t width = result.size(1);
  constexpr std::int64_t kRows = 1000;  // worth a thread
  at::parallel_for(0, result.size(0), kRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      const std::int64_t row = id[i] - rows.start;
      if (id[i] == padding || row < first || row >= last) {
        continue;
      }
      for (std::int64_t k = 0; k < width; ++k) {
        to[row * width + k] = static_cast<T>(to[row * width + k] + from[i * width + k]);
      }
    }
  });
}

/// Adds each row of `g` to that of its id, in the order of the ids as ATen does, where this rank
/// has it; takes no memory.
void add_rows(const at::Tensor& g,
              const at::Tensor& ids,
              const GlobalAxis& rows,
              std::int64_t padding,
              const at::Tensor& result) {
  switch (g.scalar_type()) {
    case at::kDouble:
      return add_rows_in<double>(g, ids, rows, padding, result);
    case at::kHalf:
      return add_rows_in<at::Half>(g, ids, rows, padding, result);
    case at::kBFloat16:
      return add_rows_in<at::BFloat16>(g, ids, rows, padding, result);
    default:
      return add_rows_in<float>(g, ids, rows, padding, result);
  }
}

Tensors embedding(const KernelCall& call) {
  const at::Tensor& weight = call.input(0);
  const at::Tensor& ids = call.input(1);
  const GlobalAxis* rows = call.position("v");
  if (rows == nullptr || rows->whole()) {
    return {at::embedding(weight, ids).contiguous()};
  }
  if (ids.is_cpu() && ids.scalar_type() == at::kLong) {
    const at::Tensor result = at::empty(call.results[0].shape, weight.options());
    copy_rows(weight, ids, *rows, result);
    return {result};
  }
  const LocalIds local = localize(ids, *rows);
  const at::Tensor result = at::embedding(weight, local.ids.clamp(0, rows->local_size - 1));
  result.masked_fill_(local.inside.logical_not().unsqueeze(-1), 0);
  return {result.contiguous()};
}

Tensors embedding_backward(const KernelCall& call) {
  const at::Tensor& g = call.input(0);
  const at::Tensor& ids = call.input(1);
  const std::int64_t local_rows = call.results[0].shape[0];
  constexpr std::int64_t kSkip = -1;  // ATen's padding index: rows that get no gradient
  const std::int64_t padding = call.attributes.integer_or("padding_idx", kSkip);
  const GlobalAxis* rows = call.position("v");
  if (rows == nullptr || rows->whole()) {
    return {to_result(call, 0, at::embedding_dense_backward(g, ids, local_rows, padding, false))};
  }
  if (ids.is_cpu() && ids.scalar_type() == at::kLong) {
    const at::Tensor result = at::zeros(call.results[0].shape, g.options());
    add_rows(g, ids, *rows, padding, result);
    return {result};
  }
  const LocalIds local = localize(ids, *rows);
  local.inside.logical_and_(ids.ne(padding));
  local.ids.masked_fill_(local.inside.logical_not(), kSkip);
  return {to_result(call, 0, at::embedding_dense_backward(g, local.ids, local_rows, kSkip, false))};
}

// ---- softmax cross-entropy in pieces ----

/// Calls row(number) for all rows, on ATen's threads.
template <class Row>
void for_each_row(std::int64_t rows, std::int64_t classes, const Row& row) {
  at::parallel_for(0,
                   rows,
                   std::max<std::int64_t>(1, 16 * kChunk / std::max<std::int64_t>(1, classes)),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t r = first; r < last; ++r) {
                       row(r);
                     }
                   });
}

template <class C>
void sum_exp_in(const at::Tensor& x, const at::Tensor& m, const at::Tensor& result) {
  const std::int64_t classes = x.size(-1);
  for_each_row(result.numel(), classes, [&](std::int64_t row) {
    Chunk<C> shift;
    Chunk<C> sum;
    load(m, row, 1, shift);
    sum[0] = 0;
    for (std::int64_t done = 0; done < classes; done += kChunk) {
      const std::int64_t count = std::min(kChunk, classes - done);
      Chunk<C> part;
      load(x, row * classes + done, count, part);
      sum[0] += sum_of_exp(part.data(), count, shift[0]);
    }
    store(result, row, 1, sum);
  });
}

Tensors sum_exp(const KernelCall& call) {
  const at::Tensor result =
      at::empty(call.results[0].shape, options_of(call.input(0), call.results[0].dtype));
  if (arithmetic_type(call.input(0).scalar_type()) == at::kDouble) {
    sum_exp_in<double>(call.input(0), call.input(1), result);
  } else {
    sum_exp_in<float>(call.input(0), call.input(1), result);
  }
  return {result};
}

/// Label of each row in this shard's classes, clamped into range; which rows count here.
LocalIds labels(const KernelCall& call, std::size_t target_index, std::int64_t classes) {
  const at::Tensor target = call.input(target_index).reshape({-1});
  const GlobalAxis* axis = call.position("v");
  const GlobalAxis here = axis == nullptr ? GlobalAxis{"v", 1, 0, classes, classes} : *axis;
  LocalIds local = localize(target, here);
  const at::Tensor known = target.ge(0).logical_and_(target.lt(here.global_size));
  known.logical_or_(target.eq(call.attributes.integer_or("ignore_index", -100)));
  TORCH_CHECK_VALUE(
      known.all().item<bool>(), "a class label is outside [0, ", here.global_size, ")");
  local.inside.logical_and_(target.ne(call.attributes.integer_or("ignore_index", -100)));
  local.ids.clamp_(0, classes - 1);
  return local;
}

Tensors label_score(const KernelCall& call) {
  const std::int64_t classes = call.input(0).size(-1);
  const at::Tensor logits = call.input(0).view({-1, classes});
  const LocalIds local = labels(call, 1, classes);
  const at::Tensor lse = call.input(2).reshape({-1});
  const at::Tensor score =
      logits.gather(1, local.ids.to(at::kLong).unsqueeze(1)).squeeze(1).to(lse.scalar_type());
  score.sub_(lse).masked_fill_(local.inside.logical_not(), 0);
  return {to_result(call, 0, score).view(call.results[0].shape)};
}

/// g · (onehot(label) − e^(logits − lse)). Rows that are ignored have no gradient at all; rows
/// whose label is another shard's still have the softmax part.
template <class C>
void label_score_backward_in(const KernelCall& call,
                             const LocalIds& local,
                             const at::Tensor& result) {
  const std::int64_t classes = call.input(1).size(-1);
  const std::int64_t ignored = call.attributes.integer_or("ignore_index", -100);
  const at::Tensor target = call.input(2).reshape({-1}).to(at::kLong);
  const auto* const targets = target.const_data_ptr<std::int64_t>();
  const auto* const ids = local.ids.const_data_ptr<std::int64_t>();
  const auto* const inside = local.inside.const_data_ptr<bool>();
  for_each_row(target.numel(), classes, [&](std::int64_t row) {
    Chunk<C> g;
    Chunk<C> lse;
    load(call.input(0), row, 1, g);
    load(call.input(3), row, 1, lse);
    const C factor = targets[row] == ignored ? C{0} : g[0];
    for (std::int64_t done = 0; done < classes; done += kChunk) {
      const std::int64_t count = std::min(kChunk, classes - done);
      Chunk<C> part;
      load(call.input(1), row * classes + done, count, part);
      scaled_exp(part.data(), count, lse[0], -factor, part.data());
      const std::int64_t label = ids[row] - done;
      if (inside[row] && label >= 0 && label < count) {
        part[static_cast<std::size_t>(label)] += factor;
      }
      store(result, row * classes + done, count, part);
    }
  });
}

Tensors label_score_backward(const KernelCall& call) {
  LocalIds local = labels(call, 2, call.input(1).size(-1));
  local.ids = local.ids.to(at::kLong);
  const at::Tensor result =
      at::empty(call.results[0].shape, options_of(call.input(1), call.results[0].dtype));
  if (arithmetic_type(call.input(1).scalar_type()) == at::kDouble) {
    label_score_backward_in<double>(call, local, result);
  } else {
    label_score_backward_in<float>(call, local, result);
  }
  return {result};
}

}  // namespace

std::vector<KernelEntry> model_kernels() {
  return {
      {"softmax", softmax},
      {"softmax_backward", softmax_backward},
      {"log_softmax", log_softmax},
      {"log_softmax_backward", log_softmax_backward},
      {"layer_norm", layer_norm},
      {"layer_norm_backward", layer_norm_backward},
      {"embedding", embedding},
      {"embedding_backward", embedding_backward},
      {"sum_exp", sum_exp},
      {"label_score", label_score},
      {"label_score_backward", label_score_backward},
  };
}

}  // namespace shardplan::runtime
