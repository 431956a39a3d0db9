#pragma once

#include <atomic>
#include <functional>
#include <string_view>

namespace shardplan {

/// What long work gets from its caller: a place to report to, and a flag that asks it to stop with
/// the best result so far. Both optional; cheap to copy.
struct Control {
  /// Called with a phase name and the done part (0..1, or negative when unknown), from one thread.
  std::function<void(std::string_view what, double done)> progress{};
  const std::atomic<bool>* interrupt = nullptr;

  [[nodiscard]] bool interrupted() const {
    return interrupt != nullptr && interrupt->load(std::memory_order_relaxed);
  }
  void report(std::string_view what, double done) const {
    if (progress) {
      progress(what, done);
    }
  }
};

}  // namespace shardplan
