#pragma once

#include <atomic>
#include <cstdint>

#include "shardplan/support/result.h"

namespace shardplan::runtime {

/// What a rank is at, as its launcher sees it.
enum class RankState : std::int32_t {
  kStarting,   ///< has not beaten yet
  kComputing,  ///< between collectives
  kWaiting,    ///< in a collective, for other ranks
  kLostPeer,   ///< a collective failed: another rank is gone
};

struct Beat {
  std::atomic<std::uint64_t> count{0};
  std::atomic<RankState> state{RankState::kStarting};
};

/// One beat for each rank in memory that launcher and ranks share, so that silence can be told from
/// work, and a rank that hangs from those that wait for it. A beat costs two stores.
class HeartbeatBoard {
 public:
  /// The launcher's side: makes the memory; its descriptor is inherited by the ranks.
  static Result<HeartbeatBoard> create(int ranks);
  /// A rank's side: the board named in the environment by the launcher; a board of its own that
  /// nobody watches when there is none.
  static HeartbeatBoard from_environment(int ranks);

  HeartbeatBoard(const HeartbeatBoard&) = delete;
  HeartbeatBoard& operator=(const HeartbeatBoard&) = delete;
  HeartbeatBoard(HeartbeatBoard&& other) noexcept;
  HeartbeatBoard& operator=(HeartbeatBoard&&) = delete;
  ~HeartbeatBoard();

  [[nodiscard]] Beat& of(int rank) { return beats_[rank]; }
  [[nodiscard]] const Beat& of(int rank) const { return beats_[rank]; }
  void beat(int rank, RankState state) {
    beats_[rank].state.store(state, std::memory_order_relaxed);
    beats_[rank].count.fetch_add(1, std::memory_order_relaxed);
  }
  /// Whether a launcher watches this board.
  [[nodiscard]] bool watched() const { return watched_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

  static constexpr const char* kVariable = "SHARDPLAN_HEARTBEAT_FD";

 private:
  HeartbeatBoard(Beat* beats, int ranks, int descriptor, bool watched)
      : beats_(beats), ranks_(ranks), descriptor_(descriptor), watched_(watched) {}
  static Beat* map(int descriptor, int ranks);

  Beat* beats_;
  int ranks_;
  int descriptor_;
  bool watched_;
};

}  // namespace shardplan::runtime
