#include "shardplan/runtime/heartbeat.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace shardplan::runtime {
namespace {

std::size_t bytes_for(int ranks) {
  return static_cast<std::size_t>(ranks) * sizeof(Beat);
}

}  // namespace

Beat* HeartbeatBoard::map(int descriptor, int ranks) {
  void* memory = mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Beat*>(memory);
}

Result<HeartbeatBoard> HeartbeatBoard::create(int ranks) {
  const int descriptor = memfd_create("shardplan-heartbeat", 0);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes_for(ranks))) != 0) {
    return Error{ErrorCode::kRuntime,
                 std::string("no shared memory for the ranks: ") + std::strerror(errno),
                 {},
                 {}};
  }
  Beat* const beats = map(descriptor, ranks);
  if (beats == nullptr) {
    close(descriptor);
    return Error{ErrorCode::kRuntime,
                 std::string("no shared memory for the ranks: ") + std::strerror(errno),
                 {},
                 {}};
  }
  for (int rank = 0; rank < ranks; ++rank) {
    new (&beats[rank]) Beat();
  }
  return HeartbeatBoard(beats, ranks, descriptor, true);
}

HeartbeatBoard HeartbeatBoard::from_environment(int ranks) {
  const char* const variable = std::getenv(kVariable);
  const int descriptor = variable == nullptr ? -1 : std::atoi(variable);  // NOLINT(cert-err34-c)
  struct stat status {};
  if (descriptor > 2 && fstat(descriptor, &status) == 0 &&
      static_cast<std::size_t>(status.st_size) >= bytes_for(ranks)) {
    if (Beat* const beats = map(descriptor, ranks); beats != nullptr) {
      return {beats, ranks, descriptor, true};
    }
  }
  return {new Beat[static_cast<std::size_t>(ranks)], ranks, -1, false};
}

HeartbeatBoard::HeartbeatBoard(HeartbeatBoard&& other) noexcept
    : beats_(std::exchange(other.beats_, nullptr)),
      ranks_(other.ranks_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      watched_(other.watched_) {}

HeartbeatBoard::~HeartbeatBoard() {
  if (beats_ == nullptr) {
    return;
  }
  if (watched_) {
    munmap(beats_, bytes_for(ranks_));
    close(descriptor_);
  } else {
    delete[] beats_;
  }
}

}  // namespace shardplan::runtime
