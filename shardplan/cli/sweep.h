#pragma once

#include <string>
#include <vector>

#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/planners/planner.h"

namespace shardplan::cli {

/// "20GiB:80GiB:5GiB" as a list of limits, one limit for anything without a colon.
[[nodiscard]] Result<std::vector<Bytes>> read_limits(const std::string& text);

/// "devices" as 1, 2, 4, ... up to the cluster's devices, those included; "devices=1,2,8" as this
/// list, which must grow and be parts of the cluster.
[[nodiscard]] Result<std::vector<cluster::Cluster>> read_device_sweep(
    const std::string& text, const cluster::Cluster& cluster);

/// Plans for every limit and prints all of them with what is proven: a table and a plot of time
/// over memory, or JSON. An interrupt ends the search with the best plans so far. Exit code; an
/// error when no limit has a plan.
[[nodiscard]] Result<int> sweep_memory(const planners::PlannerInfo& planner,
                                       const Planning& planning,
                                       const std::vector<Bytes>& limits,
                                       const Session& session);

/// The same for one model on growing clusters: rates, speed-up and efficiency against the smallest
/// cluster on which it fits. An interrupt ends it after the cluster that is being planned for.
[[nodiscard]] Result<int> sweep_devices(const planners::PlannerInfo& planner,
                                        const Planning& planning,
                                        const std::vector<cluster::Cluster>& clusters,
                                        Bytes limit,
                                        const Session& session);

/// Whether --sweep has this text for microbatches, and not for devices.
[[nodiscard]] bool sweeps_microbatches(const std::string& text);
/// "microbatches" as 1, 2, 4, ... as far as the batch can be cut; "microbatches=1,8" as this list,
/// which must grow.
[[nodiscard]] Result<std::vector<Planning>> read_microbatch_sweep(const std::string& text,
                                                                  const Planning& planning);

/// The same for one batch in more and more microbatches. Writes the fastest plan to `output` where
/// that has a name.
[[nodiscard]] Result<int> sweep_microbatches(const planners::PlannerInfo& planner,
                                             const std::vector<Planning>& plannings,
                                             Bytes limit,
                                             const std::string& output,
                                             const Session& session);

/// Why there is no plan.
[[nodiscard]] Error infeasible(const planners::PlanResult& result, const std::string& planner);

}  // namespace shardplan::cli
