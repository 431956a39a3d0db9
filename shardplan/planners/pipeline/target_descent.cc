#include "shardplan/planners/pipeline/target_descent.h"

#include <algorithm>
#include <cmath>

namespace shardplan::planners {
namespace {

constexpr double kClose = 1e-3;      // relative distance of the ends at which a proof is tried
constexpr double kStrictly = 1e-12;  // less than the upper end
constexpr double kFarBelow = 1e-6;   // of the upper end, where the lower one is 0

}  // namespace

void TargetDescent::bisect(const Try& some) const {
  double from = low;
  while (high > from * (1 + kClose) && !stopped()) {
    const double middle = std::sqrt(std::max(from, high * kFarBelow) * high);
    if (!some(middle)) {
      from = middle;
    }
  }
}

void TargetDescent::gallop(const Try& some) const {
  double step = kClose;
  while (!stopped() && high * (1 - step) > low && some(high * (1 - step))) {
    step *= 2;
  }
}

void TargetDescent::exhaust(const Try& some) const {
  gallop(some);
  while (!stopped() && low < high * (1 - kStrictly) && some(high * (1 - kStrictly))) {
    gallop(some);
  }
}

bool TargetDescent::prove(const Try& all) {
  const double target = high * (1 - kStrictly);
  if (stopped() || (low < target && (all(target) || stopped()))) {
    return false;
  }
  low = high;
  return true;
}

void TargetDescent::descend(const Try& some, const Try& all) {
  bisect(some);
  while (!prove(all) && !stopped()) {
    gallop(some);
  }
}

}  // namespace shardplan::planners
