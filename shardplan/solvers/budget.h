#pragma once

#include <algorithm>
#include <chrono>

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// How long a solver may go on: until its time limit, or until its caller asks it to stop. Keeps a
/// reference to the options.
class Budget {
 public:
  explicit Budget(const SolveOptions& options) : control_(options.control) {
    if (options.time_limit > 0) {
      constexpr double kLongest = 1e8;
      const std::chrono::duration<double> seconds(std::min(options.time_limit, kLongest));
      end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    }
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
  const Control& control_;
  Clock::time_point end_ = Clock::time_point::max();
};

}  // namespace shardplan::solvers
