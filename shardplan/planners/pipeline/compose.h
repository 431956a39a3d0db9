#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/planners/pipeline/block_costs.h"

namespace shardplan::planners {

/// Groups of devices for each microbatch, at most: more are idle most of the time.
inline constexpr std::int64_t kMostStages = 2;

struct ScheduleChoice {
  std::string_view name;
  int chunks = 1;
  bool weights_later = false;
  int pipelines = 1;      ///< see plan::Pipeline
  int forward_group = 1;  ///< likewise
};
/// Those that run a step at a time, 1F1B first.
[[nodiscard]] const std::vector<ScheduleChoice>& schedule_choices();

/// Seconds of all matrix products of the step at the rate of all devices together, launches left
/// out: no plan takes less. O(ops).
[[nodiscard]] Seconds matmul_seconds(const PlanRequest& request);

/// A way to cut a step into stages, all of whose groups run their blocks alike.
struct Composition {
  int groups = 1;
  const ScheduleChoice* schedule = nullptr;
  const GroupOption* option = nullptr;
  StageCut cut{};       ///< with the blocks that run again
  Seconds seconds = 0;  ///< of the step, estimated
  Bytes peak = 0;       ///< of the fullest device, estimated
};

/// Puts pipelines together from what their blocks cost: a stage takes the sum of its blocks, the
/// schedule runs with these times, a group of devices holds the weights of its blocks and what its
/// tasks leave in flight. Blocks run again where that is needed to stay within the limit, as few as
/// possible; stages are as even as the blocks allow. Estimates: blocks are planned alone, so that
/// changes of layout between them are left out, and messages count between neighbours only.
class Composer {
 public:
  /// Both outlive it.
  Composer(const PlanRequest& request, BlockCosts& costs)
      : request_(request), costs_(costs), compute_(matmul_seconds(request)) {}

  /// The best option for each number of groups and each schedule within the limit, the fastest
  /// first. Those are left out that take much longer than `worth`. Ends early, with those that are
  /// made, when the budget does.
  [[nodiscard]] Result<std::vector<Composition>> compose(
      Bytes limit, const Budget& budget, Seconds worth = std::numeric_limits<Seconds>::infinity());
  /// The same choice within another limit; nothing where it does not fit.
  [[nodiscard]] std::optional<Composition> again(const Composition& choice, Bytes limit) const;

 private:
  [[nodiscard]] Result<lower::Schedule> schedule(int groups, const ScheduleChoice& choice) const;
  [[nodiscard]] Seconds least_seconds(const lower::Schedule& schedule) const;
  [[nodiscard]] std::optional<Composition> with(
      const lower::Schedule& schedule,
      const ScheduleChoice& choice,
      const GroupOption& option,
      Bytes limit,
      Seconds worth = std::numeric_limits<Seconds>::infinity()) const;
  [[nodiscard]] StageCut cut(const lower::Schedule& schedule,
                             const ScheduleChoice& choice,
                             const GroupOption& option,
                             const std::vector<std::size_t>& starts,
                             const std::vector<bool>& again) const;

  const PlanRequest& request_;
  BlockCosts& costs_;
  Seconds compute_;
};

}  // namespace shardplan::planners
