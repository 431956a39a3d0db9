#pragma once

#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/lower/program.h"

namespace shardplan::sim {

/// The program as one rank of its mesh runs it: where a dimension is cut unevenly its parts may be
/// smaller, and its kernels then need less. Workspaces of collectives stay those of the largest
/// part. O(program).
[[nodiscard]] lower::Program program_of_rank(const lower::Program& program,
                                             const ir::Graph& step,
                                             std::int64_t rank);

/// By rank: the most bytes that it has at a time. That of the rank with the largest parts, which is
/// the first, is what simulate() says. One walk over the program where all parts are equal, else
/// one a rank.
[[nodiscard]] std::vector<Bytes> rank_peaks(const lower::Program& program, const ir::Graph& step);

}  // namespace shardplan::sim
