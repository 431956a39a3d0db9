#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "shardplan/solvers/cost_network.h"
#include "shardplan/support/progress.h"
#include "shardplan/support/result.h"

namespace shardplan::solvers {

/// What is known of the problem at the end of a search.
enum class SolveStatus {
  kOptimal,     ///< proven within the asked gap
  kFeasible,    ///< feasible, the gap is larger
  kInfeasible,  ///< proven: no assignment meets the rows
  kUnknown,     ///< no feasible assignment was found, none was ruled out
};

/// What ended the search before its own end.
enum class SolveLimit { kNone, kTime, kMemory, kInterrupted };

struct SolveOptions {
  double gap = 1e-4;  ///< relative gap at which to stop
  /// Assignments of this objective or more are not wanted: the search may end as soon as it has
  /// proven, within the gap, that there is no other.
  double cutoff = std::numeric_limits<double>::infinity();
  /// Seconds of work, as counted (not measured, so that the answer is the same on every machine),
  /// after which an exact search without a time limit gives up on the rest of a gap.
  double effort = 5;
  double time_limit = 0;          ///< seconds; 0 = none
  std::int64_t memory_limit = 0;  ///< bytes of tables; 0 = 4 GiB
  /// Whether an exact search whose tables would exceed `memory_limit` goes on with a relaxed bound
  /// and a local search; otherwise it ends with SolveLimit::kMemory and nothing.
  bool fall_back = true;
  std::uint64_t seed = 0;  ///< of random choices
  /// Multipliers of an earlier, similar problem, one a row (0 = none): the search starts near them.
  std::vector<double> hint{};
  Control control{};
};

/// The outcome of a search is data, not an error.
struct Solution {
  SolveStatus status = SolveStatus::kUnknown;
  SolveLimit limit = SolveLimit::kNone;
  double objective = 0;         ///< of `choice`
  double lower_bound = 0;       ///< no feasible assignment costs less; -infinity: nothing is proven
  std::vector<int> choice{};    ///< best feasible; when none is known, of least violation
  std::vector<double> usage{};  ///< of each row by `choice`
  double effort = 0;            ///< of an exact search: seconds of work, as counted
  std::vector<double> multiplier{};  ///< of each row at the best bound; 0 = the row does not bind
};

/// A general solver by name. Deterministic for a seed (unless the time limit cuts it off); keeps
/// within its budgets and returns the best so far.
struct SolverInfo {
  std::string_view name;
  std::string_view reference;
  std::string_view summary;
  Solution (*solve)(const ConstrainedProblem& problem, const SolveOptions& options);
};

}  // namespace shardplan::solvers
