#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/support/result.h"

namespace shardplan::sim {

/// What a pipeline takes, counted in the plainest way.
struct PipelineCertificate {
  /// Kernels, collectives and messages of all groups, one after the other.
  Seconds additive_seconds = 0;
  Seconds kernel_seconds = 0;  ///< of these, what runs on devices alone
  /// Of one step: along the longest chain of tasks, when collectives take no time beside kernels
  /// (`in_line`: when they do), and when everything in a task is done one after the other.
  Seconds least_step_seconds = 0;
  Seconds most_step_seconds = 0;
  std::vector<Bytes> peak_bytes{};  ///< by group of devices: of each of its devices

  /// Where the (first) highest peak is.
  struct Peak {
    Bytes bytes = 0;
    int group = 0;
    lower::Task task{};
    bool in_update = false;  ///< the section of the stage's program, and the
    std::size_t step = 0;    ///< index of the instruction in it
  };
  Peak peak{};
  std::size_t passes = 0;    ///< of all groups
  std::size_t messages = 0;  ///< between stages, of one microbatch and the update
};

/// Goes through every group's list of tasks as certify() goes through a program; messages that were
/// sent stay as lower::Outbox says. Chains of tasks are found by going over all lists again and
/// again until no task starts later. The check of simulate_pipeline: shares nothing with it but
/// prices. `stages`: the plan of each stage; `in_line`: collectives never run beside kernels.
/// Errors: those of certify(); a pass that is there twice or never, or begins never; a message of
/// which a receiver gets an element twice, not at all, or from a rank that does not hold it.
/// O(tasks · instructions + tasks · the tasks of the longest chain).
[[nodiscard]] Result<PipelineCertificate> certify_pipeline(const lower::PipelineProgram& program,
                                                           const cluster::Cluster& cluster,
                                                           const std::vector<plan::Plan>& stages,
                                                           bool in_line);

}  // namespace shardplan::sim
