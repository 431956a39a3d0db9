#include "shardplan/ops/axis_map.h"

#include <gtest/gtest.h>

#include <string>

#include "ops_testing.h"

namespace shardplan::ops {
namespace {

using ir::IntList;

std::string reshape_text(ir::Shape from, ir::Shape to) {
  return to_string(reshape_axis_map(f32(std::move(from)), f32(std::move(to))));
}

std::string made(const char* text, const Types& inputs, const Types& results) {
  return to_string(make_axis_map(text, inputs, results));
}

TEST(MakeAxisMap, GivesContractedAxesTheRoleSum) {
  const AxisMap map = make_axis_map(
      "b m k, k n -> b m n", Types{f32({2, 3, 4}), f32({4, 5})}, Types{f32({2, 3, 5})});
  EXPECT_EQ(to_string(map), "b m k, k n -> b m n");
  EXPECT_EQ(map.axes[static_cast<std::size_t>(map.find("k"))].role, AxisRole::kSum);
  EXPECT_EQ(map.axes[static_cast<std::size_t>(map.find("k"))].size, 4);
  EXPECT_EQ(map.axes[static_cast<std::size_t>(map.find("m"))].role, AxisRole::kFree);
  EXPECT_EQ(map.find("x"), -1);
}

TEST(MakeAxisMap, SolvesTheSizesOfMergedDimensions) {
  const AxisMap map = make_axis_map("(a b) c -> a (b c)", Types{f32({6, 4})}, Types{f32({3, 8})});
  EXPECT_EQ(to_string(map), "(a b) c -> a (b c)");
  EXPECT_EQ(map.axes[1].size, 2);
}

TEST(MakeAxisMap, DropsAxesOfSizeOneAndThoseNeededWhole) {
  EXPECT_EQ(made("b s [v] -> b s", {f32({1, 4, 5})}, {f32({1, 4})}), "* s * -> * s");
  EXPECT_EQ(made("b (g r), g -> b", {f32({2, 4}), f32({1})}, {f32({2})}), "b r, * -> b");
}

TEST(MakeAxisMap, ReadsEveryMarker) {
  EXPECT_EQ(made("?v d, b -> b d", {f32({9, 4}), i64({3})}, {f32({3, 4})}), "?v d, b -> b d");
  EXPECT_EQ(made("n ^v -> n", {f32({3, 4})}, {f32({3})}), "n ^v -> n");
  EXPECT_EQ(made("@b @s -> b s", {f32({3, 4})}, {f32({3, 4})}), "@b @s -> b s");
  EXPECT_EQ(made("+b d -> b d, d", {f32({3, 4})}, {f32({3, 4}), f32({4})}), "+b d -> b d, d");
  EXPECT_EQ(made("a, -> a", {f32({3}), f32({})}, {f32({3})}), "a,  -> a");
}

TEST(ReshapeAxisMap, IsTheFinestCommonFactorisation) {
  EXPECT_EQ(reshape_text({8, 1024, 768}, {8192, 12, 64}), "a b (c d) -> (a b) c d");
  EXPECT_EQ(reshape_text({6, 4}, {24}), "a b -> (a b)");
  EXPECT_EQ(reshape_text({24}, {2, 3, 4}), "(a b c) -> a b c");
  EXPECT_EQ(reshape_text({4, 6}, {2, 12}), "(a b) c -> a (b c)");
  EXPECT_EQ(reshape_text({5, 7}, {5, 7}), "a b -> a b");
}

TEST(ReshapeAxisMap, LeavesSizesWithoutCommonFactorsWhole) {
  EXPECT_EQ(reshape_text({4, 6}, {6, 4}), "* * -> * *");
  EXPECT_EQ(reshape_text({5, 4, 6}, {5, 6, 4}), "a * * -> a * *");
  EXPECT_EQ(reshape_text({12, 4, 7}, {2, 4, 6, 7}), "* * a -> * * * a");
}

TEST(ReshapeAxisMap, SkipsDimensionsOfSizeOne) {
  EXPECT_EQ(reshape_text({1, 8, 1}, {8}), "* a * -> a");
  EXPECT_EQ(reshape_text({8}, {1, 8, 1, 1}), "a -> * a * *");
  EXPECT_EQ(reshape_text({1}, {}), "* -> ");
  EXPECT_EQ(reshape_text({}, {1, 1}), " -> * *");
  EXPECT_EQ(reshape_text({4, 1, 6}, {1, 24}), "a * b -> * (a b)");
}

/// Cutting the most major axis of the first dimension in two, both sides keep the same elements.
TEST(ReshapeAxisMap, PartsOfAMajorAxisHoldTheSameElementsOnBothSides) {
  const std::vector<ir::Shape> shapes{{24}, {2, 12}, {4, 6}, {6, 4}, {2, 3, 4}, {2, 2, 6}, {8, 3}};
  for (const ir::Shape& from : shapes) {
    for (const ir::Shape& to : shapes) {
      const AxisMap map = reshape_axis_map(f32(from), f32(to));
      for (const auto* const tensor : {&map.inputs[0], &map.results[0]}) {
        const ir::Shape& shape = tensor == &map.inputs[0] ? from : to;
        for (std::size_t d = 0; d < shape.size(); ++d) {
          std::int64_t product = 1;
          for (const int a : (*tensor)[d]) {
            product *= map.axes[static_cast<std::size_t>(a)].size;
          }
          EXPECT_TRUE((*tensor)[d].empty() || product == shape[d]);
        }
      }
    }
  }
}

TEST(AxisMaps, OfElementwiseOps) {
  EXPECT_EQ(axes_of({"add", {f32({4, 6}), f32({6})}}), "a b, b -> a b");
  EXPECT_EQ(axes_of({"add", {f32({1, 6}), f32({5, 4, 1})}}), "* c, a b * -> a b c");
  EXPECT_EQ(axes_of({"where", {boolean({4, 1}), f32({4, 6}), f32({})}}), "a *, a b,  -> a b");
}

TEST(AxisMaps, OfShapeOps) {
  EXPECT_EQ(axes_of({"transpose", {f32({8, 4, 6})}, {{"permutation", IntList{2, 0, 1}}}}),
            "d0 d1 d2 -> d2 d0 d1");
  EXPECT_EQ(axes_of({"broadcast", {f32({4, 1})}, {{"shape", IntList{2, 4, 5}}}}), "b * -> a b c");
  EXPECT_EQ(axes_of({"slice",
                     {f32({8, 10})},
                     {{"dim", std::int64_t{1}},
                      {"start", std::int64_t{2}},
                      {"end", std::int64_t{6}},
                      {"step", std::int64_t{1}}}}),
            "d0 * -> d0 *");
  EXPECT_EQ(axes_of({"concat", {f32({8, 2}), f32({8, 3})}, {{"dim", std::int64_t{1}}}}),
            "d0 *, d0 * -> d0 *");
  EXPECT_EQ(
      axes_of(
          {"iota",
           {},
           {{"shape", IntList{4, 6}}, {"dim", std::int64_t{1}}, {"dtype", std::string("i64")}}}),
      "-> d0 @d1");
}

TEST(AxisMaps, OfReductions) {
  EXPECT_EQ(axes_of({"sum", {f32({4, 5, 6})}, {{"dims", IntList{0, 2}}, {"keepdim", false}}}),
            "d0 d1 d2 -> d1");
  EXPECT_EQ(axes_of({"sum", {f32({4, 5, 6})}, {{"dims", IntList{1}}, {"keepdim", true}}}),
            "d0 d1 d2 -> d0 * d2");
  EXPECT_EQ(axes_of({"max", {f32({4, 5})}, {{"dims", IntList{1}}, {"keepdim", false}}}),
            "d0 ^d1 -> d0");
  EXPECT_EQ(axes_of({"sum_squares", {f32({4, 5})}}), "d0 d1 -> ");
}

TEST(AxisMaps, OfNormalizations) {
  const ir::Attributes attributes{
      {"dims", std::int64_t{1}}, {"eps", 1e-5}, {"weight", true}, {"bias", true}};
  EXPECT_EQ(axes_of({"layer_norm", {f32({2, 3, 8}), f32({8}), f32({8})}, attributes}),
            "d0 d1 *, *, * -> d0 d1 *, d0 d1, d0 d1");
  EXPECT_EQ(axes_of({"layer_norm_backward",
                     {f32({2, 3, 8}), f32({2, 3, 8}), f32({2, 3}), f32({2, 3}), f32({8})},
                     attributes}),
            "+d0 +d1 *, d0 d1 *, d0 d1, d0 d1, * -> d0 d1 *, *, *");
  EXPECT_EQ(axes_of({"softmax", {f32({2, 3, 8})}, {{"dim", std::int64_t{2}}}}),
            "d0 d1 * -> d0 d1 *");
}

ir::Attributes attention(const char* layout, bool causal, bool mask) {
  return {{"layout", std::string(layout)}, {"causal", causal}, {"scale", 0.125}, {"mask", mask}};
}

TEST(AxisMaps, OfAttention) {
  const ir::TensorType q = f32({2, 16, 8, 4});
  const ir::TensorType k = f32({2, 16, 2, 4});
  EXPECT_EQ(axes_of({"attention", {q, k, k}, attention("bshd", true, false)}),
            "b * (g r) *, b * g *, b * g * -> b * (g r) *, b (g r) *");
  EXPECT_EQ(axes_of({"attention", {q, k, k}, attention("bshd", false, false)}),
            "b q (g r) *, b * g *, b * g * -> b q (g r) *, b (g r) q");
  EXPECT_EQ(axes_of({"attention", {q, q, q}, attention("bshd", true, false)}),
            "b * g *, b * g *, b * g * -> b * g *, b g *");
  const ir::TensorType one_head = f32({2, 16, 1, 4});
  EXPECT_EQ(axes_of({"attention", {q, one_head, one_head}, attention("bshd", true, false)}),
            "b * r *, b * * *, b * * * -> b * r *, b r *");
  const ir::TensorType heads_first = f32({2, 8, 16, 4});
  EXPECT_EQ(axes_of({"attention",
                     {heads_first, heads_first, heads_first, boolean({2, 1, 16, 16})},
                     attention("bhsd", false, true)}),
            "b g q *, b g * *, b g * *, b * q * -> b g q *, b g q");
}

TEST(AxisMaps, OfAttentionWithOneHead) {
  const ir::TensorType q = f32({2, 16, 1, 4});
  EXPECT_EQ(axes_of({"attention", {q, q, q}, attention("bshd", false, false)}),
            "b q * *, b * * *, b * * * -> b q * *, b * q");
}

TEST(AxisMaps, OfAttentionBackwardSumQueriesAndGroups) {
  const ir::TensorType q = f32({2, 16, 8, 4});
  const ir::TensorType k = f32({2, 16, 2, 4});
  EXPECT_EQ(axes_of({"attention_backward",
                     {q, q, k, k, q, f32({2, 8, 16})},
                     attention("bshd", false, false)}),
            "b +q (g +r) *, b q (g r) *, b * g *, b * g *, b q (g r) *, b (g r) q -> "
            "b q (g r) *, b * g *, b * g *");
}

TEST(AxisMaps, OfLookups) {
  EXPECT_EQ(axes_of({"embedding", {f32({9, 4}), i64({2, 3})}}), "?v d, b0 b1 -> b0 b1 d");
  EXPECT_EQ(
      axes_of({"embedding_backward", {f32({2, 3, 4}), i64({2, 3})}, {{"rows", std::int64_t{9}}}}),
      "b0 b1 d, b0 b1 -> @v d");
  const ir::Attributes ignore{{"ignore_index", std::int64_t{-100}}};
  EXPECT_EQ(axes_of({"sum_exp", {f32({3, 9}), f32({3})}}), "n0 v, n0 -> n0");
  EXPECT_EQ(axes_of({"label_score", {f32({3, 9}), i64({3}), f32({3})}, ignore}),
            "n0 ?v, n0, n0 -> n0");
  EXPECT_EQ(axes_of({"label_score_backward", {f32({3}), f32({3, 9}), i64({3}), f32({3})}, ignore}),
            "n0, n0 @v, n0, n0 -> n0 v");
  EXPECT_EQ(axes_of({"dropout", {f32({3, 9})}, {{"p", 0.1}, {"seed", std::int64_t{1}}}}),
            "@a @b -> a b");
}

TEST(AxisMaps, OfUpdatesShardTheParameterAndItsStates) {
  const ir::TensorType p = f32({4, 6});
  EXPECT_EQ(axes_of({"adam_update",
                     {p, bf16({4, 6}), p, p, f32({})},
                     {{"lr", 0.1},
                      {"beta1", 0.9},
                      {"beta2", 0.99},
                      {"eps", 1e-8},
                      {"weight_decay", 0.0},
                      {"decoupled", true}}}),
            "a b, a b, a b, a b,  -> a b, a b, a b");
}

/// Which operands may be partial sums, together.
std::vector<std::vector<int>> partial_inputs(const Sample& sample) {
  const OpDef& def = get(sample.op);
  const Types results = *def.infer(sample.inputs, sample.attributes);
  std::vector<std::vector<int>> out;
  for (const PartialRule& rule :
       def.axes(OpView{sample.inputs, results, sample.attributes}).partials) {
    out.push_back(rule.inputs);
  }
  return out;
}

TEST(PartialRules, FollowLinearity) {
  using Rules = std::vector<std::vector<int>>;
  const ir::TensorType x = f32({4, 6});
  EXPECT_EQ(partial_inputs({"add", {x, x}}), (Rules{{0, 1}}));
  EXPECT_EQ(partial_inputs({"mul", {x, x}}), (Rules{{0}, {1}}));
  EXPECT_EQ(partial_inputs({"div", {x, x}}), (Rules{{0}}));
  EXPECT_EQ(partial_inputs({"einsum", {x, x}, {{"equation", std::string("ab,cb->ac")}}}),
            (Rules{{0}, {1}}));
  EXPECT_EQ(partial_inputs({"gelu", {x}, {{"approximate", std::string("none")}}}), Rules{});
  EXPECT_EQ(partial_inputs({"add_scalar", {x}, {{"value", 1.0}}}), Rules{});
  EXPECT_EQ(partial_inputs({"sum_squares", {x}}), Rules{});
  EXPECT_EQ(partial_inputs({"concat", {x, x, x}, {{"dim", std::int64_t{0}}}}), (Rules{{0, 1, 2}}));
}

TEST(PartialRules, LetACastPassOnlyWhenItDoesNotNarrow) {
  const ir::Attributes to_f32{{"dtype", std::string("f32")}};
  const ir::Attributes to_bf16{{"dtype", std::string("bf16")}};
  EXPECT_EQ(partial_inputs({"cast", {bf16({4})}, to_f32}).size(), 1U);
  EXPECT_EQ(partial_inputs({"cast", {f32({4})}, to_bf16}).size(), 0U);
  EXPECT_EQ(partial_inputs({"cast", {i64({4})}, to_f32}).size(), 0U);
}

}  // namespace
}  // namespace shardplan::ops
