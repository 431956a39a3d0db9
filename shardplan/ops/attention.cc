// Scaled dot-product attention with grouped key and value heads, and its backward op.
//
// Axes: b batch, q and k positions, h = g · r query heads over g key heads, d and e head sizes. One
// query head reads one key head, so g splits everything; r splits the query heads within a group
// and needs the group's keys whole. Scores are a softmax over k and products over d, so k, d and e
// stay whole. q splits the scores row by row, unless the kernel derives the causal mask from the
// position (a mask operand is cut along with q instead). In the backward pass keys and values
// collect sums over q and r.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

/// Sizes of an attention, from the types of its operands.
struct Sizes {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;      ///< of q
  std::int64_t key_heads = 0;  ///< of k and v; divides heads
  std::int64_t head_size = 0;  ///< of q and k
  std::int64_t value_size = 0;
};

bool heads_last(const ir::Attributes& attributes) {
  return attributes.string("layout") == "bshd";
}

Sizes sizes_of(const ir::TensorType& q,
               const ir::TensorType& k,
               const ir::TensorType& v,
               const ir::Attributes& attributes) {
  const std::size_t position = heads_last(attributes) ? 1 : 2;
  const std::size_t head = heads_last(attributes) ? 2 : 1;
  return Sizes{.batch = q.shape[0],
               .queries = q.shape[position],
               .keys = k.shape[position],
               .heads = q.shape[head],
               .key_heads = k.shape[head],
               .head_size = q.shape[3],
               .value_size = v.shape[3]};
}

ir::Shape tensor_shape(bool heads_are_last,
                       std::int64_t batch,
                       std::int64_t positions,
                       std::int64_t heads,
                       std::int64_t size) {
  return heads_are_last ? ir::Shape{batch, positions, heads, size}
                        : ir::Shape{batch, heads, positions, size};
}

bool has_mask(const ir::Attributes& attributes) {
  return attributes.flag_or("mask", false);
}

Status check_mask(Inputs inputs, std::size_t mask, const Sizes& sizes, ir::DType dtype) {
  const ir::TensorType& type = inputs[mask];
  if (type.dtype != ir::DType::kBool && type.dtype != dtype) {
    return invalid_input("the mask is " + ir::to_string(type) + ", bool or " +
                         std::string(ir::dtype_name(dtype)) + " expected");
  }
  const ir::Shape full{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
  bool fits = type.shape.size() == full.size();
  for (std::size_t d = 0; fits && d < full.size(); ++d) {
    fits = type.shape[d] == full[d] || type.shape[d] == 1;
  }
  if (!fits) {
    return invalid_input("the mask is " + ir::to_string(type) + ", a shape that broadcasts to " +
                         list_sizes(full) + " expected");
  }
  return {};
}

Status check_attention_attributes(const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"layout", AttributeKind::kText},
                                              {"causal", AttributeKind::kFlag, false},
                                              {"scale", AttributeKind::kNumber},
                                              {"mask", AttributeKind::kFlag, false}}));
  const std::string& layout = attributes.string("layout");
  if (layout != "bshd" && layout != "bhsd") {
    return invalid_input("layout is \"" + layout + "\", \"bshd\" or \"bhsd\" expected");
  }
  if (attributes.flag_or("causal", false) && has_mask(attributes)) {
    return invalid_input("causal attention takes no mask operand: fold one into the other");
  }
  return {};
}

/// Checks q, k, v at operands `first`, first + 1, first + 2.
Status check_operands(Inputs inputs, std::size_t first, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, first));
  for (std::size_t i = first; i < first + 3; ++i) {
    SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, first, i));
    if (inputs[i].rank() != 4) {
      return invalid_input("operand " + std::to_string(i) + " is " + ir::to_string(inputs[i]) +
                           ", 4 dimensions expected");
    }
  }
  const Sizes sizes = sizes_of(inputs[first], inputs[first + 1], inputs[first + 2], attributes);
  const bool last = heads_last(attributes);
  SHARDPLAN_RETURN_IF_ERROR(
      check_shape(inputs,
                  first + 1,
                  tensor_shape(last, sizes.batch, sizes.keys, sizes.key_heads, sizes.head_size),
                  "k (batch and head size of q)"));
  SHARDPLAN_RETURN_IF_ERROR(
      check_shape(inputs,
                  first + 2,
                  tensor_shape(last, sizes.batch, sizes.keys, sizes.key_heads, sizes.value_size),
                  "v (batch, positions and heads of k)"));
  if (sizes.heads % sizes.key_heads != 0) {
    return invalid_input(std::to_string(sizes.heads) + " query heads are no multiple of " +
                         std::to_string(sizes.key_heads) + " key heads");
  }
  return {};
}

/// The types of y and logsumexp.
Types result_types(const Sizes& sizes, ir::DType dtype, const ir::Attributes& attributes) {
  return Types{
      {dtype,
       tensor_shape(
           heads_last(attributes), sizes.batch, sizes.queries, sizes.heads, sizes.value_size)},
      {accumulation_dtype(dtype), {sizes.batch, sizes.heads, sizes.queries}}};
}

/// q, k, v, [mask] → y, logsumexp.
Result<Types> infer_attention(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attention_attributes(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, has_mask(attributes) ? 4 : 3));
  SHARDPLAN_RETURN_IF_ERROR(check_operands(inputs, 0, attributes));
  const Sizes sizes = sizes_of(inputs[0], inputs[1], inputs[2], attributes);
  if (has_mask(attributes)) {
    SHARDPLAN_RETURN_IF_ERROR(check_mask(inputs, 3, sizes, inputs[0].dtype));
  }
  return result_types(sizes, inputs[0].dtype, attributes);
}

/// g, q, k, v, y, logsumexp, [mask] → dq, dk, dv.
Result<Types> infer_attention_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attention_attributes(attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, has_mask(attributes) ? 7 : 6));
  SHARDPLAN_RETURN_IF_ERROR(check_operands(inputs, 1, attributes));
  const Sizes sizes = sizes_of(inputs[1], inputs[2], inputs[3], attributes);
  const Types forward = result_types(sizes, inputs[1].dtype, attributes);
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, forward[0], "the gradient"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 4, forward[0], "the result of attention"));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 5, forward[1], "logsumexp"));
  if (has_mask(attributes)) {
    SHARDPLAN_RETURN_IF_ERROR(check_mask(inputs, 6, sizes, inputs[1].dtype));
  }
  return Types{inputs[1], inputs[2], inputs[3]};
}

/// Texts of the operands: of q's form (q, y), of k's form (k, v), logsumexp and mask.
struct Texts {
  std::string query;
  std::string key;
  std::string logsumexp;
  std::string mask;
};

/// `marker` is that of the axes q and r.
Texts texts_of(const ir::Attributes& attributes, const std::string& marker) {
  const std::string q = attributes.flag_or("causal", false) ? "[q]" : marker + "q";
  const std::string heads = "(g " + marker + "r)";
  const bool last = heads_last(attributes);
  return Texts{.query = last ? "b " + q + " " + heads + " *" : "b " + heads + " " + q + " *",
               .key = last ? "b * g *" : "b g * *",
               .logsumexp = "b " + heads + " " + q,
               .mask = "b " + heads + " " + q + " *"};
}

AxisMap axes_attention(const OpView& op) {
  const Texts texts = texts_of(op.attributes, "");
  std::string text = texts.query + ", " + texts.key + ", " + texts.key;
  if (has_mask(op.attributes)) {
    text += ", " + texts.mask;
  }
  text += " -> " + texts.query + ", " + texts.logsumexp;
  return make_axis_map(text, op.inputs, op.results);
}

/// q and r are in dq, but summed in dk and dv.
AxisMap axes_attention_backward(const OpView& op) {
  const Texts texts = texts_of(op.attributes, "+");
  std::string text = texts.query + ", " + texts.query + ", " + texts.key + ", " + texts.key + ", " +
                     texts.query + ", " + texts.logsumexp;
  if (has_mask(op.attributes)) {
    text += ", " + texts.mask;
  }
  text += " -> " + texts.query + ", " + texts.key + ", " + texts.key;
  return make_axis_map(text, op.inputs, op.results);
}

Flops pairs(const Sizes& sizes) {
  return static_cast<Flops>(sizes.batch * sizes.heads) * static_cast<Flops>(sizes.queries) *
         static_cast<Flops>(sizes.keys);
}

/// Masked pairs count, as in PyTorch's flop counter and in the papers on model FLOPs. Scores (d)
/// and weighted values (e).
Flops flops_attention(const OpView& op) {
  const Sizes sizes = sizes_of(op.inputs[0], op.inputs[1], op.inputs[2], op.attributes);
  return 2 * pairs(sizes) * static_cast<Flops>(sizes.head_size + sizes.value_size);
}

/// Scores again (d), dP and dV (e), dQ and dK (d).
Flops flops_attention_backward(const OpView& op) {
  const Sizes sizes = sizes_of(op.inputs[1], op.inputs[2], op.inputs[3], op.attributes);
  return 2 * pairs(sizes) * static_cast<Flops>(3 * sizes.head_size + 2 * sizes.value_size);
}

// Memory of the CPU kernels: blocks of scores of some queries by some keys at a time. With grouped
// heads the kernel runs once for each of the r query heads of a group, for all groups at once.

/// Queries and keys that the kernel handles at a time.
struct Block {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

Block block_of(const Sizes& sizes) {
  constexpr std::int64_t kKeys = 512;
  std::int64_t queries = 32;
  if (sizes.queries >= 768) {
    queries = 256;
  } else if (sizes.queries >= 192) {
    queries = 64;
  }
  return Block{std::min(queries, sizes.queries), std::min(kKeys, sizes.keys)};
}

/// The peak beyond the results when the kernel needs `kernel` bytes: a boolean mask becomes an
/// additive one in the type of q first, by way of its negation, before there is any result.
Bytes with_additive_mask(const OpView& op, std::size_t mask, Bytes kernel) {
  if (!has_mask(op.attributes) || op.inputs[mask].dtype != ir::DType::kBool) {
    return kernel;
  }
  const Bytes additive = op.inputs[mask].numel() * ir::element_bytes(op.results[0].dtype);
  Bytes results = 0;
  for (const ir::TensorType& result : op.results) {
    results += result.bytes();
  }
  return additive + std::max(kernel, op.inputs[mask].numel() - results);
}

/// Without a kernel for head sizes that differ, scores and weights are there in full.
Bytes full_scores(const Sizes& sizes, Bytes element) {
  return 2 * sizes.batch * sizes.key_heads * sizes.queries * sizes.keys * element;
}

Bytes workspace_attention(const OpView& op) {
  const Sizes sizes = sizes_of(op.inputs[0], op.inputs[1], op.inputs[2], op.attributes);
  const Bytes narrow = ir::element_bytes(op.inputs[0].dtype);
  const Bytes wide = ir::element_bytes(op.results[1].dtype);
  const Block block = block_of(sizes);
  Bytes kernel = block.queries * (block.keys + 2 + sizes.value_size) * wide;
  if (narrow != wide) {
    kernel += block.queries * block.keys * narrow;
  }
  if (sizes.head_size != sizes.value_size) {
    kernel = full_scores(sizes, narrow);
  }
  if (sizes.heads != sizes.key_heads) {
    const std::int64_t rows = sizes.batch * sizes.key_heads * sizes.queries;
    kernel += rows * (sizes.value_size * narrow + wide);
  }
  return with_additive_mask(op, 3, kernel);
}

/// The kernel reads g and makes gradients with positions first: g, and then the gradients, are
/// copied from and to a heads-first layout.
struct Copies {
  Bytes before = 0;
  Bytes after = 0;
};

Copies layout_copies(const OpView& op, const Sizes& sizes) {
  Copies copies;
  if (heads_last(op.attributes)) {
    return copies;
  }
  if (sizes.heads > 1 && sizes.queries > 1) {
    copies.before = op.inputs[0].bytes();
    copies.after = op.results[0].bytes();
  }
  if (sizes.key_heads > 1 && sizes.keys > 1) {
    copies.after += op.results[1].bytes() + op.results[2].bytes();
  }
  return copies;
}

Bytes workspace_attention_backward(const OpView& op) {
  const Sizes sizes = sizes_of(op.inputs[1], op.inputs[2], op.inputs[3], op.attributes);
  const Bytes narrow = ir::element_bytes(op.inputs[1].dtype);
  const Bytes wide = ir::element_bytes(op.inputs[5].dtype);
  const Block block = block_of(sizes);
  Bytes kernel = block.queries * (2 * block.keys + 1) * wide;
  if (narrow != wide) {
    kernel += 2 * block.queries * block.keys * narrow;
  }
  if (sizes.head_size != sizes.value_size) {
    kernel = 2 * full_scores(sizes, narrow);
  }
  if (sizes.heads == sizes.key_heads) {
    const Copies copies = layout_copies(op, sizes);
    return with_additive_mask(op, 6, std::max(kernel + copies.before, copies.after));
  }
  // One query head of each group: its gradients, and a copy of its part of g.
  const std::int64_t group = sizes.heads / sizes.key_heads;
  kernel += op.results[0].bytes() / group + op.results[1].bytes() + op.results[2].bytes() +
            op.inputs[0].bytes() / group;
  return with_additive_mask(op, 6, kernel);
}

void gradient_attention(GradientBuilder& b) {
  b.refuse_output_gradient(1, "the gradient of attention's logsumexp");
  if (!b.output_gradient(0).valid()) {
    return;
  }
  std::vector<ir::ValueId> operands{
      b.output_gradient(0), b.input(0), b.input(1), b.input(2), b.output(0), b.output(1)};
  if (b.input_count() == 4) {
    operands.push_back(b.input(3));
    if (b.needed(3)) {
      b.refuse_output_gradient(0, "the gradient of attention's mask");
    }
  }
  const std::vector<ir::ValueId> gradients =
      b.emit_all("attention_backward", std::move(operands), b.attributes());
  for (std::size_t i = 0; i < 3; ++i) {
    b.set_input_gradient(i, gradients[i]);
  }
}

}  // namespace

std::vector<OpDef> attention_ops() {
  return {
      {.name = "attention",
       .summary = "softmax(scale · q·k + mask) · v, with the logsumexp of the scores",
       .infer = infer_attention,
       .axes = axes_attention,
       .flops = flops_attention,
       .workspace = workspace_attention,
       .gradient = gradient_attention,
       .matmul = true},
      {.name = "attention_backward",
       .summary = "gradients of attention's q, k and v",
       .infer = infer_attention_backward,
       .axes = axes_attention_backward,
       .flops = flops_attention_backward,
       .workspace = workspace_attention_backward,
       .matmul = true},
  };
}

}  // namespace shardplan::ops
