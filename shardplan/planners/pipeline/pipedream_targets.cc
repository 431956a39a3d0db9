#include "shardplan/planners/pipeline/pipedream_targets.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardplan::planners {
namespace {

constexpr int kWordBits = 64;
constexpr double kRounding = 1e-9;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

PipedreamTargets::PipedreamTargets(Costs costs)
    : costs_(std::move(costs)), reach_(at(costs_.states)) {}

bool PipedreamTargets::reaches(const Reach& reach, int machines) {
  const bool single =
      ((reach.single[at(machines / kWordBits)] >> static_cast<unsigned>(machines % kWordBits)) &
       1U) != 0;
  return single || machines >= reach.from;
}

PipedreamTargets::Need PipedreamTargets::need(int from, int to, double target, int most) const {
  Need need;
  need.versions = costs_.versions(from, to);
  need.replicas = none();
  if (need.versions < 1) {
    return need;
  }
  need.single = costs_.time(from, to, 1) <= target;
  if (!costs_.replicas || most < 2 || costs_.time(from, to, most) > target) {
    return need;
  }
  int low = 2;  // the least that is enough
  int high = most;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (costs_.time(from, to, middle) <= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  need.replicas = low;
  return need;
}

bool PipedreamTargets::may_reach(int from, int to, int machines, double target) const {
  const double replicas = machines - first_[at(from)];
  const double time = costs_.single[at(to)] - costs_.single[at(from)];
  const double twice = costs_.synchronisation[at(to)] - costs_.synchronisation[at(from)];
  return from == 0 ||
         (replicas >= 2 &&
          (time + 2 * twice * (replicas - 1) / replicas) * (1 - kRounding) <= replicas * target);
}

int PipedreamTargets::after(const Need& need, int used) const {
  if (need.replicas > costs_.machines - used) {
    return none();
  }
  const double left = costs_.machines - used;
  const double by_memory = std::ceil(left / (need.versions + 1));
  return used + std::max(need.replicas, static_cast<int>(by_memory));
}

int PipedreamTargets::before_single(const Need& need) const {
  const double most_left = std::min(need.versions + 1, static_cast<double>(costs_.machines));
  return costs_.machines - static_cast<int>(most_left);
}

/// Whether one more machine leads to numbers that are not yet known.
bool PipedreamTargets::adds_single(const Reach& before, const Reach& reach) {
  std::uint64_t missing = before.from + 1 < reach.from ? 1 : 0;
  std::uint64_t carry = 0;
  for (std::size_t w = 0; w < reach.single.size() && missing == 0; ++w) {
    missing |= ((before.single[w] << 1U) | carry) & ~reach.single[w];
    carry = before.single[w] >> 63U;
  }
  return missing != 0;
}

void PipedreamTargets::extend(int from, int to, const Need& need) {
  const Reach& before = reach_[at(from)];
  Reach& reach = reach_[at(to)];
  const int start = first(before);
  if (start < none()) {
    reach.from = std::min(reach.from, after(need, start));
  }
  if (!need.single) {
    return;
  }
  const int least = before_single(need);
  if (before.from <= costs_.machines) {
    reach.from = std::min(reach.from, std::max(before.from, least) + 1);
  }
  std::uint64_t carry = 0;
  for (std::size_t w = at(least / kWordBits); w < before.single.size(); ++w) {
    std::uint64_t bits = before.single[w];
    if (w == at(least / kWordBits)) {
      bits &= ~std::uint64_t{0} << static_cast<unsigned>(least % kWordBits);
    }
    reach.single[w] |= (bits << 1U) | carry;
    carry = bits >> 63U;
  }
}

std::vector<PipedreamTargets::Stage> PipedreamTargets::find(double target,
                                                            const solvers::Budget& budget) {
  const int last = costs_.states - 1;
  const std::size_t words = at(costs_.machines / kWordBits) + 1;
  for (Reach& reach : reach_) {
    reach.single.assign(words, 0);
    reach.least = none();
    reach.from = none();
  }
  first_.assign(reach_.size(), 0);
  reach_[0].single[0] = 1;
  reach_[0].least = 0;
  for (int to = 1; to <= last; ++to) {
    Reach& reach = reach_[at(to)];
    if (budget.exhausted()) {
      return {};
    }
    for (int from = to - 1; from >= 0; --from) {
      const int most = std::min(costs_.machines, reach.from - 1);
      const bool may_be_single =
          costs_.single[at(to)] - costs_.single[at(from)] <= target * (1 + kRounding) &&
          adds_single(reach_[at(from)], reach);
      const bool may_be_several = may_reach(from, to, most, target);
      if ((may_be_single || may_be_several) && first_[at(from)] < costs_.machines &&
          costs_.contains(to, from)) {
        // More replicas than lead to what is known already would be of no use.
        const int replicas = may_be_several ? most - first(reach_[at(from)]) : 1;
        extend(from, to, need(from, to, target, replicas));
      }
    }
    for (int m = 0; m <= costs_.machines && reach.least == none(); ++m) {
      const std::uint64_t word = reach.single[at(m / kWordBits)];
      if (word == 0) {
        m += kWordBits - 1 - m % kWordBits;
      } else if (((word >> static_cast<unsigned>(m % kWordBits)) & 1U) != 0) {
        reach.least = m;
      }
    }
    first_[at(to)] = first(reach);
  }
  return trace(target);
}

std::vector<PipedreamTargets::Stage> PipedreamTargets::trace(double target) const {
  int state = costs_.states - 1;
  int machines = costs_.machines;
  if (!costs_.all_machines && !reaches(reach_[at(state)], machines)) {
    machines = first(reach_[at(state)]);
  }
  if (machines > costs_.machines || !reaches(reach_[at(state)], machines)) {
    return {};
  }
  std::vector<Stage> stages;
  while (state > 0) {
    Stage stage{-1, state, 0};
    for (int from = state - 1; from >= 0 && stage.from < 0; --from) {
      const Reach& before = reach_[at(from)];
      const int start = first(before);
      const bool may_be_single =
          costs_.single[at(state)] - costs_.single[at(from)] <= target * (1 + kRounding);
      if (start >= machines || !costs_.contains(state, from) ||
          (!may_be_single && !may_reach(from, state, machines, target))) {
        continue;
      }
      const Need stage_need = need(from, state, target, costs_.machines - start);
      if (stage_need.single && machines - 1 >= before_single(stage_need) &&
          reaches(before, machines - 1)) {
        stage.from = from;
        stage.replicas = 1;
      } else if (after(stage_need, start) <= machines) {
        stage.from = from;
        stage.replicas = machines - start;
      }
    }
    if (stage.from < 0) {
      return {};  // unreachable: one of the extensions led here
    }
    stages.push_back(stage);
    machines -= stage.replicas;
    state = stage.from;
  }
  std::reverse(stages.begin(), stages.end());
  return stages;
}

}  // namespace shardplan::planners
