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
#include "shardplan/ops/product_workspace.h"
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

/// The product that is left to the library, and bytes of operands and result in other orders.
struct Product {
  Bytes operands = 0;
  Bytes packed = 0;  ///< copies for oneDNN of operands that BLAS takes as they are
  Bytes result = 0;
  MatrixProduct of{};
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

/// The letters of each group, in one order of each.
struct Letters {
  std::string batch;
  std::string m;  ///< of a only
  std::string n;  ///< of b only
  std::string contracted;
};

Product copies_in(const OpView& op, const Equation& e, const Letters& l) {
  const bool direct =
      e.result == joined(l.batch, l.m, l.n) || e.result == joined(l.batch, l.n, l.m);
  return {.operands = (is_strided(e.a, l.batch, l.m, l.contracted) ? 0 : op.inputs[0].bytes()) +
                      (is_strided(e.b, l.batch, l.contracted, l.n) ? 0 : op.inputs[1].bytes()),
          .result = direct ? 0 : op.results[0].bytes()};
}

/// Bytes of a copy in another order of the letters: none where only those of size 1 move.
Bytes moved_bytes(std::string_view from, const std::string& to, const ir::TensorType& type) {
  const auto sized = [&](std::string_view term) {
    std::string out;
    std::copy_if(term.begin(), term.end(), std::back_inserter(out), [&](char letter) {
      return type.shape[from.find(letter)] != 1;
    });
    return out;
  };
  return sized(from) == sized(to) ? 0 : type.bytes();
}

/// Bytes of the copy that oneDNN wants of an operand of which the batch is not the slowest.
Bytes packed_bytes(std::string_view term,
                   const std::string& batch,
                   const std::string& rows,
                   const std::string& columns,
                   const ir::TensorType& type) {
  return std::min(moved_bytes(term, joined(batch, rows, columns), type),
                  moved_bytes(term, joined(batch, columns, rows), type));
}

/// The copies that are in fact made.
Product made_copies(const OpView& op, const Equation& e, const Letters& l) {
  Product copies = copies_in(op, e, l);
  copies.operands = 0;
  if (!is_strided(e.a, l.batch, l.m, l.contracted)) {
    copies.operands += moved_bytes(e.a, joined(l.batch, l.m, l.contracted), op.inputs[0]);
  } else {
    copies.packed += packed_bytes(e.a, l.batch, l.m, l.contracted, op.inputs[0]);
  }
  if (!is_strided(e.b, l.batch, l.contracted, l.n)) {
    copies.operands += moved_bytes(e.b, joined(l.batch, l.contracted, l.n), op.inputs[1]);
  } else {
    copies.packed += packed_bytes(e.b, l.batch, l.contracted, l.n, op.inputs[1]);
  }
  if (copies.result > 0) {
    copies.result = moved_bytes(e.result, joined(l.batch, l.m, l.n), op.results[0]);
  }
  return copies;
}

MatrixProduct matrices_in(const OpView& op, const Equation& e, const Letters& l) {
  const bool swapped =
      e.result == joined(l.batch, l.n, l.m) && e.result != joined(l.batch, l.m, l.n);
  const std::string_view left = swapped ? e.b : e.a;
  const std::string& rows = swapped ? l.n : l.m;
  MatrixProduct out;
  out.rows = size_of(rows, left, op.inputs[swapped ? 1 : 0]);
  out.columns = size_of(swapped ? l.m : l.n, swapped ? e.a : e.b, op.inputs[swapped ? 0 : 1]);
  out.inner = size_of(l.contracted, e.a, op.inputs[0]);
  const ir::TensorType& left_type = op.inputs[swapped ? 1 : 0];
  out.turned = is_strided(left, l.batch, rows, l.contracted) && !rows.empty() &&
               left.back() == rows.back() &&
               moved_bytes(left, joined(l.batch, l.contracted, rows), left_type) == 0;
  out.batch = size_of(l.batch, e.a, op.inputs[0]);
  return out;
}

/// The order of the letters inside each group that copies least.
Product product_of(const OpView& op) {
  const Equation e = equation_of(op.attributes);
  Product best;
  Bytes least = std::numeric_limits<Bytes>::max();
  for (const std::string_view batch_like : {e.a, e.b, e.result}) {
    for (const std::string_view contracted_like : {e.a, e.b}) {
      for (const std::string_view a_like : {e.a, e.result}) {
        for (const std::string_view b_like : {e.b, e.result}) {
          const Letters letters{group_like(batch_like, {e.a, e.b, e.result}, ""),
                                group_like(a_like, {e.a}, e.b),
                                group_like(b_like, {e.b}, e.a),
                                group_like(contracted_like, {e.a, e.b}, e.result)};
          const Product copies = copies_in(op, e, letters);
          if (copies.operands + copies.result < least) {
            least = copies.operands + copies.result;
            best = made_copies(op, e, letters);
            best.of = matrices_in(op, e, letters);
          }
        }
      }
    }
  }
  return best;
}

Bytes workspace_einsum(const OpView& op) {
  const Product product = product_of(op);
  const Bytes scratch = product_workspace(product.of, op.results[0].dtype);
  return product.operands + std::max(product.result, scratch > 0 ? scratch + product.packed : 0);
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
