#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "shardplan/planners/evaluate.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/problem/step_structure.h"
#include "shardplan/solvers/class_elimination.h"
#include "shardplan/solvers/exact.h"

namespace shardplan::planners {

/// The moments at which memory was found to bind, the same on all meshes, and what it was last
/// worth there.
struct MemoryRows {
  std::vector<problem::Moment> moments{};
  std::vector<double> multiplier{};  ///< seconds a byte

  /// False when it is known.
  bool add(problem::Moment at);
};

/// What the searches on all meshes share: what they may spend, and what they found.
struct MapShared {
  const Budget& budget;
  MemoryRows& rows;
  std::vector<Candidate>& candidates;
};

/// The search of `map` on one mesh. Keeps what one memory limit taught for the next.
class MapMesh {
 public:
  /// `request` outlives it.
  [[nodiscard]] static Result<MapMesh> make(
      const PlanRequest& request,
      const std::shared_ptr<const problem::StepStructure>& structure,
      const cluster::DeviceMesh& mesh);

  /// What is proven of all plans on this mesh within a limit.
  struct Bound {
    Seconds additive = 0;  ///< infinite: no plan fits
    std::vector<plan::BindingRow> rows{};
  };

  /// The optimum without a limit.
  Status solve_free(std::vector<Candidate>& candidates);
  /// A plan that hides more of its communication, once, unless no plan of this mesh can have a
  /// smaller simulated time than `worth`.
  Status solve_overlapping(Seconds worth, std::vector<Candidate>& candidates);
  /// No plan on this mesh has a smaller additive time, whatever the limit.
  [[nodiscard]] Seconds free_bound() const { return free_bound_; }
  /// The least simulated time of the plans found without a limit.
  [[nodiscard]] Seconds free_seconds() const { return free_seconds_; }
  /// No plan on this mesh has a smaller simulated time, whatever the limit.
  [[nodiscard]] Seconds least_step_seconds() const { return least_step_; }

  /// A bound on the additive time within a limit, quickly, and plans near it. Ends early when
  /// nothing below `worth` is possible. Precondition: solve_free().
  [[nodiscard]] Result<Seconds> approach(Bytes limit, Seconds worth, MapShared& shared);
  /// Proves the optimum within the limit, or that it is not below `worth`, where the mesh is small
  /// enough and `effort` (counted seconds, see solvers::SolveOptions; reduced by what was spent)
  /// lasts. Precondition: approach().
  [[nodiscard]] Result<Bound> close(Bytes limit, Seconds worth, Seconds& effort, MapShared& shared);

  /// The plan of least peak, as far as it may be below `worth`; returns the proven lower bound on
  /// the peak. Precondition: solve_free().
  [[nodiscard]] Result<double> solve_least(double worth, MapShared& shared);

 private:
  MapMesh(const PlanRequest& request, problem::IntraOpProblem problem, std::size_t axes)
      : request_(request), problem_(std::move(problem)), axes_(axes) {}

  /// What came of solving one problem, whole or restricted.
  struct Outcome {
    Bound bound{};
    Seconds objective = 0;  ///< additive time of the plan that fits; infinite: none was found
    bool infeasible = false;
  };

  /// What is known of the least peak.
  struct Least {
    double bound = 0;
    double peak = 0;  ///< of a plan
    [[nodiscard]] bool closed() const;
  };
  Status least_columns(double limit, MapShared& shared, Least& least);
  [[nodiscard]] Result<bool> least_step(const problem::IntraOpProblem& problem,
                                        bool whole,
                                        MapShared& shared,
                                        Least& least);
  [[nodiscard]] Result<Candidate> candidate(const problem::IntraOpProblem& problem,
                                            const std::vector<int>& choice,
                                            bool recompute) const;
  [[nodiscard]] solvers::ClassSolution minimised(const solvers::ClassNetwork& network,
                                                 bool often) const;
  [[nodiscard]] Result<Outcome> solve_rows(const problem::IntraOpProblem& problem,
                                           solvers::ExactSolver& solver,
                                           Bytes limit,
                                           Seconds worth,
                                           bool fall_back,
                                           Seconds& effort,
                                           MapShared& shared) const;
  [[nodiscard]] Result<Bound> solve_columns(Bytes limit, Seconds worth, MapShared& shared);
  [[nodiscard]] bool is_small() const;
  void forget_tables();
  [[nodiscard]] Seconds lagrangian(const MemoryRows& rows, double limit, double weight);
  [[nodiscard]] double least_bound(const MemoryRows& rows, const solvers::Solution& solution);
  bool add_moments(const Candidate& candidate, double limit, MemoryRows& rows) const;

  const PlanRequest& request_;
  problem::IntraOpProblem problem_;
  std::size_t axes_;
  solvers::ExactSolver solver_;
  bool overlapped_ = false;
  Seconds free_bound_ = 0;
  Bytes free_bytes_ = 0;
  Seconds free_seconds_ = 0;
  Seconds least_step_ = 0;
  std::vector<std::pair<Bytes, problem::Moment>> free_peaks_;
  std::vector<std::vector<int>> columns_;  ///< assignments whose choices the restricted problem has
  std::map<Bytes, Bound> bounds_;          ///< by limit
  std::set<Bytes> closed_;                 ///< limits
};

}  // namespace shardplan::planners
