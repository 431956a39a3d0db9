#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardplan/planners/pipeline/downsets.h"
#include "shardplan/planners/pipeline/lattice_climb.h"
#include "shardplan/planners/pipeline/piper2021_stages.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners::piper {

/// A stage of a plan.
struct Stage {
  std::vector<int> nodes{};  ///< in the order in which stages grow
  std::size_t t = 0;         ///< number of the degree
  int d = 1;                 ///< replicas
  std::int64_t y = 1;        ///< microbatches in flight
  double time = 0;           ///< a microbatch
  double memory = 0;
  std::vector<bool> small{};  ///< of each node: the answer to the inner problem
};

/// Answers "is there a plan in which no stage takes longer than a target?" on a lattice of
/// downsets.
///
/// For every downset, from the empty one up, there is a list of what suffices to run it: (s, k)
/// with s the sum of the data-parallel degrees of its stages and k their devices, none as good as
/// another in both. The stages on top of it are found by walking the lattice, their sums kept along
/// the way. Of a stage's options (t, d) only the least d that meets target and memory matters for
/// each t and s. A list goes no further where the work that is left needs more devices than there
/// are.
class Search {
 public:
  /// `microbatches`: of a batch; d divides it. The references outlive the search.
  Search(const DownsetLattice& lattice, StageCosts& costs, int devices, std::int64_t microbatches);

  /// The stages, first to last, each within the target; nothing if there is no such plan, or if the
  /// budget ran out (stopped()). Time in the pairs of downsets that the target leaves.
  /// `share`: of the downsets of one size, the part that stages are put on, of those that used
  /// their devices best. Less than 1 is quicker, and finding nothing then proves nothing.
  [[nodiscard]] std::optional<std::vector<Stage>> find(double target,
                                                       const solvers::Budget& budget,
                                                       double share = 1);
  [[nodiscard]] bool stopped() const { return stopped_; }

  /// Prepares find() for this target and all below it: counts how many devices at least run what is
  /// outside each downset, were as few microbatches in flight as the work inside allows. False:
  /// more than there are, so that find() would find nothing. Costs about as much as find() does.
  [[nodiscard]] bool bound(double target, const solvers::Budget& budget);

 private:
  struct Entry {
    int s = 0;
    int k = 0;
    int from = -1;   ///< the downset below the last stage
    int entry = -1;  ///< in its list
    int d = 0;
    int t = 0;
  };
  using List = std::vector<Entry>;  ///< s rising, k falling

  void push_front(int from);
  void offer_front(std::size_t t, int to, std::size_t place);
  void push(int from);
  void start_stage(int free);
  void grow(int set, int last, std::size_t depth);
  [[nodiscard]] bool extend(int node, std::size_t depth);
  void offer(int to, std::size_t depth);
  void offer_degree(std::size_t t, int to, std::size_t place, List& list);
  /// The first divisor whose stage time without extra may be within the target; their number: none.
  [[nodiscard]] std::size_t first_divisor(double replica, double sync) const;
  [[nodiscard]] static bool dominated(const List& list, int s, int k);
  static void insert(List& list, const Entry& entry);
  [[nodiscard]] std::vector<Stage> trace();
  /// The inner choices and the time of a stage whose nodes and options are set.
  void complete(Stage& stage);

  const DownsetLattice& lattice_;
  StageCosts& costs_;
  int devices_;
  int most_replicas_;                ///< of all stages together
  std::vector<int> divisors_{};      ///< of the microbatches, that many devices at most
  std::vector<int> divisor_from_{};  ///< by x: the first divisor of at least x
  std::vector<double> rest_work_{};  ///< outside each downset

  double target_ = 0;
  double per_target_ = 0;
  const solvers::Budget* budget_ = nullptr;
  bool stopped_ = false;
  std::int64_t visits_ = 0;
  LatticeClimb<Entry> lists_;
  std::vector<double> time_inside_{};  ///< of each downset, in the fastest degrees
  std::vector<int> front_{};           ///< what bound() found; empty = nothing yet
  bool in_front_ = false;              ///< bound() is under way
  std::vector<int> most_{};            ///< of each downset: devices that leave enough for the rest

  // The stage under way.
  int from_ = 0;
  std::vector<double> longest_{};  ///< of each degree: time that the most replicas can take
  std::vector<std::uint8_t> in_stage_{};
  std::vector<StageSums> sums_{};      ///< of each number of nodes and degree
  std::vector<std::uint8_t> alive_{};  ///< likewise: the degree is possible
  std::vector<int>
      start_{};  ///< likewise: divisors before this one are too few for any larger stage
};

}  // namespace shardplan::planners::piper
