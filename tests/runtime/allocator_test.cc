#include "shardplan/runtime/allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardplan::runtime {
namespace {

TEST(Allocator, CountsToTheByte) {
  install_counting_allocator();
  MemoryCounter counter;
  {
    const MemoryScope scope(counter);
    at::Tensor a = at::empty({10, 100}, at::kFloat);
    EXPECT_EQ(counter.current(), 4000);
    {
      const at::Tensor b = a.to(at::kDouble);
      EXPECT_EQ(counter.current(), 12000);
    }
    EXPECT_EQ(counter.current(), 4000);
    EXPECT_EQ(counter.peak(), 12000);
    counter.reset_peak();
    EXPECT_EQ(counter.peak(), 4000);
    const at::Tensor view = a.view({1000});
    a.reset();
    EXPECT_EQ(counter.current(), 4000);
  }
  EXPECT_EQ(counter.current(), 0);
}

TEST(Allocator, OneDnnPathsWorkOnTheCountedMemory) {
  install_counting_allocator();
  MemoryCounter counter;
  {
    const MemoryScope scope(counter);
    const at::Tensor y = at::gelu(at::ones({64, 64}, at::kFloat));
    EXPECT_NEAR(y.sum().item<double>(), 64 * 64 * 0.8413447, 1e-2);
  }
  EXPECT_EQ(counter.current(), 0);
}

TEST(Allocator, AFreeOnAnotherThreadIsTakenOffTheSameCounter) {
  install_counting_allocator();
  MemoryCounter counter;
  MemoryCounter other;
  at::Tensor tensor;
  {
    const MemoryScope scope(counter);
    tensor = at::empty({256}, at::kByte);
  }
  std::thread([&] {
    const MemoryScope scope(other);
    tensor.reset();
  }).join();
  EXPECT_EQ(counter.current(), 0);
  EXPECT_EQ(counter.peak(), 256);
  EXPECT_EQ(other.peak(), 0);
}

TEST(Allocator, NestedScopesAndNoScope) {
  install_counting_allocator();
  MemoryCounter outer;
  MemoryCounter inner;
  const at::Tensor uncounted = at::empty({8}, at::kByte);
  const MemoryScope scope(outer);
  at::Tensor a;
  {
    const MemoryScope nested(inner);
    a = at::empty({16}, at::kByte);
  }
  const at::Tensor b = at::empty({32}, at::kByte);
  EXPECT_EQ(inner.current(), 16);
  EXPECT_EQ(outer.current(), 32);
  stop_counting(a.storage().mutable_data());
  EXPECT_EQ(inner.current(), 0);
  a.reset();
  EXPECT_EQ(inner.current(), 0);
}

TEST(Allocator, GivesALargeBlockToTheNextTensorOfItsSize) {
  install_counting_allocator();
  MemoryCounter counter;
  const MemoryScope scope(counter);
  constexpr std::int64_t kElements = 1 << 20;
  at::Tensor first = at::empty({kElements}, at::kFloat);
  const void* const block = first.const_data_ptr();
  first.reset();
  EXPECT_EQ(counter.current(), 0);
  const at::Tensor smaller = at::empty({kElements - 1000}, at::kFloat);
  EXPECT_EQ(smaller.const_data_ptr(), block);
  EXPECT_EQ(counter.current(), 4 * (kElements - 1000));
  const at::Tensor other = at::ones({kElements}, at::kFloat);
  EXPECT_NE(other.const_data_ptr(), block);
}

}  // namespace
}  // namespace shardplan::runtime
