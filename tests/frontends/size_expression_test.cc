#include "shardplan/frontends/size_expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace shardplan::frontends {
namespace {

using ::testing::ElementsAre;

const SymbolValues values{{"s23", 4}, {"s24", 7}, {"ids.1", 7}, {"n", 3}};

std::optional<std::int64_t> value(std::string_view text) {
  return whole_size(text, values);
}

TEST(SizeExpression, ReadsConstructors) {
  EXPECT_EQ(value("Symbol('s23', positive=True, integer=True)"), 4);
  EXPECT_EQ(value("Mul(Integer(2), Symbol('s24', positive=True, integer=True))"), 14);
  EXPECT_EQ(value("Add(Symbol('s24', integer=True), Integer(-1), Symbol('s23'))"), 10);
  EXPECT_EQ(value("FloorDiv(Add(Symbol('s24'), Integer(1)), Integer(3))"), 2);
  EXPECT_EQ(value("Mod(Mul(Integer(-1), Symbol('s24')), Integer(4))"), 1);
  EXPECT_EQ(value("Max(Integer(1), Symbol('s23'), Symbol('s24'))"), 7);
  EXPECT_EQ(value("Min(Symbol('s23'), Symbol('s24'))"), 4);
  EXPECT_EQ(value("Pow(Symbol('s23'), Integer(3))"), 64);
  EXPECT_EQ(value("Mul(Rational(1, 2), Symbol('s23'))"), 2);
  EXPECT_EQ(value("CeilToInt(IntTrueDiv(Symbol('s24'), Integer(2)))"), 4);
  EXPECT_EQ(value("ModularIndexing(Symbol('s24'), Integer(2), Integer(2))"), 1);
  EXPECT_EQ(value("StrictLessThan(Symbol('s23'), Symbol('s24'))"), 1);
  EXPECT_EQ(value("Float('2.0', precision=53)"), 2);
}

TEST(SizeExpression, ReadsPython) {
  EXPECT_EQ(value("2*s24 + s23//3 - 1"), 14);
  EXPECT_EQ(value("-s24 // 2"), -4);
  EXPECT_EQ(value("-(s24 // 2) % 5"), 2);
  EXPECT_EQ(value("2**3**1 + -2**2"), 4);
  EXPECT_EQ(value("(s23 + s24) * (s24 - s23)"), 33);
  EXPECT_EQ(value("L['ids'].size()[1] == s24 and not s23 > s24"), 1);
  EXPECT_EQ(value("1 < s23 <= 4 or s24 == 0"), 1);
  EXPECT_EQ(value("1 < s23 < 4"), 0);
  EXPECT_EQ(value("max(L['n'], 2*L['ids'].size()[1], 5)"), 14);
}

TEST(SizeExpression, GivesNothingForWhatHasNoValue) {
  for (const char* const text : {"",
                                 "s99",
                                 "s23 +",
                                 "s23 s24",
                                 "s24 // 0",
                                 "s24 % (s23 - 4)",
                                 "9223372036854775807 * 2",
                                 "-9223372036854775807 - 2",
                                 "s24 / 2",
                                 "Unknown(s23)",
                                 "Symbol(",
                                 "Symbol('s23'",
                                 "L['ids'].stride()[0]",
                                 "L[0]",
                                 "((s23)",
                                 "'s23'",
                                 "10**40"}) {
    EXPECT_EQ(value(text), std::nullopt) << text;
  }
}

TEST(SizeExpression, FindsSymbols) {
  EXPECT_THAT(symbols_of("Mul(Symbol('s24', integer=True), Symbol('s23'), Symbol('s24'))"),
              ElementsAre("s24", "s23"));
  EXPECT_THAT(symbols_of("max(u0, 2*s1) // L['x'].size()[0]"), ElementsAre("u0", "s1", "x.0"));
}

TEST(SizeExpression, DamagedTextNeverCrashes) {
  EXPECT_EQ(value(std::string(100000, '(')), std::nullopt);
  EXPECT_EQ(value(std::string(100000, '-') + "1"), std::nullopt);
  std::string calls;
  for (int i = 0; i < 50000; ++i) {
    calls += "Add(";
  }
  EXPECT_EQ(value(calls), std::nullopt);
  const std::string alphabet = "s2(),'[]+-*/%<>=!L.size Add1notorandMin";
  std::mt19937_64 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (std::uint64_t i = 0; i < random() % 24; ++i) {
      text += alphabet[random() % alphabet.size()];
    }
    static_cast<void>(value(text));
  }
}

}  // namespace
}  // namespace shardplan::frontends
