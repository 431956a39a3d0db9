#pragma once

#include <functional>
#include <limits>

namespace shardplan::planners {

/// Closes in on the least target that a plan can meet, by asking whether there is one for a target.
///
/// The upper end is always the value of a plan in hand. A `Try` looks for a plan within its target,
/// and lowers `high` to the value of what it finds; false: it found none.
struct TargetDescent {
  using Try = std::function<bool(double target)>;

  double low = 0;  ///< no plan is better
  double high = std::numeric_limits<double>::infinity();
  std::function<bool()> stopped{};  ///< the searches ran out of their budget

  /// By tries whose "no" says nothing of all plans: `low` stays.
  void bisect(const Try& some) const;
  /// Likewise, by steps down from `high` that grow until one fails.
  void gallop(const Try& some) const;
  /// Likewise, until `some` finds nothing just below `high`.
  void exhaust(const Try& some) const;
  /// Whether `all`, which finds a plan if there is one, finds none just below `high`: then `low` is
  /// `high`.
  bool prove(const Try& all);
  /// All of this, until it is proven or stopped.
  void descend(const Try& some, const Try& all);
};

}  // namespace shardplan::planners
