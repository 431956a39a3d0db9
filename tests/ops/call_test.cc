// The text of a call's arguments and results.

#include "shardplan/ops/call.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops_testing.h"

namespace shardplan::ops {
namespace {

TEST(CallArguments, ReadBackAsWritten) {
  for (const char* const text : {"",
                                 "self=$0, dim=-1",
                                 "x=none, eps=1e-05, p=0.0, inf=inf, low=-inf",
                                 "index=[none,$0,$1], accumulate=true, keep=false",
                                 "empty=[], sizes=[1,2,3], scales=[0.5,2.0]",
                                 "mode='mean, of [all]', dtype=:f32"}) {
    const Result<std::vector<CallArgument>> arguments = parse_call_arguments(text);
    ASSERT_TRUE(arguments.has_value()) << text << ": " << arguments.error().text();
    EXPECT_EQ(to_string(*arguments), text);
  }
}

TEST(CallArguments, AreRefusedWhenDamaged) {
  for (const char* const text : {"self",
                                 "self=",
                                 "self=$",
                                 "self=$x",
                                 "self=$0,dim=1",
                                 "x=[1,2",
                                 "x=[1 2]",
                                 "x='open",
                                 "x=:f31",
                                 "x=1e999x",
                                 "x=[[[[[[1]]]]]]"}) {
    EXPECT_FALSE(parse_call_arguments(text).has_value()) << text;
  }
}

TEST(Call, NamesEachOperandOnceInOrder) {
  const ir::Attributes attributes{{"target", std::string("aten.add.Tensor")},
                                  {"arguments", std::string("self=$1, other=$0")},
                                  {"results", std::string("same[4]")}};
  EXPECT_NE(error_of({"call", {f32({4}), f32({4})}, attributes}), "");
  EXPECT_NE(error_of({"call", {f32({4})}, attributes}), "");
}

TEST(Call, IsCutOnlyAlongIndependentDimensions) {
  const auto axes = [](const char* target, const char* arguments, const char* results, Types in) {
    return axes_of({"call",
                    std::move(in),
                    {{"target", std::string(target)},
                     {"arguments", std::string(arguments)},
                     {"results", std::string(results)}}});
  };
  EXPECT_EQ(axes("aten.cumprod.default", "self=$0, dim=1", "same[4,6]", {f32({4, 6})}),
            "d0 * -> d0 *");
  EXPECT_EQ(axes("aten.flip.default", "self=$0, dims=[0]", "same[4,6]", {f32({4, 6})}),
            "* d1 -> * d1");
  EXPECT_EQ(axes("aten.roll.default", "self=$0, shifts=[1]", "same[4,6]", {f32({4, 6})}),
            "* * -> * *");
  EXPECT_EQ(axes("aten.linalg_qr.default", "A=$0", "same[4,4] same[4,6]", {f32({4, 6})}),
            "* * -> * *, * *");
  // Gathering fewer rows than there are: dimension 1 only where the sizes agree.
  EXPECT_EQ(axes("aten.gather.default",
                 "self=$0, dim=0, index=$1",
                 "same[2,6]",
                 {f32({4, 6}), i64({2, 6})}),
            "* d1, * d1 -> * d1");
  EXPECT_EQ(axes("aten.gather.default",
                 "self=$0, dim=0, index=$1",
                 "same[2,3]",
                 {f32({4, 6}), i64({2, 3})}),
            "* *, * * -> * *");
}

TEST(Call, OfADrawIsWhole) {
  const ir::Attributes attributes{{"target", std::string("aten.rand_like.default")},
                                  {"arguments", std::string("self=$0")},
                                  {"results", std::string("same[4,6]")},
                                  {"site", std::int64_t{3}}};
  EXPECT_EQ(axes_of({"call", {f32({4, 6})}, attributes}), "* * -> * *");
  EXPECT_TRUE(draws_random_numbers("aten.rand_like.default", {}));
  EXPECT_TRUE(draws_random_numbers("aten.log_normal.default", {}));
  const auto sometimes = [](const char* text) {
    return draws_random_numbers("aten.lstm.input", *parse_call_arguments(text));
  };
  EXPECT_FALSE(sometimes("dropout=0.0, train=true"));
  EXPECT_FALSE(sometimes("dropout=0.5, train=false"));
  EXPECT_TRUE(sometimes("dropout=0.5, train=true"));
}

}  // namespace
}  // namespace shardplan::ops
