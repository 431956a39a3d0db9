#pragma once

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// The mixed-integer linear program of MAP and Alpa, solved by CBC: a 0/1 variable for each choice,
/// a weight for each joint choice of a factor whose sums over the other variables are the choices'.
/// CBC works with tolerances: bounds and gaps are claimed to a millionth, whatever gap is asked.
[[nodiscard]] SolverInfo milp_solver();

}  // namespace shardplan::solvers
