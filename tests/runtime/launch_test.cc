// The launcher starts copies of this test program, which then run LaunchedRank.Behaves only.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "shardplan/runtime/heartbeat.h"
#include "shardplan/runtime/runtime.h"

namespace shardplan::runtime {
namespace {

constexpr const char* kBehaviour = "SHARDPLAN_TEST_BEHAVIOUR";

/// Not a test of its own: what each rank does in the tests below.
TEST(LaunchedRank, DISABLED_Behaves) {
  const RankInfo rank = rank_from_environment().value_or(RankInfo{});
  const std::string behaviour = std::getenv(kBehaviour);
  HeartbeatBoard board = HeartbeatBoard::from_environment(rank.world_size);
  EXPECT_TRUE(board.watched());
  board.beat(rank.rank, RankState::kComputing);
  if (behaviour == "all well" || (behaviour == "one unequal" && rank.rank > 0)) {
    _exit(0);
  }
  if (rank.rank == 1 && behaviour == "killed") {
    raise(SIGKILL);
  }
  if (rank.rank == 1 && behaviour == "fails") {
    _exit(2);
  }
  if (behaviour == "one unequal") {
    _exit(1);
  }
  if (rank.rank != 1) {
    board.beat(rank.rank, RankState::kWaiting);
  }
  std::this_thread::sleep_for(std::chrono::seconds(60));
  _exit(0);
}

Result<int> launch(const char* behaviour) {
  setenv(kBehaviour, behaviour, 1);
  RunOptions options;
  options.timeout = 1;
  return launch_local(
      3,
      {"--gtest_filter=LaunchedRank.*", "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
      options);
}

TEST(Launch, ReturnsTheCodeOfRankZero) {
  EXPECT_EQ(launch("all well").value(), 0);
  EXPECT_EQ(launch("one unequal").value(), 1);
}

TEST(Launch, NamesTheRankThatFailsWithinSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const auto message = [](const char* behaviour) {
    const Result<int> code = launch(behaviour);
    return code ? std::string("no error") : code.error().text();
  };
  EXPECT_NE(message("killed").find("rank 1 was killed by signal 9 (SIGKILL)"), std::string::npos);
  EXPECT_NE(message("fails").find("rank 1 failed with exit code 2"), std::string::npos);
  EXPECT_NE(message("hangs").find("rank 1 hangs: no progress for 1 s"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Launch, RefusesNoRanks) {
  const Result<int> code = launch_local(0, {}, {});
  ASSERT_FALSE(code.has_value());
  EXPECT_NE(code.error().text().find("at least one rank"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::runtime
