#include "shardplan/solvers/registry.h"

#include "shardplan/solvers/constrained.h"
#include "shardplan/support/text.h"

namespace shardplan::solvers {
namespace {

Solution solve_exactly(const ConstrainedProblem& problem, const SolveOptions& options) {
  Elimination elimination;
  return solve_constrained(problem, elimination, options);
}

}  // namespace

const std::vector<SolverInfo>& registry() {
  static const std::vector<SolverInfo> solvers{
      {"exact",
       "Bertelè, Brioschi 1972; Geoffrion 1974",
       "variable elimination, rows relaxed by multipliers",
       solve_exactly},
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
