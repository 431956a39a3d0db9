#pragma once

#include "shardplan/solvers/elimination.h"
#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Lagrangian relaxation of the rows (Everett 1963; Geoffrion 1974): the relaxed problem is solved
/// exactly by elimination, which gives the bound; multipliers by coordinate ascent, each coordinate
/// exactly by intersecting the two supporting lines. Feasible assignments come from the relaxed
/// optima, from joining a cheap and a small one along the variables, and from improving moves of
/// one and of two adjacent variables. Exact when no row binds.
[[nodiscard]] Solution solve_constrained(const ConstrainedProblem& problem,
                                         Elimination& elimination,
                                         const SolveOptions& options = {});

}  // namespace shardplan::solvers
