#include "shardplan/planners/pipeline/cover_knapsack.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::planners {
namespace {

constexpr std::size_t kMostStates = 2'000'000;
constexpr int kNew = -1;  // a state that is not in the arena yet

}  // namespace

bool CoverKnapsack::solve(const std::vector<Saving>& items, double need, double cutoff, bool any) {
  const Relaxation relaxation = relax(items, need);
  if (relaxation.at == items.size() || relaxation.cost > cutoff) {
    return false;
  }
  take_greedily(items, need, relaxation.at);
  found_ = cost_ <= cutoff;
  if (found_ && any) {
    return true;
  }
  // A cover of just the cutoff is wanted while there is none; a found one must be bettered.
  limit_ = found_ ? cost_ : std::nextafter(cutoff, std::numeric_limits<double>::infinity());
  if (relaxation.cost < limit_) {
    search(items, relaxation, need, any);
  }
  return found_;
}

CoverKnapsack::Relaxation CoverKnapsack::relax(const std::vector<Saving>& items, double need) {
  Relaxation relaxation;
  double missing = need;
  while (relaxation.at < items.size() && items[relaxation.at].weight < missing) {
    missing -= items[relaxation.at].weight;
    relaxation.cost += items[relaxation.at].cost;
    ++relaxation.at;
  }
  if (relaxation.at < items.size()) {
    relaxation.price = items[relaxation.at].cost / items[relaxation.at].weight;
    relaxation.cost += relaxation.price * missing;
  }
  return relaxation;
}

/// All up to `last`, less what turns out not to be needed.
void CoverKnapsack::take_greedily(const std::vector<Saving>& items, double need, std::size_t last) {
  chosen_.assign(items.size(), false);
  double weight = 0;
  cost_ = 0;
  for (std::size_t i = 0; i <= last; ++i) {
    chosen_[i] = true;
    weight += items[i].weight;
    cost_ += items[i].cost;
  }
  for (std::size_t i = last; i-- > 0;) {
    if (weight - items[i].weight >= need) {
      chosen_[i] = false;
      weight -= items[i].weight;
      cost_ -= items[i].cost;
    }
  }
}

/// Fixes the items whose other choice pushes the relaxation's bound to the limit; returns the sums
/// of those that are taken.
CoverKnapsack::State CoverKnapsack::split_items(const std::vector<Saving>& items,
                                                const Relaxation& relaxation) {
  State taken;
  fixed_.assign(items.size(), false);
  open_.clear();
  const auto reduced = [&](std::size_t i) {
    return items[i].cost - relaxation.price * items[i].weight;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (relaxation.cost + std::abs(reduced(i)) < limit_) {
      open_.push_back(i);
    } else if (i < relaxation.at) {
      fixed_[i] = true;
      taken.weight += items[i].weight;
      taken.cost += items[i].cost;
    }
  }
  std::stable_sort(open_.begin(), open_.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(reduced(a)) > std::abs(reduced(b));
  });
  return taken;
}

void CoverKnapsack::search(const std::vector<Saving>& items,
                           const Relaxation& relaxation,
                           double need,
                           bool any) {
  arena_.assign(1, split_items(items, relaxation));
  front_.assign(1, 0);
  if (arena_[0].weight >= need) {
    if (arena_[0].cost < limit_) {
      finish(0);
    }
    return;
  }
  std::vector<double> rest(open_.size() + 1, 0);  // least reduced cost of the items from there on
  for (std::size_t j = open_.size(); j-- > 0;) {
    const Saving& item = items[open_[j]];
    rest[j] = rest[j + 1] + std::min(0.0, item.cost - relaxation.price * item.weight);
  }
  for (std::size_t j = 0; j < open_.size(); ++j) {
    branch(items[open_[j]], static_cast<int>(open_[j]), need, relaxation.price, rest[j + 1]);
    if (found_ && any) {
      return;
    }
    if (arena_.size() > kMostStates) {
      gave_up_ = true;
      return;
    }
  }
}

/// Merges the front with itself plus the item, by weight.
void CoverKnapsack::branch(const Saving& item, int index, double need, double price, double rest) {
  next_.clear();
  const std::vector<int> before = front_;
  std::size_t a = 0;
  for (const int parent : before) {
    const State& from = arena_[static_cast<std::size_t>(parent)];
    const State with{from.weight + item.weight, from.cost + item.cost, parent, index};
    while (a < before.size() && arena_[static_cast<std::size_t>(before[a])].weight < with.weight) {
      keep(arena_[static_cast<std::size_t>(before[a])], before[a], need, price, rest);
      ++a;
    }
    keep(with, kNew, need, price, rest);
  }
  for (; a < before.size(); ++a) {
    keep(arena_[static_cast<std::size_t>(before[a])], before[a], need, price, rest);
  }
  front_.swap(next_);
}

/// Puts a state behind lighter ones into the next front, if it can still lead to a useful cover.
/// Heavier and cheaper states push those before them out. Takes the state by value: it may lie in
/// the arena, which grows.
void CoverKnapsack::keep(State state, int place, double need, double price, double rest) {
  const bool covers = state.weight >= need;
  const double bound = covers ? state.cost : state.cost + price * (need - state.weight) + rest;
  if (bound >= limit_) {
    return;
  }
  if (place == kNew) {
    place = static_cast<int>(arena_.size());
    arena_.push_back(state);
  }
  if (covers) {
    finish(place);
    return;
  }
  while (!next_.empty() && arena_[static_cast<std::size_t>(next_.back())].cost >= state.cost) {
    next_.pop_back();
  }
  next_.push_back(place);
}

void CoverKnapsack::finish(int state) {
  found_ = true;
  chosen_ = fixed_;
  cost_ = arena_[static_cast<std::size_t>(state)].cost;
  limit_ = cost_;
  for (int s = state; s >= 0; s = arena_[static_cast<std::size_t>(s)].parent) {
    if (arena_[static_cast<std::size_t>(s)].item >= 0) {
      chosen_[static_cast<std::size_t>(arena_[static_cast<std::size_t>(s)].item)] = true;
    }
  }
}

}  // namespace shardplan::planners
