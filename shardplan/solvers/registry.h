#pragma once

#include <string>
#include <vector>

#include "shardplan/solvers/solver.h"
#include "shardplan/support/result.h"

namespace shardplan::solvers {

/// All general solvers, the default one first.
[[nodiscard]] const std::vector<SolverInfo>& registry();

/// By name; the error for an unknown name suggests a close one.
[[nodiscard]] Result<const SolverInfo*> find_solver(const std::string& name);

}  // namespace shardplan::solvers
