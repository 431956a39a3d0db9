#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shardplan/planners/evaluate.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/problem/step_structure.h"
#include "shardplan/solvers/exact.h"

namespace shardplan::planners {

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

  /// The optimum without a limit and plans that hide more of their communication, once.
  Status solve_free(std::vector<Candidate>& candidates);
  [[nodiscard]] Seconds free_seconds() const { return free_; }
  [[nodiscard]] Bytes free_bytes() const { return free_bytes_; }
  /// No plan on this mesh has a smaller simulated time, whatever the limit.
  [[nodiscard]] Seconds least_step_seconds() const { return least_step_; }

  /// The optimum within a limit. Precondition: solve_free().
  [[nodiscard]] Result<Bound> solve_within(Bytes limit,
                                           const Budget& budget,
                                           std::vector<Candidate>& candidates);

  /// The plan of least peak; returns the proven lower bound on it.
  [[nodiscard]] Result<double> solve_least(const Budget& budget,
                                           std::vector<Candidate>& candidates);

 private:
  MapMesh(const PlanRequest& request, problem::IntraOpProblem problem)
      : request_(request), problem_(std::move(problem)) {}

  [[nodiscard]] Result<Candidate> candidate(const std::vector<int>& choice, bool recompute) const;
  [[nodiscard]] Result<Bound> search_within(Bytes limit,
                                            const Budget& budget,
                                            std::vector<Candidate>& candidates);
  bool add_moment(problem::Moment at);
  /// Adds the moments at which a plan takes more than `limit`; false when all are known.
  bool add_moments(const Candidate& candidate, double limit);
  Status add_overlapping(std::vector<Candidate>& candidates);
  [[nodiscard]] static std::vector<plan::BindingRow> binding(const problem::StrategyGraph& graph,
                                                             const solvers::Solution& solution);

  const PlanRequest& request_;
  problem::IntraOpProblem problem_;
  solvers::ExactSolver solver_;
  Seconds free_ = 0;
  Bytes free_bytes_ = 0;
  Seconds least_step_ = 0;
  std::vector<std::pair<Bytes, problem::Moment>> free_peaks_;
  std::map<Bytes, Bound> bounds_;         ///< by limit
  std::vector<problem::Moment> moments_;  ///< of the rows
  std::vector<double> hint_;              ///< multipliers of the last solution, by moment
};

}  // namespace shardplan::planners
