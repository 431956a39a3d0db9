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

void TargetDescent::descend(const Try& some, const Try& all) {
  bisect(some);
  while (!stopped()) {
    if (low >= high * (1 - kStrictly) || !all(high * (1 - kStrictly))) {
      low = stopped() ? low : high;
      return;
    }
    double step = kClose;
    while (!stopped() && some(high * (1 - step))) {
      step *= 2;
    }
  }
}

}  // namespace shardplan::planners
