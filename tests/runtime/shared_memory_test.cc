// Messages through shared memory: content, order, and peers that are gone. Ranks are threads.
#include "shardplan/runtime/shared_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranks.h"

namespace shardplan::runtime {
namespace {

at::Tensor numbers(std::int64_t count, std::int64_t first) {
  return at::arange(first, first + count, at::TensorOptions(at::kLong));
}

std::shared_ptr<Group> everyone(GroupSource& groups, std::int64_t ranks) {
  Ranks all;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    all.push_back(rank);
  }
  Result<std::shared_ptr<Group>> group = groups.group(all);
  EXPECT_TRUE(group.has_value());
  return group ? *group : nullptr;
}

TEST(SharedMemory, MovesMessagesOfAnySizeBetweenAllPairsInOrder) {
  constexpr std::int64_t kRanks = 4;
  run_ranks(kRanks, [](std::int64_t rank, GroupSource& groups) {
    const std::shared_ptr<Group> group = everyone(groups, kRanks);
    // Empty, tiny, and many times what a ring holds.
    for (const std::int64_t count : {0, 1, 3, 1000, 700'001}) {
      std::vector<Transfer> receives;
      std::vector<Transfer> sends;
      for (std::int64_t peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) {
          receives.push_back({peer, at::zeros({count + peer}, at::TensorOptions(at::kLong))});
          sends.push_back({peer, numbers(count + rank, 10 * rank + peer)});
        }
      }
      group->transfer(receives, sends);
      for (const Transfer& got : receives) {
        EXPECT_TRUE(got.tensor.equal(numbers(count + got.member, 10 * got.member + rank)));
      }
    }
    group->barrier();
  });
}

TEST(SharedMemory, ManySmallMessagesStayInOrder) {
  run_ranks(2, [](std::int64_t rank, GroupSource& groups) {
    const std::shared_ptr<Group> group = everyone(groups, 2);
    for (std::int64_t i = 0; i < 20'000; ++i) {
      const at::Tensor got = at::empty({1}, at::TensorOptions(at::kLong));
      if (rank == 0) {
        group->transfer({}, {{1, numbers(1, i)}});
      } else {
        group->transfer({{0, got}}, {});
        ASSERT_EQ(got.item<std::int64_t>(), i);
      }
    }
  });
}

TEST(SharedMemory, APeerThatLeftIsToldAfterItsLastMessage) {
  run_ranks(2, [](std::int64_t rank, GroupSource& groups) {
    std::shared_ptr<Group> group = everyone(groups, 2);
    if (rank == 0) {
      group->transfer({}, {{1, numbers(5, 0)}});
      group.reset();
      return;
    }
    const at::Tensor got = at::empty({5}, at::TensorOptions(at::kLong));
    group->transfer({{0, got}}, {});
    EXPECT_TRUE(got.equal(numbers(5, 0)));
    EXPECT_THROW(group->transfer({{0, got}}, {}), std::runtime_error);
  });
}

TEST(SharedMemory, SilenceEndsAtTheTimeout) {
  const std::vector<std::unique_ptr<GroupSource>> sources = thread_groups(2, 2);
  std::vector<std::string> errors(2);
  run_ranks_on(sources, [&](std::int64_t rank, GroupSource& groups) {
    const std::shared_ptr<Group> group = everyone(groups, 2);
    const at::Tensor got = at::empty({5}, at::TensorOptions(at::kLong));
    try {
      group->transfer({{1 - rank, got}}, {});
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  EXPECT_NE((errors[0] + errors[1]).find("does not answer"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::runtime
