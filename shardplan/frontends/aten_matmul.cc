// Matrix products of every rank: einsums.

#include <fmt/format.h>

#include <string>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

namespace {

using ir::ValueId;

ValueId einsum(AtenCall& c, ValueId a, ValueId b, std::string equation) {
  return c.builder().emit("einsum", {a, b}, {{"equation", std::move(equation)}});
}

/// "bs" for two leading dimensions of a product; k, n, m are taken.
std::optional<std::string> leading_letters(std::size_t count) {
  constexpr std::string_view kLetters = "bshtuvwxyzacdefgijlopqr";
  return count <= kLetters.size() ? std::optional(std::string(kLetters.substr(0, count)))
                                  : std::nullopt;
}

/// x [..., k] times weight: "nk" as in linear, or "kn".
ValueId product(AtenCall& c, ValueId x, ValueId weight, std::string_view weight_letters) {
  const std::size_t rank = c.builder().type(x).shape.size();
  const std::optional<std::string> leading = rank == 0 ? std::nullopt : leading_letters(rank - 1);
  if (!leading.has_value()) {
    c.unsupported(fmt::format("is not supported on an operand of rank {}", rank));
    return {};
  }
  return einsum(c, x, weight, fmt::format("{}k,{}->{}n", *leading, weight_letters, *leading));
}

void map_linear(AtenCall& c) {
  const ValueId x = c.tensor("input");
  const ValueId weight = c.tensor("weight");
  const ValueId bias = c.tensor_if_given("bias");
  ValueId y = c.ok() ? product(c, x, weight, "nk") : ValueId{};
  if (bias.valid()) {
    y = c.builder().emit("add", {y, bias});
  }
  c.result(y);
}

ValueId scaled(AtenCall& c, ValueId x, double factor) {
  return factor == 1.0 ? x : c.builder().emit("scale", {x}, {{"factor", factor}});
}

/// beta · self + alpha · (a @ b); addmm of matrices, baddbmm of batches.
void map_addmm(AtenCall& c) {
  const bool batched = c.ours() == "baddbmm";
  const ValueId bias = c.tensor("self");
  const ValueId a = c.tensor(batched ? "batch1" : "mat1");
  const ValueId b = c.tensor(batched ? "batch2" : "mat2");
  ValueId y = einsum(c, a, b, batched ? "bmk,bkn->bmn" : "bk,kn->bn");
  y = scaled(c, y, c.real("alpha", 1.0));
  const double beta = c.real("beta", 1.0);
  c.result(beta == 0 ? y : c.builder().emit("add", {y, scaled(c, bias, beta)}));
}

void map_mm(AtenCall& c) {
  const ValueId a = c.tensor("self");
  const ValueId b = c.tensor("mat2");
  c.result(einsum(c, a, b, c.ours() == "bmm" ? "bmk,bkn->bmn" : "bk,kn->bn"));
}

/// torch.matmul: a matrix on the right is a linear layer's, anything else a product in general.
void map_matmul(AtenCall& c) {
  const ValueId a = c.tensor("self");
  const ValueId b = c.tensor("other");
  const bool linear = c.builder().type(a).shape.size() > 1 && c.builder().type(b).shape.size() == 2;
  c.result(linear && c.ok() ? product(c, a, b, "kn") : matmul(c.builder(), a, b));
}

void map_einsum(AtenCall& c) {
  c.result(frontends::einsum(c.builder(), c.text("equation", ""), c.tensors("tensors")));
}

/// Rows sorted by expert, matrices [experts, k, m], and where the rows of each expert end.
void map_grouped_mm(AtenCall& c) {
  const bool aten = c.node().target.starts_with("aten.");
  const std::string_view rows = aten ? "self" : "input";
  const std::string_view matrices = aten ? "mat2" : "weight";
  if (!c.given("offs") || c.given("bias") || c.type_of(rows).rank() != 2 ||
      c.type_of(matrices).rank() != 3) {
    c.unsupported("is supported on rows [n, k] with matrices [e, k, m] only");
    return;
  }
  c.result(
      c.builder().emit("grouped_matmul", {c.tensor(rows), c.tensor(matrices), c.tensor("offs")}));
}

}  // namespace

std::vector<AtenOp> aten_matmul() {
  return {{"aten.linear.default", map_linear},
          {"aten.addmm.default", map_addmm, "addmm"},
          {"aten.baddbmm.default", map_addmm, "baddbmm"},
          {"aten.mm.default", map_mm, "mm"},
          {"aten.bmm.default", map_mm, "bmm"},
          {"aten.matmul.default", map_matmul},
          {"aten.einsum.default", map_einsum},
          {"aten._grouped_mm.default", map_grouped_mm},
          {"transformers.grouped_mm_fallback.default", map_grouped_mm}};
}

}  // namespace shardplan::frontends
