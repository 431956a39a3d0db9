#include "shardplan/runtime/random.h"

#include <gtest/gtest.h>

namespace shardplan::runtime {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Known answers of Philox 4x32-10 as published with Salmon et al.'s reference code.
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, DependsOnKeyDrawAndIndexOnly) {
  RandomStream forward(7, 3);
  std::array<std::uint32_t, 9> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = forward.bits(i);
  }
  RandomStream backward(7, 3);
  for (std::size_t i = numbers.size(); i-- > 0;) {
    EXPECT_EQ(backward.bits(i), numbers[i]);
  }
  EXPECT_NE(RandomStream(8, 3).bits(0), numbers[0]);
  EXPECT_NE(RandomStream(7, 4).bits(0), numbers[0]);
  EXPECT_NE(random_key(0, "a"), random_key(0, "b"));
  EXPECT_NE(random_key(0, "a"), random_key(1, "a"));
}

TEST(RandomStream, NormalHasMeanZeroAndDeviationOne) {
  RandomStream stream(random_key(0, "normal"), 0);
  constexpr int kCount = 100000;
  double sum = 0;
  double squares = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = stream.normal(i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

}  // namespace
}  // namespace shardplan::runtime
