// One mesh of `map`. Read `solve_free`, then `solve_within`: memory rows come from lowered
// programs. Solve, lower, look where the program takes more than the limit, add those moments as
// rows, solve again; a row is exact for every assignment, so every solution on the way gives a
// valid bound, and the last one fits.
#include "shardplan/planners/intra/map_mesh.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shardplan/problem/class_elimination.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostRounds = 40;
/// Relative gap at which the search within a limit ends.
constexpr double kGap = 2e-4;

}  // namespace

Result<MapMesh> MapMesh::make(const PlanRequest& request,
                              const std::shared_ptr<const problem::StepStructure>& structure,
                              const cluster::DeviceMesh& mesh) {
  const cost::CostModel cost(request.cluster, mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(problem::IntraOpProblem problem,
                             problem::IntraOpProblem::build(structure, cost));
  return MapMesh(request, std::move(problem));
}

Result<Candidate> MapMesh::candidate(const std::vector<int>& choice, bool recompute) const {
  return evaluate(problem_.to_plan(choice, recompute), request_.step);
}

Status MapMesh::solve_free(std::vector<Candidate>& candidates) {
  const problem::ClassSolution solution = problem::minimise(problem_.class_network(false));
  if (!solution.solved) {
    return unsupported("map: the model's graph is too entangled for exact elimination");
  }
  free_ = solution.cost;
  // On one stream the simulated time is the additive one.
  least_step_ = request_.cluster.local ? free_ : free_ / 2;
  SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(solution.choice, false));
  free_bytes_ = made.simulation.peak_bytes;
  for (const sim::Peak& peak : made.simulation.phase_peaks) {
    if (peak.bytes > 0) {
      free_peaks_.emplace_back(peak.bytes, problem_.moment_of(peak.at, made.plan));
    }
  }
  candidates.push_back(std::move(made));
  return request_.cluster.local ? Status{} : add_overlapping(candidates);
}

/// Optima in which changes of layout count only in part, as if the rest hid behind compute: more
/// candidates for the simulator, which knows what does. Each also bounds every simulated time: that
/// is at least the kernels' C and at least the collectives' K, hence at least (C + e K) / (1 + e).
Status MapMesh::add_overlapping(std::vector<Candidate>& candidates) {
  for (const double exposed : {0.5, 0.2, 0.0}) {
    const problem::ClassSolution solution =
        problem::minimise(problem_.class_network(false, exposed));
    if (!solution.solved) {
      continue;
    }
    least_step_ = std::max(least_step_, solution.cost / (1 + exposed));
    if (exposed > 0) {
      SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(solution.choice, false));
      candidates.push_back(std::move(made));
    }
  }
  return {};
}

bool MapMesh::add_moment(problem::Moment at) {
  if (std::find(moments_.begin(), moments_.end(), at) != moments_.end()) {
    return false;
  }
  moments_.push_back(at);
  hint_.push_back(0);
  return true;
}

bool MapMesh::add_moments(const Candidate& made, double limit) {
  bool added = false;
  for (const sim::Peak& peak : made.simulation.phase_peaks) {
    if (static_cast<double>(peak.bytes) > limit) {
      added = add_moment(problem_.moment_of(peak.at, made.plan)) || added;
    }
  }
  return added;
}

Result<MapMesh::Bound> MapMesh::solve_within(Bytes limit,
                                             const Budget& budget,
                                             std::vector<Candidate>& candidates) {
  if (const auto known = bounds_.find(limit); known != bounds_.end()) {
    return known->second;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Bound bound, search_within(limit, budget, candidates));
  if (!budget.exhausted()) {
    bounds_.emplace(limit, bound);
  }
  return bound;
}

Result<MapMesh::Bound> MapMesh::search_within(Bytes limit,
                                              const Budget& budget,
                                              std::vector<Candidate>& candidates) {
  Bound bound;
  bound.additive = free_;
  if (free_bytes_ <= limit) {
    return bound;
  }
  for (const auto& [bytes, at] : free_peaks_) {
    if (bytes > limit) {
      add_moment(at);
    }
  }
  double margin = 0;  // what rows leave out (a number of the microbatch before)
  for (int round = 0; round < kMostRounds && !budget.exhausted(); ++round) {
    problem::StrategyGraph graph = problem_.strategy_graph(true, moments_);
    for (solvers::ConstrainedProblem::Row& row : graph.problem.rows) {
      row.limit = static_cast<double>(limit) - margin;
    }
    solvers::SolveOptions options;
    options.gap = kGap;
    options.hint = hint_;
    options.time_limit = budget.remaining();
    options.control = budget.control();
    const solvers::Solution solution = solver_.solve(graph.problem, options);
    if (solution.status == solvers::SolveStatus::kInfeasible) {
      bound.additive = kInfinity;
      return bound;
    }
    if (solution.multiplier.size() == hint_.size()) {
      hint_ = solution.multiplier;
    }
    bound.additive = std::max(bound.additive, solution.lower_bound);
    if (solution.choice.empty()) {
      return bound;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(solution.choice, true));
    const Bytes peak = made.simulation.peak_bytes;
    const bool news = add_moments(made, static_cast<double>(limit));
    candidates.push_back(std::move(made));
    budget.control().report("memory", static_cast<double>(round + 1) / kMostRounds);
    if (peak <= limit || solution.status == solvers::SolveStatus::kUnknown) {
      bound.rows = binding(graph, solution);
      return bound;
    }
    if (!news) {
      margin += static_cast<double>(peak - limit);
    }
  }
  return bound;
}

std::vector<plan::BindingRow> MapMesh::binding(const problem::StrategyGraph& graph,
                                               const solvers::Solution& solution) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  std::vector<plan::BindingRow> rows;
  for (std::size_t r = 0; r < solution.multiplier.size(); ++r) {
    if (solution.multiplier[r] > 0) {
      rows.push_back({graph.rows[r],
                      static_cast<Bytes>(std::llround(solution.usage[r])),
                      solution.multiplier[r] * kGib});
    }
  }
  return rows;
}

Result<double> MapMesh::solve_least(const Budget& budget, std::vector<Candidate>& candidates) {
  double bound = 0;
  for (const auto& [bytes, at] : free_peaks_) {
    add_moment(at);
  }
  for (int round = 0; round < kMostRounds && !budget.exhausted(); ++round) {
    problem::StrategyGraph graph = problem_.strategy_graph(true, moments_);
    for (solvers::ConstrainedProblem::Row& row : graph.problem.rows) {
      row.limit = 0;
    }
    solvers::SolveOptions options;
    options.gap = 1e-3;
    options.time_limit = budget.remaining();
    options.control = budget.control();
    const solvers::Solution solution = solver_.solve_min_max(graph.problem, options);
    bound = std::max(bound, solution.lower_bound);
    if (solution.choice.empty()) {
      break;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(solution.choice, true));
    const auto peak = static_cast<double>(made.simulation.peak_bytes);
    const bool news = add_moments(made, solution.objective);
    candidates.push_back(std::move(made));
    if (!news || peak <= bound * (1 + 2e-3)) {
      break;
    }
  }
  return bound;
}

}  // namespace shardplan::planners
