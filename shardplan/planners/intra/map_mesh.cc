// One mesh of `map`. Read `solve_free`, `solve_rows`, then `solve_columns`.
//
// Memory rows come from lowered programs (solve_rows): solve, lower, look where the program takes
// more than the limit, add those moments as rows, solve again. A row is exact for every assignment,
// so every solution on the way gives a valid bound, and the last one fits.
//
// Where tables over choices would be too large (meshes of three and more axes), only some choices
// are solved exactly (solve_columns): those that optima at some multipliers of the rows use. One
// evaluation over all choices at the multipliers of the restricted optimum bounds every plan, and
// names the choices that were missing (column generation, Dantzig and Wolfe 1960).
#include "shardplan/planners/intra/map_mesh.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostRounds = 40;
/// Relative gap at which the search within a limit ends.
constexpr double kGap = 8e-4;
/// Part of a plan's time below which its bound counts as far away.
constexpr double kFar = 0.98;
/// Seconds of counted work on one restricted problem; what is tried though all is spent.
constexpr Seconds kApproachEffort = 0.3;
constexpr Seconds kLeastEffort = 0.02;
/// The gap for the least memory.
constexpr double kLeastGap = 2.5e-3;

std::vector<plan::BindingRow> binding(const problem::StrategyGraph& graph,
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

}  // namespace

bool MapMesh::Least::closed() const {
  return peak <= bound * (1 + 2 * kLeastGap);
}

bool MemoryRows::add(problem::Moment at) {
  if (std::find(moments.begin(), moments.end(), at) != moments.end()) {
    return false;
  }
  moments.push_back(at);
  multiplier.push_back(0);
  return true;
}

Result<MapMesh> MapMesh::make(const PlanRequest& request,
                              const std::shared_ptr<const problem::StepStructure>& structure,
                              const cluster::DeviceMesh& mesh) {
  const cost::CostModel cost(request.cluster, mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(problem::IntraOpProblem problem,
                             problem::IntraOpProblem::build(structure, cost));
  return MapMesh(request, std::move(problem), mesh.axes.size());
}

Result<Candidate> MapMesh::candidate(const problem::IntraOpProblem& problem,
                                     const std::vector<int>& choice,
                                     bool recompute) const {
  return evaluate(problem.to_plan(choice, recompute), request_.step);
}

/// Joins that would take long, or more memory than there is, are bounded instead: those of seconds,
/// and at prices of memory, where there are many evaluations, those of tenths of a second.
solvers::ClassSolution MapMesh::minimised(const solvers::ClassNetwork& network, bool often) const {
  solvers::ClassOptions options;
  options.split_work = often ? 1e8 : 3e8;
  return solvers::minimise(network, options);
}

Status MapMesh::solve_free(std::vector<Candidate>& candidates) {
  const solvers::ClassSolution solution = minimised(problem_.class_network(false), false);
  if (!solution.solved) {
    return unsupported("map: the model's graph is too entangled for exact elimination");
  }
  free_bound_ = solution.lower_bound;
  // On one stream the simulated time is the additive one; on two it is at least the half, and at
  // least that of the kernels.
  least_step_ = request_.cluster.local ? free_bound_
                                       : std::max(free_bound_ / 2, problem_.least_kernel_seconds());
  columns_.push_back(solution.choice);
  SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(problem_, solution.choice, false));
  free_bytes_ = made.simulation.peak_bytes;
  free_seconds_ = made.simulation.step_seconds;
  for (const sim::Peak& peak : made.simulation.phase_peaks) {
    if (peak.bytes > 0) {
      free_peaks_.emplace_back(peak.bytes, problem_.moment_of(peak.at, made.plan));
    }
  }
  candidates.push_back(std::move(made));
  forget_tables();
  return {};
}

/// Those of all meshes of four axes would not fit together.
void MapMesh::forget_tables() {
  if (axes_ > 3) {
    problem_.forget_tables();
  }
}

/// The optimum in which changes of layout count only in part, as if the rest hid behind compute:
/// one more candidate for the simulator, which knows what does. It also bounds every simulated
/// time: that is at least the kernels' C and at least the collectives' K, hence at least (C + e K)
/// / (1 + e).
Status MapMesh::solve_overlapping(Seconds worth, std::vector<Candidate>& candidates) {
  constexpr double kExposed = 0.25;
  if (request_.cluster.local || overlapped_ || least_step_ >= worth) {
    return {};
  }
  overlapped_ = true;
  const solvers::ClassSolution solution = minimised(problem_.class_network(false, kExposed), false);
  if (solution.solved) {
    least_step_ = std::max(least_step_, solution.lower_bound / (1 + kExposed));
    SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(problem_, solution.choice, false));
    free_seconds_ = std::min(free_seconds_, made.simulation.step_seconds);
    candidates.push_back(std::move(made));
  }
  forget_tables();
  return {};
}

/// Adds the moments at which a plan takes more than `limit`; false when all are known. What binds
/// in a second block will bind in every block, one after the other: then all are added at once.
bool MapMesh::add_moments(const Candidate& made, double limit, MemoryRows& rows) const {
  bool added = false;
  for (const sim::Peak& peak : made.simulation.phase_peaks) {
    if (static_cast<double>(peak.bytes) <= limit ||
        !rows.add(problem_.moment_of(peak.at, made.plan))) {
      continue;
    }
    added = true;
    const std::vector<problem::Moment> alike = problem_.alike_moments(peak.at, made.plan);
    const auto known = std::count_if(alike.begin(), alike.end(), [&](problem::Moment at) {
      return std::find(rows.moments.begin(), rows.moments.end(), at) != rows.moments.end();
    });
    for (std::size_t k = 0; known > 1 && k < alike.size(); ++k) {
      rows.add(alike[k]);
    }
  }
  return added;
}

/// Whether tables over choices stay small enough for the exact solver.
bool MapMesh::is_small() const {
  constexpr std::size_t kMostEntries = 60'000;
  return problem_.largest_edge() <= kMostEntries;
}

Result<Seconds> MapMesh::approach(Bytes limit, Seconds worth, MapShared& shared) {
  const auto [known, fresh] = bounds_.emplace(limit, Bound{free_bound_, {}});
  if (!fresh || free_bytes_ <= limit || free_bound_ >= worth) {
    return known->second.additive;
  }
  for (const auto& [bytes, at] : free_peaks_) {
    if (bytes > limit) {
      shared.rows.add(at);
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(known->second, solve_columns(limit, worth, shared));
  forget_tables();
  if (shared.budget.exhausted()) {
    const Seconds bound = known->second.additive;
    bounds_.erase(known);
    return bound;
  }
  return known->second.additive;
}

Result<MapMesh::Bound> MapMesh::close(Bytes limit,
                                      Seconds worth,
                                      Seconds& effort,
                                      MapShared& shared) {
  Bound bound = bounds_.contains(limit) ? bounds_.at(limit) : Bound{free_bound_, {}};
  if (free_bytes_ <= limit || bound.additive >= worth * (1 - kGap) || !is_small() ||
      effort <= kLeastEffort || closed_.contains(limit)) {
    return bound;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const Outcome outcome,
                             solve_rows(problem_, solver_, limit, worth, false, effort, shared));
  if (outcome.bound.additive > bound.additive) {
    bound.additive = outcome.bound.additive;
  }
  if (!outcome.bound.rows.empty()) {
    bound.rows = outcome.bound.rows;
  }
  if (!shared.budget.exhausted()) {
    bounds_[limit] = bound;
    closed_.insert(limit);
  }
  return bound;
}

Result<MapMesh::Outcome> MapMesh::solve_rows(const problem::IntraOpProblem& problem,
                                             solvers::ExactSolver& solver,
                                             Bytes limit,
                                             Seconds worth,
                                             bool fall_back,
                                             Seconds& effort,
                                             MapShared& shared) const {
  Outcome outcome;
  outcome.objective = kInfinity;
  double margin = 0;  // what rows leave out (a number of the microbatch before)
  for (int round = 0; round < kMostRounds && !shared.budget.exhausted(); ++round) {
    problem::StrategyGraph graph = problem.strategy_graph(true, shared.rows.moments);
    for (solvers::ConstrainedProblem::Row& row : graph.problem.rows) {
      row.limit = static_cast<double>(limit) - margin;
    }
    solvers::SolveOptions options;
    options.gap = kGap;
    options.cutoff = worth;
    options.effort = effort;
    options.fall_back = fall_back;
    options.hint = shared.rows.multiplier;
    options.time_limit = shared.budget.remaining();
    options.control = shared.budget.control();
    const solvers::Solution solution = solver.solve(graph.problem, options);
    effort = std::max(effort - solution.effort, kLeastEffort);
    if (solution.status == solvers::SolveStatus::kInfeasible) {
      outcome.infeasible = true;
      outcome.bound.additive = kInfinity;
      return outcome;
    }
    if (solution.multiplier.size() == shared.rows.multiplier.size()) {
      shared.rows.multiplier = solution.multiplier;
    }
    outcome.bound.additive = std::max(outcome.bound.additive, solution.lower_bound);
    if (solution.choice.empty() || outcome.bound.additive >= worth * (1 - kGap)) {
      return outcome;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(problem, solution.choice, true));
    const Bytes peak = made.simulation.peak_bytes;
    const Seconds additive = made.simulation.additive_seconds;
    const bool news = add_moments(made, static_cast<double>(limit), shared.rows);
    shared.candidates.push_back(std::move(made));
    shared.budget.control().report("memory", static_cast<double>(round + 1) / kMostRounds);
    if (peak <= limit || solution.status == solvers::SolveStatus::kUnknown) {
      if (peak <= limit) {
        outcome.objective = additive;
      }
      outcome.bound.rows = binding(graph, solution);
      return outcome;
    }
    if (!news) {
      margin += static_cast<double>(peak - limit);
    }
  }
  return outcome;
}

/// The bound at the multipliers over all choices; adds the assignment that attains it. Weight 0: on
/// the weighted sum of the rows instead of the time.
Seconds MapMesh::lagrangian(const MemoryRows& rows, double limit, double weight) {
  const solvers::ClassSolution solution =
      minimised(problem_.class_network(rows.moments, rows.multiplier, weight), true);
  if (!solution.solved) {
    return 0;
  }
  columns_.push_back(solution.choice);
  Seconds bound = solution.lower_bound;
  for (const double multiplier : rows.multiplier) {
    bound -= multiplier * (limit - problem_.constant_bytes());
  }
  return bound;
}

Result<MapMesh::Bound> MapMesh::solve_columns(Bytes limit, Seconds worth, MapShared& shared) {
  constexpr int kMostColumns = 12;
  Bound bound{free_bound_, {}};
  bound.additive = std::max(bound.additive, lagrangian(shared.rows, static_cast<double>(limit), 1));
  // From bytes that cost as much as all of the step does, to ten times that.
  const double unit = free_bound_ / static_cast<double>(limit);
  for (double price = unit; columns_.size() < 4; price *= 10) {
    MemoryRows dear = shared.rows;
    dear.multiplier.assign(
        shared.rows.moments.size(),
        price / static_cast<double>(std::max<std::size_t>(shared.rows.moments.size(), 1)));
    bound.additive = std::max(bound.additive, lagrangian(dear, static_cast<double>(limit), 1));
  }
  if (bound.additive >= worth * (1 - kGap)) {
    return bound;
  }
  problem::IntraOpProblem restricted = problem_.restricted(columns_);
  for (int round = 0; round < kMostColumns && !shared.budget.exhausted(); ++round) {
    solvers::ExactSolver solver;
    // Where the tables do not fit, a local search may still help a plan that is far from its bound.
    const bool fall_back = bound.additive < kFar * worth;
    Seconds effort = kApproachEffort;
    SHARDPLAN_ASSIGN_OR_RETURN(
        const Outcome outcome,
        solve_rows(restricted, solver, limit, worth, fall_back, effort, shared));
    if (outcome.infeasible) {
      Least least;
      least.peak = kInfinity;
      SHARDPLAN_RETURN_IF_ERROR(least_columns(static_cast<double>(limit), shared, least));
      if (least.bound > static_cast<double>(limit)) {
        return Bound{kInfinity, {}};
      }
      if (least.peak > static_cast<double>(limit)) {
        return bound;  // too near to the least to tell
      }
    } else {
      bound.rows = outcome.bound.rows;
      worth = std::min(worth, outcome.objective);
    }
    const Seconds before = bound.additive;
    bound.additive =
        std::max(bound.additive, lagrangian(shared.rows, static_cast<double>(limit), 1));
    problem::IntraOpProblem wider = problem_.restricted(columns_);
    const bool learned =
        wider.largest_edge() > restricted.largest_edge() || bound.additive > before * (1 + kGap);
    restricted = std::move(wider);
    if (bound.additive >= worth * (1 - kGap) || (!learned && !outcome.infeasible)) {
      return bound;
    }
  }
  return bound;
}

Result<double> MapMesh::solve_least(double worth, MapShared& shared) {
  for (const auto& [bytes, at] : free_peaks_) {
    shared.rows.add(at);
  }
  Least least;
  least.peak = worth;
  SHARDPLAN_RETURN_IF_ERROR(least_columns(0, shared, least));
  bool news = is_small();
  for (int round = 0; round < kMostRounds && news && !shared.budget.exhausted() && !least.closed();
       ++round) {
    SHARDPLAN_ASSIGN_OR_RETURN(news, least_step(problem_, true, shared, least));
  }
  return least.bound;
}

/// The least peak by restricted problems, until it is known or known to be above `limit`, or a plan
/// within the limit is found.
Status MapMesh::least_columns(double limit, MapShared& shared, Least& least) {
  MemoryRows equal = shared.rows;
  equal.multiplier.assign(shared.rows.moments.size(),
                          1.0 / static_cast<double>(shared.rows.moments.size()));
  least.bound = std::max(least.bound, lagrangian(equal, 0, 0));
  for (int round = 0; round < kMostRounds && !shared.budget.exhausted() && !least.closed();
       ++round) {
    if (limit > 0 && (least.bound > limit || least.peak <= limit)) {
      break;
    }
    const double before = least.bound;
    SHARDPLAN_ASSIGN_OR_RETURN(const bool news,
                               least_step(problem_.restricted(columns_), false, shared, least));
    if (!news && least.bound <= before * (1 + 1e-4)) {
      break;
    }
  }
  return {};
}

/// Solves for the least largest row, of the whole problem or a restricted one, and lowers; true
/// when that taught a new moment.
Result<bool> MapMesh::least_step(const problem::IntraOpProblem& problem,
                                 bool whole,
                                 MapShared& shared,
                                 Least& least) {
  problem::StrategyGraph graph = problem.strategy_graph(true, shared.rows.moments);
  for (solvers::ConstrainedProblem::Row& row : graph.problem.rows) {
    row.limit = 0;
  }
  solvers::SolveOptions options;
  options.gap = kLeastGap;
  options.time_limit = shared.budget.remaining();
  options.control = shared.budget.control();
  const solvers::Solution solution = solver_.solve_min_max(graph.problem, options);
  if (solution.choice.empty()) {
    return false;
  }
  least.bound =
      std::max(least.bound, whole ? solution.lower_bound : least_bound(shared.rows, solution));
  SHARDPLAN_ASSIGN_OR_RETURN(Candidate made, candidate(problem, solution.choice, true));
  least.peak = std::min(least.peak, static_cast<double>(made.simulation.peak_bytes));
  const bool news = add_moments(made, solution.objective, shared.rows);
  shared.candidates.push_back(std::move(made));
  return news;
}

/// No plan of this mesh makes the weighted sum of the rows, hence the largest of them, smaller.
double MapMesh::least_bound(const MemoryRows& rows, const solvers::Solution& solution) {
  MemoryRows weighted = rows;
  weighted.multiplier = solution.multiplier;
  double sum = 0;
  for (const double multiplier : weighted.multiplier) {
    sum += multiplier;
  }
  return sum > 0 ? lagrangian(weighted, 0, 0) / sum : 0;
}

}  // namespace shardplan::planners
