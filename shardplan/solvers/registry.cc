#include "shardplan/solvers/registry.h"

#include "shardplan/solvers/beam.h"
#include "shardplan/solvers/exact.h"
#include "shardplan/solvers/local_search.h"
#include "shardplan/solvers/milp.h"
#include "shardplan/support/text.h"

namespace shardplan::solvers {
namespace {

Solution solve_exactly(const ConstrainedProblem& problem, const SolveOptions& options) {
  return ExactSolver().solve(problem, options);
}

}  // namespace

const std::vector<SolverInfo>& registry() {
  static const std::vector<SolverInfo> solvers{
      {"exact",
       "Bertelè, Brioschi 1972; Geoffrion 1974",
       "elimination under multipliers, then over Pareto points within the bound",
       solve_exactly},
      milp_solver(),
      beam_solver(),
      local_search_solver(),
  };
  return solvers;
}

Result<const SolverInfo*> find_solver(const std::string& name) {
  std::vector<std::string> names;
  for (const SolverInfo& solver : registry()) {
    if (solver.name == name) {
      return &solver;
    }
    names.emplace_back(solver.name);
  }
  const std::string close = suggest(name, names);
  return Error{
      ErrorCode::kNotFound,
      "unknown solver '" + name + "'" + (close.empty() ? "" : "; did you mean '" + close + "'?"),
      "--solver",
      {"list them with: shardplan solvers"}};
}

}  // namespace shardplan::solvers
