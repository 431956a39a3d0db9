#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shardplan/runtime/groups.h"

namespace shardplan::runtime {

/// Runs `body` once for each source of groups, each on a thread of its own.
inline void run_ranks_on(const std::vector<std::unique_ptr<GroupSource>>& groups,
                         const std::function<void(std::int64_t rank, GroupSource& groups)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] { body(static_cast<std::int64_t>(rank), *groups[rank]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// The same for so many ranks, with groups of this machine between them.
inline void run_ranks(std::int64_t count,
                      const std::function<void(std::int64_t rank, GroupSource& groups)>& body) {
  run_ranks_on(thread_groups(count, 30), body);
}

}  // namespace shardplan::runtime
