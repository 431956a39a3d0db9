#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "shardplan/runtime/kernel.h"

// Matrix products: einsum of two operands by mm and bmm, and attention.
//
// Einsum. Every letter is one of four groups: B (in both operands and the result), K (contracted),
// M (first operand and result), N (second operand and result). An operand whose letters stand group
// by group is a 3-D strided view that BLAS takes as it is; otherwise it is copied into that order.
// Read `choose_orders` (which order of letters inside each group copies least) and `einsum`.
namespace shardplan::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

// ---- einsum ----

bool contains(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

/// Letters of `from` that satisfy `keep`, in order.
template <class Keep>
std::string filter(const std::string& from, const Keep& keep) {
  std::string out;
  std::copy_if(from.begin(), from.end(), std::back_inserter(out), keep);
  return out;
}

struct Equation {
  std::string a, b, out;
};

Equation parse_equation(const std::string& text) {
  const std::size_t comma = text.find(',');
  const std::size_t arrow = text.find("->");
  return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
}

struct Groups {
  std::string batch, m, n, k;
};

/// The three groups of one operand or of the result, in the order [batch, rows, columns].
struct Layout {
  std::string batch, rows, columns;
  [[nodiscard]] std::string letters() const { return batch + rows + columns; }
};

/// Whether `letters`, in the order of its groups, is a strided matrix (batch) without a copy: each
/// group is one run of letters, and the unit stride is not the batch's.
bool strided(const std::string& letters, const Layout& layout) {
  for (const std::string& group : {layout.batch, layout.rows, layout.columns}) {
    if (!group.empty() && letters.find(group) == std::string::npos) {
      return false;
    }
  }
  return layout.batch.empty() || layout.batch == letters || letters.back() != layout.batch.back();
}

std::int64_t numel_of(const at::Tensor& tensor, const std::string& letters, const std::string& of) {
  std::int64_t product = 1;
  for (const char letter : of) {
    product *= tensor.size(static_cast<std::int64_t>(letters.find(letter)));
  }
  return product;
}

/// `tensor` as [batch, rows, columns], by a view where `strided`, else by a copy.
at::Tensor matrix(const at::Tensor& tensor, const std::string& letters, const Layout& layout) {
  const std::int64_t batch = numel_of(tensor, letters, layout.batch);
  const std::int64_t rows = numel_of(tensor, letters, layout.rows);
  const std::int64_t columns = numel_of(tensor, letters, layout.columns);
  if (strided(letters, layout)) {
    const auto stride = [&](const std::string& group) {
      return group.empty() ? std::int64_t{1}
                           : tensor.stride(static_cast<std::int64_t>(letters.find(group.back())));
    };
    return tensor.as_strided({batch, rows, columns},
                             {stride(layout.batch), stride(layout.rows), stride(layout.columns)});
  }
  std::vector<std::int64_t> permutation;
  for (const char letter : layout.letters()) {
    permutation.push_back(static_cast<std::int64_t>(letters.find(letter)));
  }
  return tensor.permute(permutation).contiguous().view({batch, rows, columns});
}

struct Orders {
  Groups groups;
  std::int64_t copied = std::numeric_limits<std::int64_t>::max();
};

/// Order of the letters inside each group that copies the fewest elements.
Groups choose_orders(const Equation& eq, const at::Tensor& a, const at::Tensor& b) {
  const auto in_a = [&](char c) { return contains(eq.a, c); };
  const auto in_b = [&](char c) { return contains(eq.b, c); };
  const auto in_out = [&](char c) { return contains(eq.out, c); };
  const auto batch = [&](char c) { return in_a(c) && in_b(c) && in_out(c); };
  const auto contracted = [&](char c) { return in_a(c) && in_b(c) && !in_out(c); };
  const auto only_a = [&](char c) { return in_a(c) && !in_b(c); };
  const auto only_b = [&](char c) { return in_b(c) && !in_a(c); };
  Orders best;
  for (const std::string* batch_like : {&eq.a, &eq.b, &eq.out}) {
    for (const std::string* k_like : {&eq.a, &eq.b}) {
      for (const std::string* m_like : {&eq.a, &eq.out}) {
        for (const std::string* n_like : {&eq.b, &eq.out}) {
          Orders now;
          now.groups = {filter(*batch_like, batch),
                        filter(*m_like, only_a),
                        filter(*n_like, only_b),
                        filter(*k_like, contracted)};
          const Groups& g = now.groups;
          now.copied = strided(eq.a, {g.batch, g.m, g.k}) ? 0 : a.numel();
          now.copied += strided(eq.b, {g.batch, g.k, g.n}) ? 0 : b.numel();
          const bool direct = eq.out == g.batch + g.m + g.n || eq.out == g.batch + g.n + g.m;
          now.copied += direct ? 0 : numel_of(a, eq.a, g.batch + g.m) * numel_of(b, eq.b, g.n);
          if (now.copied < best.copied) {
            best = now;
          }
        }
      }
    }
  }
  return best.groups;
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  if (left.size(0) == 1) {
    return at::mm(left.select(0, 0), right.select(0, 0));
  }
  return at::bmm(left, right);
}

Tensors einsum(const KernelCall& call) {
  const Equation eq = parse_equation(call.attributes.string("equation"));
  const at::Tensor& a = call.input(0);
  const at::Tensor& b = call.input(1);
  const Groups g = choose_orders(eq, a, b);
  const ir::Shape& shape = call.results[0].shape;
  if (eq.out == g.batch + g.n + g.m && eq.out != g.batch + g.m + g.n) {
    const at::Tensor left = matrix(b, eq.b, {g.batch, g.n, g.k});
    const at::Tensor right = matrix(a, eq.a, {g.batch, g.k, g.m});
    return {product(left, right).view(shape)};
  }
  const at::Tensor left = matrix(a, eq.a, {g.batch, g.m, g.k});
  const at::Tensor right = matrix(b, eq.b, {g.batch, g.k, g.n});
  const at::Tensor result = product(left, right);
  const std::string order = g.batch + g.m + g.n;
  if (eq.out == order) {
    return {result.view(shape)};
  }
  std::vector<std::int64_t> sizes;
  for (const char letter : order) {
    sizes.push_back(shape[eq.out.find(letter)]);
  }
  std::vector<std::int64_t> permutation;
  for (const char letter : eq.out) {
    permutation.push_back(static_cast<std::int64_t>(order.find(letter)));
  }
  return {result.view(sizes).permute(permutation).contiguous()};
}

// ---- attention ----

// q, k, v of all heads of a group: [b, heads, positions, width] views of whichever layout.
struct Heads {
  at::Tensor q, k, v;
};

bool positions_first(const KernelCall& call) {
  return call.attributes.string("layout") == "bshd";
}
/// Between the op's layout and [b, heads, positions, width]; its own inverse; a view.
at::Tensor swap_layout(const KernelCall& call, const at::Tensor& tensor) {
  return positions_first(call) ? tensor.transpose(1, 2) : tensor;
}

/// [b, g·r, ...] -> the heads j, r + j, 2r + j, ... that read key-value heads 0, 1, 2, ...
at::Tensor heads_of(const at::Tensor& tensor, std::int64_t groups, std::int64_t j) {
  return tensor.unflatten(1, {groups, tensor.size(1) / groups}).select(2, j);
}

/// Additive mask for the kernels, in the dtype of q; empty when the op has none.
std::optional<at::Tensor> additive_mask(const KernelCall& call,
                                        const at::Tensor& q,
                                        std::size_t mask_index) {
  if (!call.attributes.flag_or("mask", false)) {
    return std::nullopt;
  }
  const at::Tensor& given = call.input(mask_index);
  if (given.scalar_type() != at::kBool) {
    return given.to(q.scalar_type());
  }
  return at::zeros(given.sizes(), q.options())
      .masked_fill_(given.logical_not(), -std::numeric_limits<double>::infinity());
}

/// The mask of the heads that heads_of takes, where the mask differs by head.
std::optional<at::Tensor> mask_of(const std::optional<at::Tensor>& mask,
                                  std::int64_t groups,
                                  std::int64_t j) {
  return mask && mask->size(1) > 1 ? heads_of(*mask, groups, j) : mask;
}

/// softmax(scale · q kᵀ + mask) before normalisation: the scores, in full.
at::Tensor scores_of(const Heads& h,
                     double scale,
                     bool causal,
                     const std::optional<at::Tensor>& mask) {
  at::Tensor scores = at::matmul(h.q, h.k.transpose(2, 3)).mul_(scale);
  if (mask) {
    scores.add_(*mask);
  }
  if (causal) {
    const at::Tensor rows = at::arange(h.q.size(2), at::TensorOptions(at::kLong)).unsqueeze(1);
    scores.masked_fill_(at::arange(h.k.size(2), at::TensorOptions(at::kLong)).gt(rows),
                        -std::numeric_limits<double>::infinity());
  }
  return scores;
}

/// One head of each group: y, logsumexp.
std::tuple<at::Tensor, at::Tensor> attend(const Heads& h,
                                          double scale,
                                          bool causal,
                                          const std::optional<at::Tensor>& mask) {
  if (h.q.size(3) == h.v.size(3)) {
    return at::_scaled_dot_product_flash_attention_for_cpu(h.q, h.k, h.v, 0.0, causal, mask, scale);
  }
  const at::Tensor scores = scores_of(h, scale, causal, mask);
  const at::Tensor logsumexp = scores.logsumexp(3);
  const at::Tensor weights = scores.sub(logsumexp.unsqueeze(3)).exp_();
  return {at::matmul(weights, h.v), logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const at::Tensor& g,
    const Heads& h,
    const at::Tensor& y,
    const at::Tensor& logsumexp,
    double scale,
    bool causal,
    const std::optional<at::Tensor>& mask) {
  if (h.q.size(3) == h.v.size(3)) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        g, h.q, h.k, h.v, y, logsumexp, 0.0, causal, mask, scale);
  }
  const at::Tensor scores = scores_of(h, scale, causal, mask);
  const at::Tensor weights = scores.sub(logsumexp.to(scores.scalar_type()).unsqueeze(3)).exp_();
  const at::Tensor dv = at::matmul(weights.transpose(2, 3), g);
  const at::Tensor row = g.mul(y).sum(3, /*keepdim=*/true);
  const at::Tensor ds = at::matmul(g, h.v.transpose(2, 3)).sub_(row).mul_(weights).mul_(scale);
  return {at::matmul(ds, h.k), at::matmul(ds.transpose(2, 3), h.q), dv};
}

at::Tensor empty_result(const KernelCall& call, std::size_t i) {
  return at::empty(call.results[i].shape, options_of(call.input(0), call.results[i].dtype));
}

Tensors attention(const KernelCall& call) {
  const at::Tensor q = swap_layout(call, call.input(0));
  const at::Tensor k = swap_layout(call, call.input(1));
  const at::Tensor v = swap_layout(call, call.input(2));
  const std::optional<at::Tensor> mask = additive_mask(call, q, 3);
  const double scale = call.attributes.number("scale");
  const bool causal = call.attributes.flag_or("causal", false);
  const std::int64_t groups = k.size(1);
  const std::int64_t repeats = q.size(1) / groups;
  if (repeats == 1) {
    auto [y, logsumexp] = attend({q, k, v}, scale, causal, mask);
    return {swap_layout(call, y).contiguous(),
            logsumexp.to(scalar_type(call.results[1].dtype)).contiguous()};
  }
  // Grouped heads: one kernel call for each of the r query heads of a group, so that keys and
  // values are never expanded.
  const at::Tensor result = empty_result(call, 0);
  const at::Tensor all_logsumexp = empty_result(call, 1);
  for (std::int64_t j = 0; j < repeats; ++j) {
    auto [y, logsumexp] =
        attend({heads_of(q, groups, j), k, v}, scale, causal, mask_of(mask, groups, j));
    heads_of(swap_layout(call, result), groups, j).copy_(y);
    heads_of(all_logsumexp, groups, j).copy_(logsumexp);
  }
  return {result, all_logsumexp};
}

Tensors attention_backward(const KernelCall& call) {
  const at::Tensor g = swap_layout(call, call.input(0));
  const at::Tensor q = swap_layout(call, call.input(1));
  const at::Tensor k = swap_layout(call, call.input(2));
  const at::Tensor v = swap_layout(call, call.input(3));
  const at::Tensor y = swap_layout(call, call.input(4));
  const at::Tensor& logsumexp = call.input(5);
  const std::optional<at::Tensor> mask = additive_mask(call, q, 6);
  const double scale = call.attributes.number("scale");
  const bool causal = call.attributes.flag_or("causal", false);
  const std::int64_t groups = k.size(1);
  const std::int64_t repeats = q.size(1) / groups;
  const auto own_layout = [&](const at::Tensor& t) { return swap_layout(call, t).contiguous(); };
  if (repeats == 1) {
    auto [dq, dk, dv] = attend_backward(g, {q, k, v}, y, logsumexp, scale, causal, mask);
    return {own_layout(dq), own_layout(dk), own_layout(dv)};
  }
  const at::Tensor all_dq = empty_result(call, 0);
  at::Tensor sum_dk;
  at::Tensor sum_dv;
  for (std::int64_t j = 0; j < repeats; ++j) {
    const Heads heads{heads_of(q, groups, j), k, v};
    auto [dq, dk, dv] = attend_backward(heads_of(g, groups, j),
                                        heads,
                                        heads_of(y, groups, j),
                                        heads_of(logsumexp, groups, j),
                                        scale,
                                        causal,
                                        mask_of(mask, groups, j));
    heads_of(swap_layout(call, all_dq), groups, j).copy_(dq);
    if (j == 0) {
      sum_dk = own_layout(dk);
      sum_dv = own_layout(dv);
    } else {
      sum_dk.add_(swap_layout(call, dk));
      sum_dv.add_(swap_layout(call, dv));
    }
  }
  return {all_dq, sum_dk, sum_dv};
}

}  // namespace

std::vector<KernelEntry> product_kernels() {
  return {
      {"einsum", einsum},
      {"attention", attention},
      {"attention_backward", attention_backward},
  };
}

}  // namespace shardplan::runtime
