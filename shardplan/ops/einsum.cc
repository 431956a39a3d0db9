// Products of two tensors with named dimensions: every matrix product of a model.

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

/// The three terms of "ab,bc->ac".
struct Equation {
  std::string_view a;
  std::string_view b;
  std::string_view result;
};

bool has_letter(std::string_view term, char letter) {
  return term.find(letter) != std::string_view::npos;
}

Result<Equation> parse_equation(const std::string& text) {
  const std::size_t comma = text.find(',');
  const std::size_t arrow = text.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) {
    return invalid_input("equation \"" + text + "\" has not the form \"ab,bc->ac\"");
  }
  const std::string_view view = text;
  const Equation equation{
      view.substr(0, comma), view.substr(comma + 1, arrow - comma - 1), view.substr(arrow + 2)};
  for (const std::string_view term : {equation.a, equation.b, equation.result}) {
    for (std::size_t i = 0; i < term.size(); ++i) {
      if (std::isalpha(static_cast<unsigned char>(term[i])) == 0) {
        return invalid_input("equation \"" + text + "\": '" + term[i] + "' is no letter");
      }
      if (has_letter(term.substr(i + 1), term[i])) {
        return invalid_input("equation \"" + text + "\": '" + term[i] +
                             "' occurs twice in one term");
      }
    }
  }
  const auto check_term = [&](std::string_view term, std::string_view one, std::string_view other) {
    return std::find_if(term.begin(), term.end(), [&](char letter) {
      return !has_letter(one, letter) && !has_letter(other, letter);
    });
  };
  if (check_term(equation.a, equation.b, equation.result) != equation.a.end() ||
      check_term(equation.b, equation.a, equation.result) != equation.b.end() ||
      check_term(equation.result, equation.a, equation.b) != equation.result.end()) {
    return invalid_input("equation \"" + text + "\": every letter must occur in two of its terms");
  }
  return equation;
}

/// The equation of an op that inference has accepted.
Equation equation_of(const ir::Attributes& attributes) {
  const Result<Equation> equation = parse_equation(attributes.string("equation"));
  SHARDPLAN_CHECK(equation.has_value()) << equation.error().text();
  return *equation;
}

Result<Types> infer_einsum(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"equation", AttributeKind::kText}}));
  const std::string& text = attributes.string("equation");
  SHARDPLAN_ASSIGN_OR_RETURN(const Equation equation, parse_equation(text));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  const std::array<std::string_view, 2> terms{equation.a, equation.b};
  for (std::size_t i = 0; i < 2; ++i) {
    if (terms[i].size() != inputs[i].shape.size()) {
      return invalid_input("equation \"" + text + "\" names " + std::to_string(terms[i].size()) +
                           " dimensions of operand " + std::to_string(i) + ", which is " +
                           ir::to_string(inputs[i]));
    }
  }
  ir::TensorType result{inputs[0].dtype, {}};
  for (std::size_t d = 0; d < equation.b.size(); ++d) {
    const std::size_t other = equation.a.find(equation.b[d]);
    if (other != std::string_view::npos && inputs[0].shape[other] != inputs[1].shape[d]) {
      return invalid_input("equation \"" + text + "\": '" + equation.b[d] + "' has size " +
                           std::to_string(inputs[0].shape[other]) + " in " +
                           ir::to_string(inputs[0]) + " and " + std::to_string(inputs[1].shape[d]) +
                           " in " + ir::to_string(inputs[1]));
    }
  }
  for (const char letter : equation.result) {
    const std::size_t in_a = equation.a.find(letter);
    result.shape.push_back(in_a != std::string_view::npos
                               ? inputs[0].shape[in_a]
                               : inputs[1].shape[equation.b.find(letter)]);
  }
  return Types{result};
}

std::string spaced(std::string_view letters) {
  std::string out;
  for (const char letter : letters) {
    out += letter;
    out += ' ';
  }
  return out;
}

/// The letters are the axes. Bilinear: one operand may be a partial sum while the other is whole.
AxisMap axes_einsum(const OpView& op) {
  const Equation equation = equation_of(op.attributes);
  return make_axis_map(
      spaced(equation.a) + "," + spaced(equation.b) + "->" + spaced(equation.result),
      op.inputs,
      op.results,
      {{{0}, {0}}, {{1}, {0}}});
}

/// A multiply-add for every combination of all letters.
Flops flops_einsum(const OpView& op) {
  const Equation equation = equation_of(op.attributes);
  auto total = static_cast<Flops>(op.inputs[0].numel());
  for (std::size_t d = 0; d < equation.b.size(); ++d) {
    if (!has_letter(equation.a, equation.b[d])) {
      total *= static_cast<Flops>(op.inputs[1].shape[d]);
    }
  }
  return 2 * total;
}

// Memory of the kernel: it takes an operand as a strided matrix when its letters stand group by
// group (batch, rows, columns), else it copies it; a result in another order is copied at the end.

std::string joined(std::string first, std::string_view second, std::string_view third) {
  first += second;
  first += third;
  return first;
}

bool is_strided(std::string_view term,
                const std::string& batch,
                const std::string& rows,
                const std::string& columns) {
  for (const std::string& group : {batch, rows, columns}) {
    if (term.find(group) == std::string_view::npos) {
      return false;
    }
  }
  return batch.empty() || batch == term || term.back() != batch.back();
}

/// Letters of `like` that are in all of `in` and not in `outside`.
std::string group_like(std::string_view like,
                       std::initializer_list<std::string_view> in,
                       std::string_view outside) {
  std::string out;
  std::copy_if(like.begin(), like.end(), std::back_inserter(out), [&](char letter) {
    return !has_letter(outside, letter) &&
           std::all_of(in.begin(), in.end(), [&](std::string_view term) {
             return has_letter(term, letter);
           });
  });
  return out;
}

/// The product that is left to the library: [batch, rows, inner] by [batch, inner, columns].
struct Product {
  Bytes copied = std::numeric_limits<Bytes>::max();
  std::int64_t rows = 1;
  std::int64_t inner = 1;
  std::int64_t columns = 1;
  bool turned = false;  ///< the left operand's rows lie side by side
};

std::int64_t size_of(const std::string& letters,
                     std::string_view term,
                     const ir::TensorType& type) {
  std::int64_t size = 1;
  for (const char letter : letters) {
    size *= type.shape[term.find(letter)];
  }
  return size;
}

/// The largest block of up to `most` (and not below `least`) whose multiple overshoots `size`
/// least.
std::int64_t even_block(std::int64_t size, std::int64_t least, std::int64_t most) {
  most = std::min(most, size);
  std::int64_t best = most;
  std::int64_t overshoot = size;
  for (std::int64_t block = most; block >= std::min(least, most) && overshoot > 0; --block) {
    const std::int64_t over = (size + block - 1) / block * block - size;
    if (over < overshoot) {
      overshoot = over;
      best = block;
    }
  }
  return best;
}

/// What oneDNN takes for a product in bf16 on a CPU with AVX-512 and one thread: sums in f32 of a
/// block of rows, a block of the right operand, and one of a left operand that is turned around.
/// Where such a one goes through several blocks of the inner dimension, sums of up to 16 blocks of
/// columns wait. Source: oneDNN, cpu/x64/matmul/brgemm_matmul_utils.cpp.
Bytes scratch_of_narrow_product(const Product& p) {
  constexpr std::int64_t kLeastRows = 32;
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kChunk = 16;
  constexpr std::int64_t kInner = 512;
  constexpr std::int64_t kLine = 32;  ///< elements in a line of the cache
  constexpr Bytes kWide = 4;
  constexpr Bytes kNarrow = 2;
  constexpr Bytes kOwn = 1024;
  constexpr Bytes kAligned = 128;
  const std::int64_t rows = even_block(p.rows, kLeastRows, kRows);
  const bool is_deep = p.inner > 2 * kInner && p.rows > 1 && !p.turned;
  const std::int64_t deep = is_deep ? 2 * kInner : kInner;
  const std::int64_t inner = (std::min(p.inner, deep) + kLine - 1) / kLine * kLine;
  const Bytes sums = kWide * rows * std::min(p.columns, kColumns);
  const Bytes right = kNarrow * inner * kColumns;
  if (!p.turned) {
    return sums + right + kOwn;
  }
  const std::int64_t blocks = (p.columns + kColumns - 1) / kColumns;
  const std::int64_t waiting = p.inner > kInner ? even_block(blocks, 1, kChunk) : 1;
  const std::int64_t row = inner + (inner == kInner ? kLine : 0);  // rows must not share a place
  return sums * waiting + right + kNarrow * rows * row + kOwn + kAligned;
}

/// The letters of each group, in one order of each.
struct Letters {
  std::string batch;
  std::string m;  ///< of a only
  std::string n;  ///< of b only
  std::string contracted;
};

Bytes copied_in(const OpView& op, const Equation& e, const Letters& l) {
  const bool direct =
      e.result == joined(l.batch, l.m, l.n) || e.result == joined(l.batch, l.n, l.m);
  return (is_strided(e.a, l.batch, l.m, l.contracted) ? 0 : op.inputs[0].bytes()) +
         (is_strided(e.b, l.batch, l.contracted, l.n) ? 0 : op.inputs[1].bytes()) +
         (direct ? 0 : op.results[0].bytes());
}

Product product_in(const OpView& op, const Equation& e, const Letters& l, Bytes copied) {
  const bool swapped =
      e.result == joined(l.batch, l.n, l.m) && e.result != joined(l.batch, l.m, l.n);
  const std::string_view left = swapped ? e.b : e.a;
  const std::string& rows = swapped ? l.n : l.m;
  Product out;
  out.copied = copied;
  out.rows = size_of(rows, left, op.inputs[swapped ? 1 : 0]);
  out.columns = size_of(swapped ? l.m : l.n, swapped ? e.a : e.b, op.inputs[swapped ? 0 : 1]);
  out.inner = size_of(l.contracted, e.a, op.inputs[0]);
  out.turned = out.rows > 1 && out.inner > 1 && is_strided(left, l.batch, rows, l.contracted) &&
               !rows.empty() && left.back() == rows.back();
  if (out.columns == 1 && size_of(l.batch, e.a, op.inputs[0]) == 1) {  // ATen's product by a vector
    std::swap(out.rows, out.columns);
    out.turned = false;
  }
  return out;
}

/// The order of the letters inside each group that copies least.
Product product_of(const OpView& op) {
  const Equation e = equation_of(op.attributes);
  Product best;
  for (const std::string_view batch_like : {e.a, e.b, e.result}) {
    for (const std::string_view contracted_like : {e.a, e.b}) {
      for (const std::string_view a_like : {e.a, e.result}) {
        for (const std::string_view b_like : {e.b, e.result}) {
          const Letters letters{group_like(batch_like, {e.a, e.b, e.result}, ""),
                                group_like(a_like, {e.a}, e.b),
                                group_like(b_like, {e.b}, e.a),
                                group_like(contracted_like, {e.a, e.b}, e.result)};
          const Bytes copied = copied_in(op, e, letters);
          if (copied < best.copied) {
            best = product_in(op, e, letters, copied);
          }
        }
      }
    }
  }
  return best;
}

Bytes workspace_einsum(const OpView& op) {
  const Product product = product_of(op);
  constexpr Bytes kWide = 4;
  const ir::DType dtype = op.results[0].dtype;
  const bool narrow = ir::is_floating(dtype) && ir::element_bytes(dtype) < kWide;
  constexpr double kSmall = 16 * 16 * 16;  // ATen leaves smaller ones to BLAS
  const bool on_onednn =
      narrow && op.results[0].numel() > 0 &&
      static_cast<double>(op.results[0].numel()) * static_cast<double>(product.inner) > kSmall;
  return product.copied + (on_onednn ? scratch_of_narrow_product(product) : 0);
}

/// y = a·b gives da = g·b and db = a·g, each with the terms of the equation exchanged.
void gradient_einsum(GradientBuilder& b) {
  const Equation equation = equation_of(b.attributes());
  const std::string a(equation.a);
  const std::string w(equation.b);
  const std::string y(equation.result);
  const ir::ValueId g = b.output_gradient(0);
  if (b.needed(0)) {
    b.set_input_gradient(0,
                         b.emit("einsum", {g, b.input(1)}, {{"equation", y + "," + w + "->" + a}}));
  }
  if (b.needed(1)) {
    b.set_input_gradient(1,
                         b.emit("einsum", {g, b.input(0)}, {{"equation", y + "," + a + "->" + w}}));
  }
}

}  // namespace

std::vector<OpDef> einsum_ops() {
  return {{.name = "einsum",
           .summary = "product of two tensors by named dimensions",
           .infer = infer_einsum,
           .axes = axes_einsum,
           .flops = flops_einsum,
           .workspace = workspace_einsum,
           .gradient = gradient_einsum,
           .matmul = true}};
}

}  // namespace shardplan::ops
