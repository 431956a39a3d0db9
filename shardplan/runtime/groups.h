#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
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

/// Collectives among some ranks, in ascending order of their ranks: member i is the i-th smallest.
/// Tensors are contiguous. Calls block until the result is there; every member must call, in the
/// same order. They throw what the backend throws when a peer is gone or a timeout passes.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&&) = delete;
  Group& operator=(Group&&) = delete;
  virtual ~Group() = default;

  /// In place.
  virtual void all_reduce(at::Tensor tensor, sharding::Reduction reduction) = 0;
  /// `output` = [members, ...input]; any dtype.
  virtual void all_gather(at::Tensor output, at::Tensor input) = 0;
  /// `input` = [members, ...output].
  virtual void reduce_scatter(at::Tensor output,
                              at::Tensor input,
                              sharding::Reduction reduction) = 0;
  /// Row i of `input` goes to member i; row i of `output` comes from member i. Any dtype.
  virtual void all_to_all(at::Tensor output, at::Tensor input) = 0;
  virtual void send(at::Tensor tensor, std::int64_t to) = 0;
  virtual void receive(at::Tensor tensor, std::int64_t from) = 0;
  /// Sends `input` to one member and receives `output` from one; neither may be oneself.
  virtual void exchange(at::Tensor output,
                        std::int64_t from,
                        at::Tensor input,
                        std::int64_t to) = 0;
  virtual void barrier() = 0;
};

/// Collectives over a process group of c10d, whatever its backend. Its members must be in ascending
/// order of rank, as torch.distributed.new_group makes them.
[[nodiscard]] std::shared_ptr<Group> wrap_process_group(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// Where the groups of one rank come from.
class GroupSource {
 public:
  GroupSource() = default;
  GroupSource(const GroupSource&) = delete;
  GroupSource& operator=(const GroupSource&) = delete;
  GroupSource(GroupSource&&) = delete;
  GroupSource& operator=(GroupSource&&) = delete;
  virtual ~GroupSource() = default;
  /// The group of these ranks (ascending, this rank among them).
  virtual Result<std::shared_ptr<Group>> group(const Ranks& ranks) = 0;
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

/// Groups made elsewhere (torch.distributed): by ranks.
[[nodiscard]] std::unique_ptr<GroupSource> given_groups(
    std::map<Ranks, std::shared_ptr<Group>> groups);

/// All rank lists (ascending, more than one rank) over which the program communicates, over all
/// ranks of its mesh, and the whole world. Every rank must make them in this order.
[[nodiscard]] std::vector<Ranks> needed_groups(const lower::Program& program);

}  // namespace shardplan::runtime
