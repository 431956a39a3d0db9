#pragma once

#include <atomic>
#include <cstddef>

#include "shardplan/support/ids.h"

namespace shardplan::runtime {

/// Bytes of CPU tensors, counted to the byte as they are asked for (no rounding, no pools). Safe to
/// use from several threads.
class MemoryCounter {
 public:
  void add(Bytes bytes);
  [[nodiscard]] Bytes current() const { return current_.load(std::memory_order_relaxed); }
  /// Largest `current` since construction or the last reset.
  [[nodiscard]] Bytes peak() const { return peak_.load(std::memory_order_relaxed); }
  /// Starts a new measurement: the peak falls back to what is allocated now.
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }

 private:
  std::atomic<Bytes> current_{0};
  std::atomic<Bytes> peak_{0};
};

/// Makes every CPU tensor of this process be counted, from now on. Idempotent. Tensors that exist
/// already keep their old storage and are not counted. Source of the interface: c10::Allocator.
void install_counting_allocator();

/// While it lives, tensors that this thread allocates are charged to `counter`; they are taken off
/// the same counter when they are freed, by whichever thread and at whatever time. Scopes nest. A
/// counter must outlive all tensors that were charged to it. Outside any scope nothing is counted.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCounter& counter);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  MemoryScope(MemoryScope&&) = delete;
  MemoryScope& operator=(MemoryScope&&) = delete;

 private:
  MemoryCounter* previous_;
};

/// Takes the block that starts at `data` off the counter that it is charged to, as if it was freed
/// now: what happens to it later is not seen. Precondition: the block was allocated after
/// install_counting_allocator (else nothing is done; a block from elsewhere must not be passed).
void stop_counting(void* data);

}  // namespace shardplan::runtime
