#include "shardplan/runtime/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace shardplan::runtime {
namespace {

TEST(Background, WorksInOrderAndLetsGoOfWhatItHeld) {
  Background background;
  std::vector<int> order;
  const auto held = std::make_shared<int>(0);
  std::uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    last = background.start([&order, held, i] { order.push_back(i); });
  }
  background.wait(last);
  ASSERT_EQ(order.size(), 100U);
  EXPECT_EQ(order[57], 57);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Background, TellsAFailureToEveryWaiterAndGoesNoFurther) {
  Background background;
  std::atomic<bool> ran{false};
  const std::uint64_t first = background.start([] { throw std::runtime_error("lost"); });
  const std::uint64_t second = background.start([&] { ran = true; });
  EXPECT_THROW(background.wait(first), std::runtime_error);
  EXPECT_THROW(background.wait(second), std::runtime_error);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace shardplan::runtime
