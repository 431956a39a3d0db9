#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// What a solver may spend: time until its limit or until its caller asks it to stop, and bytes of
/// tables. Keeps a reference to the options.
class Budget {
 public:
  explicit Budget(const SolveOptions& options)
      : control_(options.control),
        bytes_(static_cast<std::size_t>(options.memory_limit > 0 ? options.memory_limit
                                                                 : kDefaultBytes)) {
    if (options.time_limit > 0) {
      constexpr double kLongest = 1e8;
      const std::chrono::duration<double> seconds(std::min(options.time_limit, kLongest));
      end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    }
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Seconds left; 0 when there is no limit.
  [[nodiscard]] double seconds_left() const {
    constexpr double kLeast = 1e-6;
    if (end_ == Clock::time_point::max()) {
      return 0;
    }
    return std::max(kLeast, std::chrono::duration<double>(end_ - Clock::now()).count());
  }
  [[nodiscard]] bool late() const { return end_ < Clock::time_point::max() && Clock::now() > end_; }
  [[nodiscard]] bool exhausted() const { return control_.interrupted() || late(); }
  /// What has run out.
  [[nodiscard]] SolveLimit limit() const {
    return control_.interrupted() ? SolveLimit::kInterrupted
           : late()               ? SolveLimit::kTime
                                  : SolveLimit::kNone;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::int64_t kDefaultBytes = std::int64_t{4} << 30U;
  const Control& control_;
  std::size_t bytes_;
  Clock::time_point end_ = Clock::time_point::max();
};

}  // namespace shardplan::solvers
