#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace shardplan::runtime {

/// A thread that does one piece of work after the other, in the order in which they were given.
/// After one has thrown, those behind it are not begun.
class Background {
 public:
  Background() : thread_([this] { loop(); }) {}
  /// Waits for the piece in progress; those behind it are not begun.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  Background(Background&&) = delete;
  Background& operator=(Background&&) = delete;

  /// Returns the number by which to wait for it.
  std::uint64_t start(std::function<void()> work);
  /// Until that piece, and all before it, are done and their closures are destroyed. Throws what
  /// one of them has thrown.
  void wait(std::uint64_t number);

 private:
  void loop();

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<std::function<void()>> work_{};
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_{};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shardplan::runtime
