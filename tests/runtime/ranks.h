#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shardplan/runtime/groups.h"

namespace shardplan::runtime {

/// Runs `body` once for each rank, each on a thread of its own, with Gloo groups between them.
inline void run_ranks(std::int64_t count,
                      const std::function<void(std::int64_t rank, GroupSource& groups)>& body) {
  const std::vector<std::unique_ptr<GroupSource>> groups = thread_groups(count, 30);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] { body(rank, *groups[static_cast<std::size_t>(rank)]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace shardplan::runtime
