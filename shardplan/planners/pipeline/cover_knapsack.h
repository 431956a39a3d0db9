#pragma once

#include <cstddef>
#include <vector>

namespace shardplan::planners {

/// One thing that can be given up: what it costs and how much it saves.
struct Saving {
  double cost = 0;    ///< at least 0
  double weight = 0;  ///< more than 0
};

/// The least total cost of savings that weigh at least `need` together.
///
/// Exact: the linear relaxation fixes most items, the rest is a list of undominated partial sums
/// that its bound cuts short. Near-linear in practice, exponential at worst, and then given up.
class CoverKnapsack {
 public:
  /// Items in the order of cost / weight, cheapest first; `need` is more than 0. Returns whether
  /// there is a cover of at most the cost `cutoff`; cost() and chosen() tell one, the cheapest
  /// unless `any` will do.
  [[nodiscard]] bool solve(const std::vector<Saving>& items, double need, double cutoff, bool any);

  [[nodiscard]] double cost() const { return cost_; }
  [[nodiscard]] const std::vector<bool>& chosen() const { return chosen_; }
  /// Whether a search so far was given up: its "no", or its cheapest, is not proven.
  [[nodiscard]] bool gave_up() const { return gave_up_; }

 private:
  /// Items before `at` are taken whole, that one in part; `price` is its cost of a unit of weight.
  struct Relaxation {
    std::size_t at = 0;
    double price = 0;
    double cost = 0;
  };
  struct State {
    double weight = 0;
    double cost = 0;
    int parent = -1;  ///< in arena_
    int item = -1;    ///< the last one taken; -1 = none
  };

  [[nodiscard]] static Relaxation relax(const std::vector<Saving>& items, double need);
  void take_greedily(const std::vector<Saving>& items, double need, std::size_t last);
  void search(const std::vector<Saving>& items,
              const Relaxation& relaxation,
              double need,
              bool any);
  [[nodiscard]] State split_items(const std::vector<Saving>& items, const Relaxation& relaxation);
  void branch(const Saving& item, int index, double need, double price, double rest);
  void keep(State state, int place, double need, double price, double rest);
  void finish(int state);

  double cost_ = 0;
  std::vector<bool> chosen_{};
  bool gave_up_ = false;

  double limit_ = 0;  ///< covers of this cost or more are of no use any more
  bool found_ = false;
  std::vector<bool> fixed_{};  ///< taken in every cover worth looking at
  std::vector<std::size_t> open_{};
  std::vector<State> arena_{};
  std::vector<int> front_{};  ///< undominated states, weight and cost both rising
  std::vector<int> next_{};
};

}  // namespace shardplan::planners
