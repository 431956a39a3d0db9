#pragma once

namespace shardplan::runtime {

/// The launcher binds the meeting port itself and hands the socket to rank 0 under this name, so
/// that no other program can take the port in between.
inline constexpr const char* kListeningSocketVariable = "SHARDPLAN_LISTENING_FD";

}  // namespace shardplan::runtime
