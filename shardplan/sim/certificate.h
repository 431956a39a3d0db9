#pragma once

#include <cstddef>

#include "shardplan/cost/cost_model.h"
#include "shardplan/lower/program.h"
#include "shardplan/support/result.h"

namespace shardplan::sim {

/// What a program takes, counted in the plainest way.
struct Certificate {
  Seconds additive_seconds = 0;  ///< kernels and collectives of one step, one after the other
  Seconds kernel_seconds = 0;    ///< of these, what runs on the device alone (slices too)
  Bytes peak_bytes = 0;          ///< of every device
  bool peak_in_update = false;   ///< where the (first) peak is: the section and
  std::size_t peak_step = 0;     ///< the index of the instruction in it
};

/// Goes through the program one instruction after the other with a list of the storages that are
/// there: an instruction brings the storages of its outputs (but of views) and, while it runs, its
/// workspace; kFree takes one away; kWrite gives one to a resident. The check of simulate() and of
/// every search: shares nothing with either but the cost model's price of one kernel or collective.
/// Errors: an instruction that uses a storage that is not there, or one that is still there at the
/// end and belongs to nobody. O(steps · log values), times the microbatches until nothing changes
/// from one to the next.
[[nodiscard]] Result<Certificate> certify(const lower::Program& program,
                                          const ir::Graph& step,
                                          const cost::CostModel& cost);

}  // namespace shardplan::sim
