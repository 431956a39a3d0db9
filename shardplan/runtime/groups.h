#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardplan/lower/program.h"
#include "shardplan/sharding/reshard.h"
#include "shardplan/support/result.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace shardplan::runtime {

using Ranks = std::vector<std::int64_t>;

/// A tensor to or from one member of a group.
struct Transfer {
  std::int64_t member = 0;
  at::Tensor tensor{};  ///< contiguous, any dtype
};

/// Another rank is gone, or does not answer.
class PeerLost : public std::runtime_error {
 public:
  /// `how`: "is gone", "does not answer".
  PeerLost(std::int64_t rank, const std::string& how)
      : std::runtime_error("rank " + std::to_string(rank) + " " + how) {}
};

/// Some ranks that exchange tensors, in ascending order of their ranks: member i is the i-th
/// smallest. Calls block until everything has arrived; they throw PeerLost when a peer is gone or a
/// timeout passes. Only messages between two members are asked of the backend:
/// collectives (collectives.h) are made of them, so that they sum in the same order everywhere and
/// allocate what the program says, whatever the backend.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&&) = delete;
  Group& operator=(Group&&) = delete;
  virtual ~Group() = default;

  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t member() const = 0;  ///< this rank's number
  [[nodiscard]] virtual std::int64_t rank_of(std::int64_t member) const = 0;
  /// All messages at once; at most one to and one from each other member, none to oneself; those of
  /// no elements are not sent. Messages between two members arrive in the order of their calls.
  virtual void transfer(const std::vector<Transfer>& receives,
                        const std::vector<Transfer>& sends) = 0;
  virtual void barrier() = 0;
};

/// How long a group that torch.distributed made waits for a peer.
inline constexpr Seconds kLongTimeout = 1800;

/// A process group of c10d, whatever its backend, of these ranks. Its members must be in ascending
/// order of rank, as torch.distributed.new_group makes them, and must all call. On one machine its
/// messages go through shared memory (shared_memory.h).
[[nodiscard]] std::shared_ptr<Group> wrap_process_group(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    Ranks ranks,
    Seconds timeout = kLongTimeout);

/// Where the groups of one rank come from.
class GroupSource {
 public:
  GroupSource() = default;
  GroupSource(const GroupSource&) = delete;
  GroupSource& operator=(const GroupSource&) = delete;
  GroupSource(GroupSource&&) = delete;
  GroupSource& operator=(GroupSource&&) = delete;
  virtual ~GroupSource() = default;
  /// The group of these ranks (ascending, this rank among them). Groups for other purposes are
  /// other groups, whose calls may go on at the same time.
  virtual Result<std::shared_ptr<Group>> group(const Ranks& ranks,
                                               const std::string& purpose = {}) = 0;
};

/// Where the processes of a run meet.
struct Rendezvous {
  std::string host{};
  int port = 0;
  /// Rank 0: a socket that listens at the port already, taken over; -1 = bind here.
  int listening_socket = -1;
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  Seconds meeting_timeout = 300;
  Seconds collective_timeout = 60;  ///< how long a collective waits for a peer
};

/// Gloo between processes, meeting at a TCP store that rank 0 serves. Groups talk over the loopback
/// device when the host is this machine, else over the device that reaches the host. Errors: a busy
/// port, no server in time.
[[nodiscard]] Result<std::unique_ptr<GroupSource>> process_groups(const Rendezvous& rendezvous);

/// Gloo between `count` ranks that are threads of this process: one source for each.
[[nodiscard]] std::vector<std::unique_ptr<GroupSource>> thread_groups(std::int64_t count,
                                                                      Seconds collective_timeout);

/// A group that the ranks make together, and what for: groups of one purpose may wait for those of
/// another.
struct NeededGroup {
  Ranks ranks{};
  std::string purpose{};
  auto operator<=>(const NeededGroup&) const = default;
};

/// Groups made elsewhere (torch.distributed).
[[nodiscard]] std::unique_ptr<GroupSource> given_groups(
    std::map<NeededGroup, std::shared_ptr<Group>> groups);

/// All rank lists (ascending, more than one rank) over which the program communicates, over all
/// ranks of its mesh, and the whole world; the first rank of the mesh is `first_rank`. Every rank
/// must make them in this order.
[[nodiscard]] std::vector<Ranks> needed_groups(const lower::Program& program,
                                               std::int64_t first_rank = 0);

}  // namespace shardplan::runtime
