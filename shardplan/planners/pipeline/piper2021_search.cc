#include "shardplan/planners/pipeline/piper2021_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shardplan/support/result.h"

namespace shardplan::planners::piper {
namespace {

constexpr double kRounding = 1e-9;                     // of sums of work
constexpr std::size_t kLeastLikely = 4;                // downsets of one size, whatever the share
constexpr std::int64_t kVisitsBetweenLooks = 1 << 14;  // at the clock

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

Search::Search(const DownsetLattice& lattice,
               StageCosts& costs,
               int devices,
               std::int64_t microbatches)
    : lattice_(lattice),
      costs_(costs),
      devices_(devices),
      most_replicas_(static_cast<int>(std::min<std::int64_t>(microbatches, devices))),
      lists_(lattice) {
  divisor_from_.push_back(0);
  for (int d = 1; d <= most_replicas_; ++d) {
    divisor_from_.push_back(static_cast<int>(divisors_.size()));
    if (microbatches % d == 0) {
      divisors_.push_back(d);
    }
  }
  rest_work_.assign(at(lattice.sets()), 0);
  time_inside_.assign(at(lattice.sets()), 0);
  for (int node = 0; node < lattice.nodes; ++node) {
    rest_work_[0] += costs.work(node);
  }
  for (int set = 0; set < lattice.sets(); ++set) {
    for (int c = lattice.begin[at(set)]; c < lattice.begin[at(set) + 1]; ++c) {
      const DownsetLattice::Cover& cover = lattice.covers[at(c)];
      rest_work_[at(cover.to)] = rest_work_[at(set)] - costs.work(cover.node);
      time_inside_[at(cover.to)] = time_inside_[at(set)] + costs.least_time(cover.node);
    }
  }
  most_.resize(at(lattice.sets()));
  longest_.resize(costs.degrees());
  in_stage_.assign(at(lattice.nodes), 0);
  sums_.resize((at(lattice.nodes) + 1) * costs.degrees());
  alive_.resize(sums_.size());
  start_.resize(sums_.size());
}

std::optional<std::vector<Stage>> Search::find(double target,
                                               const solvers::Budget& budget,
                                               double share) {
  target_ = target;
  per_target_ = 1 / target;
  budget_ = &budget;
  for (std::size_t set = 0; set < most_.size(); ++set) {
    most_[set] = static_cast<int>(
        std::floor(devices_ - rest_work_[set] * per_target_ * (1 - kRounding) + kRounding));
    if (!front_.empty()) {
      most_[set] = std::min(most_[set], devices_ - front_[set]);
    }
  }
  costs_.leave_all();
  std::fill(in_stage_.begin(), in_stage_.end(), 0);
  const auto wasted = [&](int set) {
    return lists_[set].back().k + rest_work_[at(set)] * per_target_;
  };
  lists_.climb(share, kLeastLikely, stopped_, wasted, [&](int set) { push(set); });
  if (stopped_ || !lists_.arrived()) {
    return std::nullopt;
  }
  return trace();
}

bool Search::bound(double target, const solvers::Budget& budget) {
  target_ = target;
  per_target_ = 1 / target;
  budget_ = &budget;
  costs_.leave_all();
  std::fill(in_stage_.begin(), in_stage_.end(), 0);
  in_front_ = true;
  front_.assign(most_.size(), 0);
  for (int set = lattice_.sets() - 1; set-- > 0 && !stopped_;) {
    push_front(set);
  }
  in_front_ = false;
  if (stopped_) {
    front_.clear();
    return true;
  }
  return front_.front() <= devices_;
}

void Search::push_front(int from) {
  from_ = from;
  const double inside = (rest_work_.front() - rest_work_[at(from)]) * per_target_;
  const int below = static_cast<int>(std::ceil(inside * (1 - kRounding) - kRounding));
  front_[at(from)] = devices_ - below + 1;  // which is too many
  start_stage(devices_ - below);
  grow(from, -1, 0);
  if (front_[at(from)] == devices_ - below + 1) {
    front_[at(from)] = devices_ + 1;
  }
}

/// As offer_degree(), for what is outside the downset on which the stage is put.
void Search::offer_front(std::size_t t, int to, std::size_t place) {
  const StageSums& sums = sums_[place];
  const double replica = costs_.replica_time(sums);
  const double sync = costs_.full_sync_time(sums);
  const int degree = costs_.degree(t);
  int& best = front_[at(from_)];
  const double least = replica * per_target_ * (1 - kRounding);
  const int first = divisors_[at(start_[place])];
  if (degree * first >= best) {
    alive_[place] = 0;
    return;
  }
  if (front_[at(to)] + degree * std::max(static_cast<double>(first), least) >= best) {
    return;
  }
  const auto s_below = static_cast<std::int64_t>(
      std::ceil(time_inside_[at(from_)] * per_target_ * (1 - kRounding) - kRounding));
  std::size_t i = std::max(first_divisor(replica, sync), at(start_[place]));
  bool hopeless = i == at(start_[place]);
  for (; i < divisors_.size(); ++i) {
    const int d = divisors_[i];
    const int k = front_[at(to)] + degree * d;
    if (k >= best) {
      return;
    }
    const double slack = (target_ - sync * (d - 1) / d) * d - replica;
    const std::int64_t y = (s_below + d - 1) / d + 1;
    const StageCosts::Fit fit = slack < 0
                                    ? StageCosts::Fit::kNo
                                    : costs_.fits(t, sums, y, slack, slack + replica - sums.time);
    if (fit == StageCosts::Fit::kYes) {
      best = k;
      return;
    }
    hopeless = hopeless && fit == StageCosts::Fit::kHopeless;
    if (hopeless) {
      start_[place] = static_cast<int>(i) + 1;
    }
  }
  alive_[place] = at(start_[place]) == divisors_.size() ? 0 : 1;
}

void Search::push(int from) {
  from_ = from;
  start_stage(devices_ - lists_[from].back().k);
  grow(from, -1, 0);
}

/// An empty stage, with `free` devices for it.
void Search::start_stage(int free) {
  for (std::size_t t = 0; t < costs_.degrees(); ++t) {
    const int most = std::min(free / costs_.degree(t), most_replicas_);
    const auto next = std::upper_bound(divisors_.begin(), divisors_.end(), most);
    alive_[t] = next == divisors_.begin() ? 0 : 1;
    longest_[t] = alive_[t] == 0 ? 0 : target_ * *(next - 1);
    sums_[t] = {};
    start_[t] = 0;
  }
}

void Search::grow(int set, int last, std::size_t depth) {
  if (++visits_ % kVisitsBetweenLooks == 0) {
    stopped_ = stopped_ || budget_->exhausted();
  }
  const int begin = lattice_.begin[at(set)];
  for (int c = lattice_.begin[at(set) + 1]; c-- > begin && !stopped_;) {
    const DownsetLattice::Cover& cover = lattice_.covers[at(c)];
    if (cover.node <= last) {
      return;
    }
    if (!extend(cover.node, depth)) {
      continue;
    }
    costs_.enter(cover.node);
    in_stage_[at(cover.node)] = 1;
    offer(cover.to, depth + 1);
    grow(cover.to, cover.node, depth + 1);
    in_stage_[at(cover.node)] = 0;
    costs_.leave();
  }
}

/// The sums with one more node; false when no degree can run the stage, however it grows.
bool Search::extend(int node, std::size_t depth) {
  const std::size_t degrees = costs_.degrees();
  const std::size_t before = depth * degrees;
  const std::size_t after = before + degrees;
  bool any = false;
  for (std::size_t t = 0; t < degrees; ++t) {
    alive_[after + t] = 0;
    if (alive_[before + t] == 0) {
      continue;
    }
    StageSums& sums = sums_[after + t];
    sums = sums_[before + t];
    start_[after + t] = start_[before + t];
    if (costs_.add(t, node, in_stage_, sums) && sums.time <= longest_[t] &&
        sums.least_memory <= costs_.memory()) {
      alive_[after + t] = 1;
      any = true;
    }
  }
  return any;
}

void Search::offer(int to, std::size_t depth) {
  const std::size_t degrees = costs_.degrees();
  if (in_front_ ? front_[at(to)] >= front_[at(from_)] : lists_[from_].back().k >= most_[at(to)]) {
    return;
  }
  for (std::size_t t = 0; t < degrees; ++t) {
    const std::size_t place = depth * degrees + t;
    if (alive_[place] != 0 && in_front_) {
      offer_front(t, to, place);
    } else if (alive_[place] != 0) {
      offer_degree(t, to, place, lists_[to]);
    }
  }
}

std::size_t Search::first_divisor(double replica, double sync) const {
  if (replica <= target_) {
    return 0;
  }
  if (sync >= target_) {
    return divisors_.size();
  }
  // replica / d + sync * (d - 1) / d <= target, a hair too many to be checked exactly
  const double least = (replica - sync) / (target_ - sync) * (1 - kRounding);
  if (least > most_replicas_) {
    return divisors_.size();
  }
  const auto whole = static_cast<std::size_t>(least);
  return at(divisor_from_[whole + (static_cast<double>(whole) < least ? 1 : 0)]);
}

/// `place`: of the stage's sums of degree number t.
void Search::offer_degree(std::size_t t, int to, std::size_t place, List& list) {
  const StageSums& sums = sums_[place];
  const double replica = costs_.replica_time(sums);
  const double sync = costs_.full_sync_time(sums);
  const int degree = costs_.degree(t);
  const int most = most_[at(to)];
  const List& below = lists_[from_];
  // Without a division: d is at least replica / target, as syncing only adds.
  const double least = replica * per_target_ * (1 - kRounding);
  if (least > most_replicas_) {
    return;
  }
  const int d_least = std::max(divisors_[at(start_[place])], static_cast<int>(least));
  if (below.back().k + degree * d_least > most ||
      (below.size() == 1 &&
       dominated(list, below.front().s + d_least, below.front().k + degree * d_least))) {
    return;
  }
  std::size_t i = std::max(first_divisor(replica, sync), at(start_[place]));
  bool hopeless = i == at(start_[place]);  // all divisors up to the one looked at
  for (std::size_t e = 0; e < below.size() && i < divisors_.size(); ++e) {
    while (i < divisors_.size()) {
      const int d = divisors_[i];
      const int s = below[e].s + d;
      const int k = below[e].k + degree * d;
      if (k > most || s > most_replicas_ || dominated(list, s, k)) {
        break;
      }
      const double slack = (target_ - sync * (d - 1) / d) * d - replica;
      const std::int64_t y = (below[e].s + d - 1) / d + 1;
      const StageCosts::Fit fit = slack < 0
                                      ? StageCosts::Fit::kNo
                                      : costs_.fits(t, sums, y, slack, slack + replica - sums.time);
      if (fit == StageCosts::Fit::kYes) {
        insert(list, {s, k, from_, static_cast<int>(e), d, static_cast<int>(t)});
        break;
      }
      ++i;
      hopeless = hopeless && e == 0 && fit == StageCosts::Fit::kHopeless;
      if (hopeless) {
        start_[place] = static_cast<int>(i);
      }
    }
  }
  if (at(start_[place]) == divisors_.size() ||
      below.back().k + degree * divisors_[at(start_[place])] > devices_) {
    alive_[place] = 0;
  }
}

bool Search::dominated(const List& list, int s, int k) {
  return std::any_of(
      list.begin(), list.end(), [&](const Entry& entry) { return entry.s <= s && entry.k <= k; });
}

void Search::insert(List& list, const Entry& entry) {
  auto place = list.begin();
  while (place != list.end() && place->s < entry.s) {
    ++place;
  }
  auto end = place;
  while (end != list.end() && end->k >= entry.k) {
    ++end;
  }
  list.insert(list.erase(place, end), entry);
}

std::vector<Stage> Search::trace() {
  std::vector<Stage> stages;
  lists_.trace([&](const Entry& entry, std::vector<int> nodes) {
    Stage& stage = stages.emplace_back();
    stage.t = at(entry.t);
    stage.d = entry.d;
    stage.y = (entry.s + entry.d - 1) / entry.d;
    stage.nodes = std::move(nodes);
    complete(stage);
  });
  return stages;
}

void Search::complete(Stage& stage) {
  StageSums sums;
  for (const int node : stage.nodes) {
    const bool offered = costs_.add(stage.t, node, in_stage_, sums);
    SHARDPLAN_CHECK(offered) << node;
    in_stage_[at(node)] = 1;
  }
  for (const int node : stage.nodes) {
    in_stage_[at(node)] = 0;
  }
  const std::optional<StageCosts::Choice> inner = costs_.choose(stage.t, stage.nodes, stage.y);
  SHARDPLAN_CHECK(inner.has_value()) << "a stage that fitted no longer does";
  stage.small = inner->small;
  stage.time = (costs_.replica_time(sums) + inner->extra_time) / stage.d +
               costs_.full_sync_time(sums) * (stage.d - 1) / stage.d;
  stage.memory = inner->memory;
}

}  // namespace shardplan::planners::piper
