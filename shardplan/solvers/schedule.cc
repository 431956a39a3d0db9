// Elimination orders. Read `GreedyOrder::run`, then `make_schedule`, which turns an order into
// steps.
#include "shardplan/solvers/schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

namespace shardplan::solvers {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// What a greedy choice of the next variable looks at first.
enum class Greedy { kLeastCluster, kLeastFill, kLeastWeightedFill };

class GreedyOrder {
 public:
  GreedyOrder(const std::vector<int>& sizes, const std::vector<std::vector<int>>& scopes)
      : sizes_(sizes), neighbours_(sizes.size()) {
    for (const std::vector<int>& scope : scopes) {
      connect(scope);
    }
  }

  std::vector<int> run(Greedy greedy) {
    using Entry = std::tuple<double, int, int>;  // score, level, variable
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const std::size_t n = sizes_.size();
    std::vector<Entry> current(n);
    std::vector<int> level(n, 0);
    const auto push = [&](int v) {
      current[at(v)] = {score(v, greedy), level[at(v)], v};
      queue.push(current[at(v)]);
    };
    for (std::size_t v = 0; v < n; ++v) {
      push(static_cast<int>(v));
    }
    std::vector<bool> done(n, false);
    std::vector<int> order;
    while (!queue.empty()) {
      const Entry top = queue.top();
      queue.pop();
      const int v = std::get<2>(top);
      if (done[at(v)] || top != current[at(v)]) {
        continue;
      }
      done[at(v)] = true;
      order.push_back(v);
      const std::vector<int> scope = neighbours_[at(v)];
      for (const int w : scope) {
        std::erase(neighbours_[at(w)], v);
        level[at(w)] = std::max(level[at(w)], level[at(v)] + 1);
      }
      connect(scope);
      for (const int w : scope) {
        push(w);
      }
    }
    return order;
  }

 private:
  void connect(const std::vector<int>& scope) {
    for (const int v : scope) {
      std::vector<int>& known = neighbours_[at(v)];
      for (const int w : scope) {
        if (w != v && std::find(known.begin(), known.end(), w) == known.end()) {
          known.push_back(w);
        }
      }
    }
  }

  [[nodiscard]] double score(int v, Greedy greedy) const {
    const std::vector<int>& scope = neighbours_[at(v)];
    if (greedy == Greedy::kLeastCluster) {
      double cluster = sizes_[at(v)];
      for (const int w : scope) {
        cluster *= sizes_[at(w)];
      }
      return cluster;
    }
    double fill = 0;
    for (std::size_t i = 0; i < scope.size(); ++i) {
      const std::vector<int>& known = neighbours_[at(scope[i])];
      for (std::size_t j = i + 1; j < scope.size(); ++j) {
        if (std::find(known.begin(), known.end(), scope[j]) == known.end()) {
          fill += greedy == Greedy::kLeastFill
                      ? 1
                      : static_cast<double>(sizes_[at(scope[i])]) * sizes_[at(scope[j])];
        }
      }
    }
    return fill;
  }

  const std::vector<int>& sizes_;
  std::vector<std::vector<int>> neighbours_;
};

/// Turns an order into steps.
class ScheduleBuilder {
 public:
  ScheduleBuilder(const std::vector<int>& sizes,
                  const std::vector<std::vector<int>>& scopes,
                  const Schedule::Options& options)
      : sizes_(sizes), scopes_(scopes), options_(options) {}

  Schedule build(const std::vector<int>& order) {
    schedule_ = {};
    schedule_.position.resize(sizes_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      schedule_.position[at(order[i])] = static_cast<int>(i);
    }
    std::vector<std::vector<int>> factors(sizes_.size());  // by the variable eliminated first
    for (std::size_t f = 0; f < scopes_.size(); ++f) {
      factors[at(first(scopes_[f]))].push_back(static_cast<int>(f));
    }
    std::vector<std::vector<int>> pending(sizes_.size());  // steps, by the next variable
    std::vector<int> roots;
    for (const int v : order) {
      if (sizes_[at(v)] == 1) {
        continue;
      }
      Schedule::Step step;
      step.variable = v;
      step.factors = std::move(factors[at(v)]);
      step.children = std::move(pending[at(v)]);
      if (options_.binary) {
        pair_up(step.children);
      }
      step.scope = union_scope(step, v);
      const bool is_root = step.scope.empty();
      const int next = is_root ? -1 : step.scope.front();
      const int index = add(std::move(step));
      if (is_root) {
        roots.push_back(index);
      } else {
        pending[at(next)].push_back(index);
      }
    }
    if (options_.binary) {
      while (roots.size() > 1) {
        pair_up_once(roots);
      }
    }
    return std::move(schedule_);
  }

 private:
  [[nodiscard]] int first(const std::vector<int>& scope) const {
    return *std::min_element(scope.begin(), scope.end(), [&](int a, int b) {
      return schedule_.position[at(a)] < schedule_.position[at(b)];
    });
  }

  void merge_scope(std::vector<int>& scope, const std::vector<int>& other) const {
    for (const int v : other) {
      if (std::find(scope.begin(), scope.end(), v) == scope.end()) {
        scope.push_back(v);
      }
    }
  }

  [[nodiscard]] std::vector<int> union_scope(const Schedule::Step& step, int without) const {
    std::vector<int> scope;
    for (const int f : step.factors) {
      merge_scope(scope, scopes_[at(f)]);
    }
    for (const int child : step.children) {
      merge_scope(scope, schedule_.steps[at(child)].scope);
    }
    std::erase(scope, without);
    std::sort(scope.begin(), scope.end(), [&](int a, int b) {
      return schedule_.position[at(a)] < schedule_.position[at(b)];
    });
    return scope;
  }

  int add(Schedule::Step step) {
    const int index = static_cast<int>(schedule_.steps.size());
    for (const int child : step.children) {
      schedule_.steps[at(child)].parent = index;
    }
    double cluster = step.variable < 0 ? 1 : sizes_[at(step.variable)];
    for (const int v : step.scope) {
      cluster *= sizes_[at(v)];
    }
    schedule_.largest_cluster = std::max(schedule_.largest_cluster, cluster);
    schedule_.total_entries += cluster;
    schedule_.steps.push_back(std::move(step));
    return index;
  }

  int join(int a, int b) {
    Schedule::Step step;
    step.children = {a, b};
    step.scope = union_scope(step, -1);
    return add(std::move(step));
  }

  void pair_up_once(std::vector<int>& children) {
    std::vector<int> joined;
    for (std::size_t i = 0; i + 1 < children.size(); i += 2) {
      joined.push_back(join(children[i], children[i + 1]));
    }
    if (children.size() % 2 == 1) {
      joined.push_back(children.back());
    }
    children = std::move(joined);
  }

  /// Joins children until two are left: those over the same variables first, then neighbours of
  /// small and large scope in turn.
  void pair_up(std::vector<int>& children) {
    if (children.size() <= 2) {
      return;
    }
    std::map<std::vector<int>, std::vector<int>> by_scope;  // ordered by size, then content
    for (const int child : children) {
      std::vector<int> key{static_cast<int>(schedule_.steps[at(child)].scope.size())};
      for (const int v : schedule_.steps[at(child)].scope) {
        key.push_back(schedule_.position[at(v)]);
      }
      by_scope[key].push_back(child);
    }
    children.clear();
    for (auto& [scope, same] : by_scope) {
      while (same.size() > 1 && (by_scope.size() > 1 || same.size() > 2)) {
        pair_up_once(same);
      }
      children.insert(children.end(), same.begin(), same.end());
    }
    while (children.size() > 2) {
      const int joined = join(children[0], children[1]);
      children.erase(children.begin());
      children[0] = joined;
    }
  }

  const std::vector<int>& sizes_;
  const std::vector<std::vector<int>>& scopes_;
  const Schedule::Options options_;
  Schedule schedule_;
};

}  // namespace

Schedule make_schedule(const std::vector<int>& sizes,
                       const std::vector<std::vector<int>>& scopes,
                       const Schedule::Options& options) {
  constexpr double kLargeCluster = 20'000;
  ScheduleBuilder builder(sizes, scopes, options);
  Schedule best = builder.build(GreedyOrder(sizes, scopes).run(Greedy::kLeastCluster));
  if (best.largest_cluster > kLargeCluster) {
    for (const Greedy greedy : {Greedy::kLeastFill, Greedy::kLeastWeightedFill}) {
      Schedule other = builder.build(GreedyOrder(sizes, scopes).run(greedy));
      if (other.total_entries < 0.8 * best.total_entries) {
        best = std::move(other);
      }
    }
  }
  return best;
}

}  // namespace shardplan::solvers
