#pragma once

#include <memory>

#include "shardplan/runtime/groups.h"

namespace shardplan::runtime {

/// The group of `base` with messages that go through memory which all members map, where they are
/// processes or threads of one machine: no system call a message, no thread beside the caller.
/// `base` is asked to agree on that memory, by all members together. Returns `base` itself, to all
/// members, where they are on several machines, where the memory is not to be had, or where the
/// environment says SHARDPLAN_SHARED_MEMORY=0. Throws what `base` throws.
///
/// A call throws when a peer is gone or has given its group back, when one that it waits for has
/// been stopped by a signal for some seconds, or after `timeout` without any progress. Memory: up
/// to 1 MiB for each member, not counted as tensors.
[[nodiscard]] std::shared_ptr<Group> shared_memory_group(std::shared_ptr<Group> base,
                                                         Seconds timeout);

}  // namespace shardplan::runtime
