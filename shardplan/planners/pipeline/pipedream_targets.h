#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "shardplan/solvers/budget.h"

namespace shardplan::planners {

/// Answers "can PipeDream's stages on M machines all take at most a target?" without looking at
/// every number of machines: with two replicas or more, a stage only gets faster by more of them,
/// and needs fewer stashed versions. So the numbers of machines with which a state can be reached
/// are those of chains of single machines, which are kept one by one, and all from some number on.
class PipedreamTargets {
 public:
  struct Costs {
    int states = 0;    ///< numbered so that each comes after its parts; 0 = nothing, last = all
    int machines = 0;  ///< M
    bool all_machines = true;  ///< all have to be used
    bool replicas = true;      ///< a stage may have more than one machine
    std::function<bool(int outer, int inner)> contains{};
    /// Of the stage between two states; falls in the replicas from 2 on.
    std::function<double(int from, int to, int replicas)> time{};
    /// By state, rising, with differences of a stage: at most what its layers take, and what its
    /// synchronisation takes between two machines, 2 (m' - 1)/m' times as much between m'. The
    /// first stage's may take less.
    std::vector<double> single{};
    std::vector<double> synchronisation{};
    /// How many versions of it a machine holds; a stage of m' machines after u others has
    /// ceil((M - u - m') / m'), and at least 1.
    std::function<double(int from, int to)> versions{};
  };
  struct Stage {
    int from = 0;
    int to = 0;
    int replicas = 1;
  };

  explicit PipedreamTargets(Costs costs);

  /// Stages from nothing to all, none of which takes more than `target`; empty when there are none
  /// or the budget is exhausted. O(states^2 (log M + M / 64)) at worst; where layers weigh more
  /// than their synchronisation, what it looks at is close to a stage's length around each state.
  [[nodiscard]] std::vector<Stage> find(double target, const solvers::Budget& budget);

 private:
  /// With how many machines a state can be reached.
  struct Reach {
    std::vector<std::uint64_t> single{};  ///< bits of numbers, by stages of one machine
    int least = 0;                        ///< of the above; M + 1 = none
    int from = 0;                         ///< all numbers from here on; M + 1 = none
  };
  /// A stage as the target leaves it.
  struct Need {
    bool single = false;  ///< one machine is enough
    int replicas = 0;     ///< at least so many, when there are several; M + 1 = never
    double versions = 0;
  };

  [[nodiscard]] int none() const { return costs_.machines + 1; }
  [[nodiscard]] static int first(const Reach& reach) { return std::min(reach.least, reach.from); }
  [[nodiscard]] static bool reaches(const Reach& reach, int machines);
  [[nodiscard]] Need need(int from, int to, double target, int most) const;
  /// Whether a stage of several machines from `from` on may lead to `to` with at most `machines`.
  [[nodiscard]] bool may_reach(int from, int to, int machines, double target) const;
  /// Machines after a stage of several replicas that follows `used` machines.
  [[nodiscard]] int after(const Need& need, int used) const;
  /// The least number of machines before a stage of one machine.
  [[nodiscard]] int before_single(const Need& need) const;
  [[nodiscard]] static bool adds_single(const Reach& before, const Reach& reach);
  void extend(int from, int to, const Need& need);
  [[nodiscard]] std::vector<Stage> trace(double target) const;

  Costs costs_;
  std::vector<Reach> reach_{};
  std::vector<double> first_{};  ///< of each state, first()
};

}  // namespace shardplan::planners
