#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"

namespace shardplan::rewrite {
namespace {

std::vector<Rule> named(std::initializer_list<std::string_view> names) {
  std::vector<Rule> chosen;
  for (const std::string_view name : names) {
    for (const Rule& rule : rules()) {
      if (rule.name == name) {
        chosen.push_back(rule);
      }
    }
  }
  EXPECT_EQ(chosen.size(), names.size());
  return chosen;
}

ir::Graph parsed(const std::string& body) {
  Result<ir::Graph> graph = ir::parse("graph \"t\" microbatches=1\n" + body);
  EXPECT_TRUE(graph) << graph.error().text();
  if (!graph) {
    return {};
  }
  const Status status = ops::verify(*graph);
  EXPECT_TRUE(status) << status.error().text();
  return std::move(graph).value();
}

/// The text after the header line.
std::string body_of(const ir::Graph& graph) {
  const std::string text = ir::print(graph);
  return text.substr(text.find('\n') + 1);
}

/// Applies the rules to `before` and expects exactly `after`.
void expect_rewrite(std::initializer_list<std::string_view> rule_names,
                    const std::string& before,
                    const std::string& after) {
  const std::vector<Rule> chosen = named(rule_names);
  const Result<ir::Graph> result = apply_rules(parsed(before), chosen);
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_TRUE(ops::verify(*result));
  EXPECT_EQ(body_of(*result), after);
}

/// A row `%n = sum(%n-1)` and the output, for graphs that end in something else than a scalar.
std::string total(int last, const std::string& dims) {
  const std::string id = std::to_string(last);
  const std::string next = std::to_string(last + 1);
  return "%" + next + " = sum(%" + id + ") {dims=" + dims + ", keepdim=false} : f32[]\noutput %" +
         next + "\n";
}

TEST(Rules, NamesAreUnique) {
  std::vector<std::string_view> names;
  for (const Rule& rule : rules()) {
    names.push_back(rule.name);
    EXPECT_FALSE(rule.summary.empty());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(Rules, DropNoOp) {
  expect_rewrite({"drop_no_op"},
                 "%0 = input \"x\" f32[2,3]\n"
                 "%1 = identity(%0) : f32[2,3]\n"
                 "%2 = reshape(%1) {shape=[2,3]} : f32[2,3]\n"
                 "%3 = transpose(%2) {permutation=[0,1]} : f32[2,3]\n"
                 "%4 = cast(%3) {dtype=\"f32\"} : f32[2,3]\n"
                 "%5 = scale(%4) {factor=1.0} : f32[2,3]\n"
                 "%6 = add_scalar(%5) {value=0.0} : f32[2,3]\n"
                 "%7 = slice(%6) {dim=1, end=3, start=0, step=1} : f32[2,3]\n"
                 "%8 = pad(%7) {after=0, before=0, dim=1, value=0.0} : f32[2,3]\n"
                 "%9 = concat(%8) {dim=0} : f32[2,3]\n"
                 "%10 = dropout(%9) {p=0.0, seed=1} : f32[2,3]\n"
                 "%11 = broadcast(%10) {shape=[2,3]} : f32[2,3]\n" +
                     total(11, "[0,1]"),
                 "%0 = input \"x\" f32[2,3]\n" + total(0, "[0,1]"));
}

TEST(Rules, WhatDoesSomethingStays) {
  const std::string text =
      "%0 = input \"x\" f32[2,3]\n"
      "%1 = slice(%0) {dim=1, end=2, start=0, step=1} : f32[2,2]\n"
      "%2 = scale(%1) {factor=2.0} : f32[2,2]\n"
      "%3 = transpose(%2) {permutation=[1,0]} : f32[2,2]\n" +
      total(3, "[0,1]");
  const std::vector<Rule> all = rules();
  EXPECT_EQ(body_of(*apply_rules(parsed(text), named({"drop_no_op"}))), text);
}

TEST(Rules, MergeReshapes) {
  expect_rewrite({"merge_reshapes"},
                 "%0 = input \"x\" f32[2,6]\n"
                 "%1 = reshape(%0) {shape=[12]} : f32[12]\n"
                 "%2 = reshape(%1) {shape=[3,4]} : f32[3,4]\n" +
                     total(2, "[0,1]"),
                 "%0 = input \"x\" f32[2,6]\n"
                 "%1 = reshape(%0) {shape=[3,4]} : f32[3,4]\n" +
                     total(1, "[0,1]"));
}

TEST(Rules, MergeTransposesComposes) {
  expect_rewrite({"merge_transposes"},
                 "%0 = input \"x\" f32[2,3,4]\n"
                 "%1 = transpose(%0) {permutation=[1,2,0]} : f32[3,4,2]\n"
                 "%2 = transpose(%1) {permutation=[1,2,0]} : f32[4,2,3]\n" +
                     total(2, "[0,1,2]"),
                 "%0 = input \"x\" f32[2,3,4]\n"
                 "%1 = transpose(%0) {permutation=[2,0,1]} : f32[4,2,3]\n" +
                     total(1, "[0,1,2]"));
}

TEST(Rules, TransposeOfUnitDimensionsIsAReshape) {
  expect_rewrite({"transpose_to_reshape"},
                 "%0 = input \"x\" f32[2,1,4]\n"
                 "%1 = transpose(%0) {permutation=[1,0,2]} : f32[1,2,4]\n" +
                     total(1, "[0,1,2]"),
                 "%0 = input \"x\" f32[2,1,4]\n"
                 "%1 = reshape(%0) {shape=[1,2,4]} : f32[1,2,4]\n" +
                     total(1, "[0,1,2]"));
}

TEST(Rules, EqualOpsAreOneAndDeadOnesGo) {
  expect_rewrite({},
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = constant \"\" f32[2] data=[1,2]\n"
                 "%2 = exp(%0) : f32[2] layer=\"a\"\n"
                 "%3 = exp(%0) : f32[2] layer=\"b\"\n"
                 "%4 = tanh(%1) : f32[2]\n"
                 "%5 = mul(%2, %3) : f32[2]\n" +
                     total(5, "[0]"),
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = exp(%0) : f32[2] layer=\"a\"\n"
                 "%2 = mul(%1, %1) : f32[2]\n" +
                     total(2, "[0]"));
}

TEST(Rules, DropoutSitesStayApart) {
  const std::string text =
      "%0 = input \"x\" f32[2]\n"
      "%1 = dropout(%0) {p=0.5, seed=1} : f32[2]\n"
      "%2 = dropout(%0) {p=0.5, seed=2} : f32[2]\n"
      "%3 = mul(%1, %2) : f32[2]\n" +
      total(3, "[0]");
  EXPECT_EQ(body_of(*canonicalize(parsed(text))), text);
}

TEST(Rules, AbsorbBroadcastOnlyWhereTheShapeStays) {
  expect_rewrite({"absorb_broadcast"},
                 "%0 = input \"x\" f32[2,3]\n"
                 "%1 = input \"b\" f32[3]\n"
                 "%2 = broadcast(%1) {shape=[2,3]} : f32[2,3]\n"
                 "%3 = add(%0, %2) : f32[2,3]\n" +
                     total(3, "[0,1]"),
                 "%0 = input \"x\" f32[2,3]\n"
                 "%1 = input \"b\" f32[3]\n"
                 "%2 = add(%0, %1) : f32[2,3]\n" +
                     total(2, "[0,1]"));
  const std::string needed =
      "%0 = input \"x\" f32[3]\n"
      "%1 = broadcast(%0) {shape=[2,3]} : f32[2,3]\n"
      "%2 = mul(%1, %0) : f32[2,3]\n" +
      total(2, "[0,1]");
  EXPECT_EQ(body_of(*apply_rules(parsed(needed), named({"absorb_broadcast"}))), needed);
}

TEST(Rules, RecogniseGelu) {
  expect_rewrite({"recognise_gelu"},
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = scale(%0) {factor=0.5} : f32[2]\n"
                 "%2 = pow_scalar(%0) {exponent=3.0} : f32[2]\n"
                 "%3 = scale(%2) {factor=0.044715} : f32[2]\n"
                 "%4 = add(%0, %3) : f32[2]\n"
                 "%5 = scale(%4) {factor=0.7978845608028654} : f32[2]\n"
                 "%6 = tanh(%5) : f32[2]\n"
                 "%7 = add_scalar(%6) {value=1.0} : f32[2]\n"
                 "%8 = mul(%1, %7) : f32[2]\n" +
                     total(8, "[0]"),
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = gelu(%0) {approximate=\"tanh\"} : f32[2]\n" +
                     total(1, "[0]"));
}

TEST(Rules, OtherConstantsAreNoGelu) {
  const std::string text =
      "%0 = input \"x\" f32[2]\n"
      "%1 = scale(%0) {factor=0.5} : f32[2]\n"
      "%2 = pow_scalar(%0) {exponent=3.0} : f32[2]\n"
      "%3 = scale(%2) {factor=0.05} : f32[2]\n"
      "%4 = add(%0, %3) : f32[2]\n"
      "%5 = scale(%4) {factor=0.7978845608028654} : f32[2]\n"
      "%6 = tanh(%5) : f32[2]\n"
      "%7 = add_scalar(%6) {value=1.0} : f32[2]\n"
      "%8 = mul(%1, %7) : f32[2]\n" +
      total(8, "[0]");
  EXPECT_EQ(body_of(*canonicalize(parsed(text))), text);
}

TEST(Rules, RecogniseSilu) {
  expect_rewrite({"recognise_silu"},
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = sigmoid(%0) : f32[2]\n"
                 "%2 = mul(%1, %0) : f32[2]\n" +
                     total(2, "[0]"),
                 "%0 = input \"x\" f32[2]\n"
                 "%1 = silu(%0) : f32[2]\n" +
                     total(1, "[0]"));
}

TEST(Rules, LinearOnFlattenedRowsSeesBatchAndSequence) {
  expect_rewrite({"drop_no_op", "merge_reshapes", "unflatten_einsum", "unflatten_broadcasting"},
                 "%0 = parameter \"w\" f32[4,5] trainable\n"
                 "%1 = parameter \"b\" f32[5] trainable\n"
                 "%2 = input \"x\" f32[2,3,4]\n"
                 "%3 = reshape(%2) {shape=[6,4]} : f32[6,4]\n"
                 "%4 = einsum(%3, %0) {equation=\"bk,kn->bn\"} : f32[6,5]\n"
                 "%5 = add(%1, %4) : f32[6,5]\n"
                 "%6 = reshape(%5) {shape=[2,3,5]} : f32[2,3,5]\n" +
                     total(6, "[0,1,2]"),
                 "%0 = parameter \"w\" f32[4,5] trainable\n"
                 "%1 = parameter \"b\" f32[5] trainable\n"
                 "%2 = input \"x\" f32[2,3,4]\n"
                 "%3 = einsum(%2, %0) {equation=\"bsk,kn->bsn\"} : f32[2,3,5]\n"
                 "%4 = add(%1, %3) : f32[2,3,5]\n" +
                     total(4, "[0,1,2]"));
}

TEST(Rules, FlatteningThatAlsoMergesHeadsIsSplit) {
  expect_rewrite({"drop_no_op", "merge_reshapes", "unflatten_einsum"},
                 "%0 = parameter \"w\" f32[8,5] trainable\n"
                 "%1 = input \"x\" f32[2,3,2,4]\n"
                 "%2 = reshape(%1) {shape=[6,8]} : f32[6,8]\n"
                 "%3 = einsum(%2, %0) {equation=\"bk,kn->bn\"} : f32[6,5]\n"
                 "%4 = reshape(%3) {shape=[2,3,5]} : f32[2,3,5]\n" +
                     total(4, "[0,1,2]"),
                 "%0 = parameter \"w\" f32[8,5] trainable\n"
                 "%1 = input \"x\" f32[2,3,2,4]\n"
                 "%2 = reshape(%1) {shape=[2,3,8]} : f32[2,3,8]\n"
                 "%3 = einsum(%2, %0) {equation=\"bsk,kn->bsn\"} : f32[2,3,5]\n" +
                     total(3, "[0,1,2]"));
}

TEST(Rules, NormsActivationsAndSlicesSeeUnmergedRows) {
  expect_rewrite({"drop_no_op",
                  "merge_reshapes",
                  "unflatten_unary",
                  "unflatten_layer_norm",
                  "unflatten_slice"},
                 "%0 = input \"x\" f32[2,3,4]\n"
                 "%1 = reshape(%0) {shape=[6,4]} : f32[6,4]\n"
                 "%2, %3, %4 = layer_norm(%1) {bias=false, dims=1, eps=1e-05, weight=false} : "
                 "f32[6,4], f32[6], f32[6]\n"
                 "%5 = silu(%2) : f32[6,4]\n"
                 "%6 = dropout(%5) {p=0.5, seed=3} : f32[6,4]\n"
                 "%7 = softmax(%6) {dim=1} : f32[6,4]\n"
                 "%8 = slice(%7) {dim=1, end=2, start=0, step=1} : f32[6,2]\n"
                 "%9 = reshape(%8) {shape=[2,3,2]} : f32[2,3,2]\n" +
                     total(9, "[0,1,2]"),
                 "%0 = input \"x\" f32[2,3,4]\n"
                 "%1, %2, %3 = layer_norm(%0) {bias=false, dims=1, eps=1e-05, weight=false} : "
                 "f32[2,3,4], f32[2,3], f32[2,3]\n"
                 "%4 = silu(%1) : f32[2,3,4]\n"
                 "%5 = dropout(%4) {p=0.5, seed=3} : f32[2,3,4]\n"
                 "%6 = softmax(%5) {dim=2} : f32[2,3,4]\n"
                 "%7 = slice(%6) {dim=2, end=2, start=0, step=1} : f32[2,3,2]\n" +
                     total(7, "[0,1,2]"));
}

TEST(Rules, EinsumTakesInTransposes) {
  expect_rewrite({"absorb_transposed_operand", "absorb_transposed_result"},
                 "%0 = input \"q\" f32[2,3,4,5]\n"
                 "%1 = input \"k\" f32[2,3,4,5]\n"
                 "%2 = transpose(%0) {permutation=[0,2,1,3]} : f32[2,4,3,5]\n"
                 "%3 = transpose(%1) {permutation=[0,2,3,1]} : f32[2,4,5,3]\n"
                 "%4 = einsum(%2, %3) {equation=\"bhqd,bhdk->bhqk\"} : f32[2,4,3,3]\n"
                 "%5 = transpose(%4) {permutation=[1,0,3,2]} : f32[4,2,3,3]\n" +
                     total(5, "[0,1,2,3]"),
                 "%0 = input \"q\" f32[2,3,4,5]\n"
                 "%1 = input \"k\" f32[2,3,4,5]\n"
                 "%2 = einsum(%0, %1) {equation=\"bqhd,bkhd->hbkq\"} : f32[4,2,3,3]\n" +
                     total(2, "[0,1,2,3]"));
}

TEST(Rules, AResultWithTwoReadersKeepsItsTranspose) {
  const std::string text =
      "%0 = input \"a\" f32[2,3]\n"
      "%1 = input \"b\" f32[3,2]\n"
      "%2 = einsum(%0, %1) {equation=\"ij,jk->ik\"} : f32[2,2]\n"
      "%3 = transpose(%2) {permutation=[1,0]} : f32[2,2]\n"
      "%4 = mul(%2, %3) : f32[2,2]\n" +
      total(4, "[0,1]");
  EXPECT_EQ(body_of(*apply_rules(parsed(text), named({"absorb_transposed_result"}))), text);
}

TEST(Rules, RotaryPositionsComeBeforeTheTranspose) {
  expect_rewrite({"transpose_after_unary",
                  "transpose_after_dim",
                  "transpose_after_concat",
                  "transpose_after_broadcasting"},
                 "%0 = input \"x\" f32[2,3,4,6]\n"
                 "%1 = input \"cos\" f32[1,1,3,6]\n"
                 "%2 = transpose(%0) {permutation=[0,2,1,3]} : f32[2,4,3,6]\n"
                 "%3 = slice(%2) {dim=3, end=3, start=0, step=1} : f32[2,4,3,3]\n"
                 "%4 = neg(%3) : f32[2,4,3,3]\n"
                 "%5 = concat(%4, %3) {dim=3} : f32[2,4,3,6]\n"
                 "%6 = mul(%5, %1) : f32[2,4,3,6]\n"
                 "%7 = add(%6, %2) : f32[2,4,3,6]\n" +
                     total(7, "[0,1,2,3]"),
                 "%0 = input \"x\" f32[2,3,4,6]\n"
                 "%1 = input \"cos\" f32[1,1,3,6]\n"
                 "%2 = slice(%0) {dim=3, end=3, start=0, step=1} : f32[2,3,4,3]\n"
                 "%3 = neg(%2) : f32[2,3,4,3]\n"
                 "%4 = concat(%3, %2) {dim=3} : f32[2,3,4,6]\n"
                 "%5 = reshape(%1) {shape=[1,3,1,6]} : f32[1,3,1,6]\n"
                 "%6 = mul(%4, %5) : f32[2,3,4,6]\n"
                 "%7 = add(%6, %0) : f32[2,3,4,6]\n"
                 "%8 = transpose(%7) {permutation=[0,2,1,3]} : f32[2,4,3,6]\n" +
                     total(8, "[0,1,2,3]"));
}

TEST(Rules, AttentionTakesInRepeatedHeadsAndTransposes) {
  expect_rewrite({"drop_no_op", "merge_transposes", "group_heads", "attention_layout"},
                 "%0 = input \"q\" f32[2,3,4,5]\n"
                 "%1 = input \"k\" f32[2,3,2,5]\n"
                 "%2 = transpose(%0) {permutation=[0,2,1,3]} : f32[2,4,3,5]\n"
                 "%3 = transpose(%1) {permutation=[0,2,1,3]} : f32[2,2,3,5]\n"
                 "%4 = reshape(%3) {shape=[2,2,1,3,5]} : f32[2,2,1,3,5]\n"
                 "%5 = broadcast(%4) {shape=[2,2,2,3,5]} : f32[2,2,2,3,5]\n"
                 "%6 = reshape(%5) {shape=[2,4,3,5]} : f32[2,4,3,5]\n"
                 "%7, %8 = attention(%2, %6, %6) {causal=true, layout=\"bhsd\", mask=false, "
                 "scale=0.5} : f32[2,4,3,5], f32[2,4,3]\n"
                 "%9 = transpose(%7) {permutation=[0,2,1,3]} : f32[2,3,4,5]\n" +
                     total(9, "[0,1,2,3]"),
                 "%0 = input \"q\" f32[2,3,4,5]\n"
                 "%1 = input \"k\" f32[2,3,2,5]\n"
                 "%2, %3 = attention(%0, %1, %1) {causal=true, layout=\"bshd\", mask=false, "
                 "scale=0.5} : f32[2,3,4,5], f32[2,4,3]\n"
                 "%4 = sum(%2) {dims=[0,1,2,3], keepdim=false} : f32[]\noutput %4\n");
}

TEST(Rules, HeadsRepeatedInAnotherOrderStay) {
  // [b, 1, g, s, d] repeats the whole list of heads, not each head next to itself.
  const std::string text =
      "%0 = input \"q\" f32[2,4,3,5]\n"
      "%1 = input \"k\" f32[2,2,3,5]\n"
      "%2 = reshape(%1) {shape=[2,1,2,3,5]} : f32[2,1,2,3,5]\n"
      "%3 = broadcast(%2) {shape=[2,2,2,3,5]} : f32[2,2,2,3,5]\n"
      "%4 = reshape(%3) {shape=[2,4,3,5]} : f32[2,4,3,5]\n"
      "%5, %6 = attention(%0, %4, %4) {causal=true, layout=\"bhsd\", mask=false, scale=0.5} : "
      "f32[2,4,3,5], f32[2,4,3]\n"
      "%7 = sum(%5) {dims=[0,1,2,3], keepdim=false} : f32[]\noutput %7\n";
  EXPECT_EQ(body_of(*apply_rules(parsed(text), named({"group_heads"}))), text);
}

TEST(Rules, AttentionBroadcastsItsMask) {
  expect_rewrite({"drop_no_op", "attention_mask"},
                 "%0 = input \"q\" f32[2,4,3,5]\n"
                 "%1 = input \"m\" bool[3,3]\n"
                 "%2 = broadcast(%1) {shape=[2,4,3,3]} : bool[2,4,3,3]\n"
                 "%3, %4 = attention(%0, %0, %0, %2) {causal=false, layout=\"bhsd\", mask=true, "
                 "scale=0.5} : f32[2,4,3,5], f32[2,4,3]\n"
                 "%5 = sum(%3) {dims=[0,1,2,3], keepdim=false} : f32[]\noutput %5\n",
                 "%0 = input \"q\" f32[2,4,3,5]\n"
                 "%1 = input \"m\" bool[3,3]\n"
                 "%2 = reshape(%1) {shape=[1,1,3,3]} : bool[1,1,3,3]\n"
                 "%3, %4 = attention(%0, %0, %0, %2) {causal=false, layout=\"bhsd\", mask=true, "
                 "scale=0.5} : f32[2,4,3,5], f32[2,4,3]\n"
                 "%5 = sum(%3) {dims=[0,1,2,3], keepdim=false} : f32[]\noutput %5\n");
}

constexpr const char* kCutLayer =
    "%0 = parameter \"w\" f32[4,6] trainable\n"
    "%1 = parameter \"b\" f32[6] trainable\n"
    "%2 = input \"x\" f32[2,3,4]\n"
    "%3 = einsum(%2, %0) {equation=\"bsk,kn->bsn\"} : f32[2,3,6] layer=\"qkv\"\n"
    "%4 = add(%3, %1) : f32[2,3,6] layer=\"qkv\"\n"
    "%5 = slice(%4) {dim=2, end=2, start=0, step=1} : f32[2,3,2] layer=\"top\"\n"
    "%6 = slice(%4) {dim=2, end=6, start=4, step=1} : f32[2,3,2] layer=\"top\"\n"
    "%7 = mul(%5, %6) : f32[2,3,2]\n";

TEST(EqualParts, BecomeADimensionOfTheirOwn) {
  const Result<ir::Graph> result = separate_equal_parts(parsed(kCutLayer + total(7, "[0,1,2]")));
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_TRUE(ops::verify(*result));
  EXPECT_EQ(body_of(*result),
            "%0 = parameter \"w\" f32[4,3,2] trainable module_shape=[4,6]\n"
            "%1 = parameter \"b\" f32[3,2] trainable module_shape=[6]\n"
            "%2 = input \"x\" f32[2,3,4]\n"
            "%3 = einsum(%2, %0) {equation=\"bsk,kcn->bscn\"} : f32[2,3,3,2] layer=\"qkv\"\n"
            "%4 = add(%3, %1) : f32[2,3,3,2] layer=\"qkv\"\n"
            "%5 = slice(%4) {dim=2, end=1, start=0, step=1} : f32[2,3,1,2] layer=\"top\"\n"
            "%6 = reshape(%5) {shape=[2,3,2]} : f32[2,3,2] layer=\"top\"\n"
            "%7 = slice(%4) {dim=2, end=3, start=2, step=1} : f32[2,3,1,2] layer=\"top\"\n"
            "%8 = reshape(%7) {shape=[2,3,2]} : f32[2,3,2] layer=\"top\"\n"
            "%9 = mul(%6, %8) : f32[2,3,2]\n" +
                total(9, "[0,1,2]"));
}

TEST(EqualParts, TransposedWeightWithoutBias) {
  const Result<ir::Graph> result =
      separate_equal_parts(parsed("%0 = parameter \"w\" f32[6,4] trainable\n"
                                  "%1 = input \"x\" f32[2,4]\n"
                                  "%2 = einsum(%1, %0) {equation=\"bk,nk->bn\"} : f32[2,6]\n"
                                  "%3 = slice(%2) {dim=1, end=3, start=0, step=1} : f32[2,3]\n"
                                  "%4 = slice(%2) {dim=1, end=6, start=3, step=1} : f32[2,3]\n"
                                  "%5 = mul(%3, %4) : f32[2,3]\n" +
                                  total(5, "[0,1]")));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->type(ir::ValueId{0}).shape, (ir::Shape{2, 3, 4}));
  EXPECT_EQ(result->ops()[0].attributes.string("equation"), "bk,cnk->bcn");
}

TEST(EqualParts, OnlyWhereNothingElseReadsThem) {
  const std::string cut = kCutLayer;
  const std::string others[] = {// the weight has another reader
                                cut +
                                    "%8 = sum(%0) {dims=[0,1], keepdim=false} : f32[]\n"
                                    "%9 = sum(%7) {dims=[0,1,2], keepdim=false} : f32[]\n"
                                    "%10 = add(%8, %9) : f32[]\noutput %10\n",
                                // so has the sum
                                cut +
                                    "%8 = sum(%4) {dims=[0,1,2], keepdim=false} : f32[]\n"
                                    "%9 = sum(%7) {dims=[0,1,2], keepdim=false} : f32[]\n"
                                    "%10 = add(%8, %9) : f32[]\noutput %10\n",
                                // parts that differ in size
                                "%0 = parameter \"w\" f32[4,6] trainable\n"
                                "%1 = input \"x\" f32[2,4]\n"
                                "%2 = einsum(%1, %0) {equation=\"bk,kn->bn\"} : f32[2,6]\n"
                                "%3 = slice(%2) {dim=1, end=4, start=0, step=1} : f32[2,4]\n"
                                "%4 = slice(%2) {dim=1, end=6, start=4, step=1} : f32[2,2]\n"
                                "%5 = sum(%3) {dims=[0,1], keepdim=false} : f32[]\n"
                                "%6 = sum(%4) {dims=[0,1], keepdim=false} : f32[]\n"
                                "%7 = add(%5, %6) : f32[]\noutput %7\n"};
  for (const std::string& text : others) {
    EXPECT_EQ(body_of(*separate_equal_parts(parsed(text))), text);
  }
}

TEST(Canonicalize, RefusesTrainingSteps) {
  const Result<ir::Graph> result =
      canonicalize(parsed("%0 = input \"x\" f32[2]\n"
                          "%1 = exp(%0) : f32[2] phase=backward\n" +
                          total(1, "[0]")));
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().text(), ::testing::HasSubstr("forward graphs"));
}

TEST(Canonicalize, IsIdempotent) {
  const Result<ir::Graph> once = canonicalize(parsed(kCutLayer + total(7, "[0,1,2]")));
  ASSERT_TRUE(once);
  const Result<ir::Graph> twice = canonicalize(*once);
  ASSERT_TRUE(twice);
  EXPECT_EQ(ir::print(*once), ir::print(*twice));
}

TEST(Canonicalize, KeepsNamesOutputsAndWrites) {
  const Result<ir::Graph> result =
      canonicalize(parsed("%0 = buffer \"steps\" f32[]\n"
                          "%1 = parameter \"unused\" f32[3] trainable aliases=[\"other\"]\n"
                          "%2 = input \"x\" f32[2]\n"
                          "%3 = add_scalar(%0) {value=1.0} : f32[]\n"
                          "%4 = sum(%2) {dims=[0], keepdim=false} : f32[] names=[\"loss\"]\n"
                          "output %4\nwrite %0 <- %3\n"));
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_EQ(result->value(result->outputs.at(0)).name, "loss");
  EXPECT_TRUE(result->find_input("unused").valid());
  ASSERT_EQ(result->writes.size(), 1U);
  EXPECT_EQ(result->value(result->writes[0].target).name, "steps");
}

}  // namespace
}  // namespace shardplan::rewrite
