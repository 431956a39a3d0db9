#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/support/progress.h"
#include "shardplan/support/result.h"

namespace shardplan::runtime {

struct RunOptions {
  int steps = 3;  ///< without a flush: runs of as many steps as the plan's pipeline says
  bool verify = false;
  std::uint64_t seed = 0;  ///< of weights without data, inputs, and dropout
  int threads_per_rank = 1;
  Seconds timeout = 60;  ///< a rank that is silent for so long has hung
};

/// What a run found. Lists are by rank.
struct RunReport {
  bool ok = true;                 ///< verify: everything within tolerance
  double max_relative_error = 0;  ///< largest |difference| / largest magnitude of the tensor
  std::string worst_tensor{};     ///< "gradient of transformer.h.3.attn.c_attn.weight, step 2"
  std::vector<double> losses{};   ///< by step; without a flush: means over the steps of a run
  std::vector<double> reference_losses{};  ///< by step, one device
  std::vector<Bytes> measured_peak_bytes{};
  Seconds measured_step_seconds = 0;  ///< median over steps after the first (over all if one)
  std::vector<Seconds> measured_rank_seconds{};  ///< the same, of each rank
  std::vector<Seconds> step_seconds{};  ///< of every step, on this rank (of a run: the mean)
  /// Seconds a step of this rank by what it did: name of the op or collective, "free" and "write".
  /// The mean over steps after the first (over all if one).
  std::map<std::string, Seconds> seconds_by_name{};
};

/// Where this process stands in a group of ranks.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
};
/// From RANK and WORLD_SIZE (torchrun, or our own launcher); nothing when they are not set.
[[nodiscard]] std::optional<RankInfo> rank_from_environment();

/// Starts `world_size` copies of this executable with the same arguments and RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT set, waits for them, and ends the others within seconds when one fails
/// or hangs, or when `control` is interrupted (ranks do not see Ctrl-C themselves). Returns an
/// error that names the rank, or success when all exit with 0 (or all with 1).
[[nodiscard]] Result<int> launch_local(int world_size,
                                       const std::vector<std::string>& arguments,
                                       const RunOptions& options,
                                       const Control& control = {});

/// Executes the step program as one rank of a Gloo group (store at MASTER_ADDR:MASTER_PORT; no
/// group when world_size is 1). Rank 0's report is complete, the others' hold their own figures.
[[nodiscard]] Result<RunReport> run_rank(const ir::Graph& step,
                                         const plan::Plan& plan,
                                         const lower::Program& program,
                                         const RankInfo& rank,
                                         const RunOptions& options,
                                         const Control& control = {});
/// The same of a pipeline.
[[nodiscard]] Result<RunReport> run_rank(const ir::Graph& step,
                                         const plan::Plan& plan,
                                         const lower::PipelineProgram& program,
                                         const RankInfo& rank,
                                         const RunOptions& options,
                                         const Control& control = {});

struct ProbeOptions {
  int ranks = 2;
  bool quick = false;
};
/// Measures this machine: matrix products by size and dtype, memory-bound ops, and every collective
/// by size over Gloo between `ranks` processes of one thread each. Runs collectives on threads of
/// this process. Returns a cluster description for cluster::to_yaml.
[[nodiscard]] Result<cluster::Cluster> probe(const ProbeOptions& options, const Control& control);

}  // namespace shardplan::runtime
