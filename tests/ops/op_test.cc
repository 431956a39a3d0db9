#include "shardplan/ops/op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops_testing.h"

namespace shardplan::ops {
namespace {

using ir::IntList;
using ::testing::HasSubstr;

TEST(Registry, IsSortedAndFindsEveryOpByItsName) {
  const std::vector<const OpDef*> defs = all();
  EXPECT_TRUE(std::is_sorted(
      defs.begin(), defs.end(), [](const OpDef* a, const OpDef* b) { return a->name < b->name; }));
  for (std::size_t i = 0; i < defs.size(); ++i) {
    EXPECT_EQ(find(defs[i]->name), defs[i]);
    EXPECT_FALSE(defs[i]->summary.empty()) << defs[i]->name;
    EXPECT_TRUE(i == 0 || defs[i]->name != defs[i - 1]->name) << defs[i]->name;
  }
  EXPECT_EQ(find("matmul"), nullptr);
}

TEST(Infer, ShapesOfKnownCases) {
  EXPECT_EQ(get("sum").infer(Types{boolean({4, 5})}, {{"dims", IntList{1}}}).value(),
            Types{i64({4})});
  EXPECT_EQ(
      get("einsum")
          .infer(Types{f32({2, 3, 4}), f32({5, 4})}, {{"equation", std::string("bsk,nk->bsn")}})
          .value(),
      Types{f32({2, 3, 5})});
  EXPECT_EQ(get("sum_exp").infer(Types{bf16({3, 9}), bf16({3})}, {}).value(), Types{f32({3})});
}

TEST(InferErrors, SayWhatWasFoundAndExpected) {
  EXPECT_EQ(error_of({"add", {f32({4, 5}), f32({4})}}),
            "the operands f32[4,5], f32[4] do not broadcast: aligned at the right, sizes must be "
            "equal or 1");
  EXPECT_EQ(
      error_of({"add", {f32({4}), bf16({4})}}),
      "operand 0 is f32[4] and operand 1 is bf16[4]: the element types differ; insert a cast");
  EXPECT_EQ(error_of({"add", {f32({4})}}), "1 operands were given, 2 expected");
  EXPECT_EQ(error_of({"exp", {i64({4})}}), "operand 0 is i64[4], a floating type was expected");
  EXPECT_EQ(error_of({"reshape", {f32({4, 5})}, {{"shape", IntList{3, 7}}}}),
            "f32[4,5] has 20 elements, the shape [3,7] has 21");
  EXPECT_EQ(error_of({"transpose", {f32({4, 5})}, {{"permutation", IntList{0, 0}}}}),
            "[0,0] is not a permutation of the dimensions of f32[4,5]");
  EXPECT_EQ(error_of({"softmax", {f32({4})}, {{"dim", std::int64_t{1}}}}),
            "dimension 1 does not exist: operand 0 is f32[4]");
  EXPECT_EQ(error_of({"sum", {f32({4, 5})}, {{"dims", IntList{1, 0}}}}),
            "the dimensions [1,0] are not strictly increasing");
  EXPECT_EQ(error_of({"add_scalar", {i64({4})}, {{"value", 0.5}}}),
            "the scalar 0.500000 is not a whole number, but operand 0 is i64[4]");
}

TEST(InferErrors, OfAttributes) {
  EXPECT_EQ(error_of({"scale", {f32({4})}}), "attribute 'factor' (a number) is missing");
  EXPECT_EQ(error_of({"scale", {f32({4})}, {{"facto", 2.0}}}),
            "attribute 'facto' is not known to this op; did you mean 'factor'?");
  EXPECT_EQ(error_of({"scale", {f32({4})}, {{"factor", true}}}),
            "attribute 'factor' is not a number");
  EXPECT_EQ(error_of({"cast", {f32({4})}, {{"dtype", std::string("float")}}}),
            "dtype \"float\" is none of bool u8 i32 i64 bf16 f16 f32 f64");
}

TEST(InferErrors, OfEinsum) {
  const Types types{f32({4, 5}), f32({6, 5})};
  EXPECT_EQ(error_of({"einsum", types, {{"equation", std::string("ab,bc->ac")}}}),
            "equation \"ab,bc->ac\": 'b' has size 5 in f32[4,5] and 6 in f32[6,5]");
  EXPECT_EQ(error_of({"einsum", types, {{"equation", std::string("ab,cd->ac")}}}),
            "equation \"ab,cd->ac\": every letter must occur in two of its terms");
  EXPECT_EQ(error_of({"einsum", types, {{"equation", std::string("aa,ca->c")}}}),
            "equation \"aa,ca->c\": 'a' occurs twice in one term");
  EXPECT_EQ(error_of({"einsum", types, {{"equation", std::string("abc,cb->a")}}}),
            "equation \"abc,cb->a\" names 3 dimensions of operand 0, which is f32[4,5]");
  EXPECT_EQ(error_of({"einsum", types, {{"equation", std::string("ab->b")}}}),
            "equation \"ab->b\" has not the form \"ab,bc->ac\"");
}

TEST(InferErrors, OfAttention) {
  const ir::Attributes causal{
      {"layout", std::string("bshd")}, {"causal", true}, {"scale", 1.0}, {"mask", false}};
  EXPECT_EQ(
      error_of({"attention", {f32({2, 8, 6, 4}), f32({2, 8, 4, 4}), f32({2, 8, 4, 4})}, causal}),
      "6 query heads are no multiple of 4 key heads");
  EXPECT_THAT(
      error_of({"attention", {f32({2, 8, 6, 4}), f32({2, 8, 6, 5}), f32({2, 8, 6, 4})}, causal}),
      HasSubstr("operand 1 is f32[2,8,6,5], but k (batch and head size of q) must have the shape "
                "[2,8,6,4]"));
}

TEST(InferErrors, OfSizesThatAreTooLarge) {
  ir::Graph graph;
  ir::Op op;
  op.name = "full";
  op.attributes = {{"shape", IntList{std::int64_t{1} << 40, std::int64_t{1} << 40}},
                   {"value", 0.0},
                   {"dtype", std::string("f32")}};
  const auto result = append(graph, op);
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().text(), HasSubstr("op 'full': the result would be"));
}

TEST(Append, NamesOpAndLayer) {
  ir::Graph graph;
  const ir::ValueId x =
      graph.add_value({.type = f32({4}), .name = "x", .kind = ir::ValueKind::kInput});
  ir::Op op;
  op.name = "softmx";
  op.inputs = {x};
  op.layer = "h.0.attn";
  EXPECT_EQ(append(graph, op).error().text(),
            "op 'softmx' of layer 'h.0.attn': this op is not known; did you mean 'softmax'?");
  op.name = "softmax";
  EXPECT_EQ(append(graph, op).error().text(),
            "op 'softmax' of layer 'h.0.attn': attribute 'dim' (an integer) is missing");
}

TEST(Verify, ComparesResultTypesWithInference) {
  ir::Graph graph;
  const ir::ValueId x =
      graph.add_value({.type = f32({4}), .name = "x", .kind = ir::ValueKind::kInput});
  ir::Op op;
  op.name = "exp";
  op.inputs = {x};
  graph.add_op(op, {f32({5})});
  EXPECT_EQ(ops::verify(graph).error().text(),
            "op 'exp': the results are f32[5], but for the operands f32[4] they must be f32[4]");
}

TEST(FlopsOf, LinearIsTwoForEachMultiplyAdd) {
  EXPECT_EQ(flops_of({"einsum",
                      {f32({8, 1024, 768}), f32({3072, 768})},
                      {{"equation", std::string("bsk,nk->bsn")}}}),
            2.0 * 8 * 1024 * 768 * 3072);
}

TEST(FlopsOf, AttentionIsTwoProductsForwardAndFiveBackward) {
  const ir::Attributes attributes{
      {"layout", std::string("bshd")}, {"causal", true}, {"scale", 0.125}, {"mask", false}};
  const ir::TensorType q = f32({2, 128, 12, 64});
  const double product = 2.0 * 2 * 12 * 128 * 128 * 64;
  EXPECT_EQ(flops_of({"attention", {q, q, q}, attributes}), 2 * product);
  EXPECT_EQ(flops_of({"attention_backward", {q, q, q, q, q, f32({2, 12, 128})}, attributes}),
            5 * product);
}

}  // namespace
}  // namespace shardplan::ops
