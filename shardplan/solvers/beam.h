#pragma once

#include "shardplan/solvers/solver.h"

namespace shardplan::solvers {

/// Beam search (Lowerre 1976) along the order of a mini-bucket relaxation, whose cost-to-go tables
/// rank the partial assignments, with wider and wider beams. Assignments that cannot be the best
/// are dropped for good (worse than a known one, beyond a limit, or no better in anything than one
/// with the same open choices); the bound is the least of what the beam dropped for room. Exact
/// once nothing is dropped for room.
[[nodiscard]] SolverInfo beam_solver();

}  // namespace shardplan::solvers
