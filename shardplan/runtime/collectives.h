#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shardplan/runtime/groups.h"
#include "shardplan/sharding/halo.h"

namespace shardplan::runtime {

/// `output` = [members, ...input], in the order of members.
void all_gather_into(Group& group, const at::Tensor& output, const at::Tensor& input);
/// `inputs[i]` goes to member i, `outputs[i]` comes from member i: contiguous, of any sizes that
/// the two agree on.
void exchange(Group& group,
              const std::vector<at::Tensor>& outputs,
              const std::vector<at::Tensor>& inputs);
/// In place; equal bit by bit on all members. Temporary: the tensor, at most kSlabBytes of it.
void all_reduce_in_place(Group& group, const at::Tensor& tensor, sharding::Reduction reduction);

/// One step of a change of layout as one rank sees it.
struct CollectiveCall {
  const sharding::ReshardStep& step;
  const cluster::DeviceMesh& mesh;
  std::int64_t rank = 0;
  const ir::Shape& shape;  ///< of the whole tensor
  /// Over the ranks that differ only along step.axes; null for kSlice.
  Group* group = nullptr;

  [[nodiscard]] ir::Shape result_shape() const {
    return sharding::widened_part_shape(step.halos, step.to, shape, mesh, rank);
  }
};

/// Runs the step on this rank's part, which is contiguous, into `output`, which has the type of the
/// result and is contiguous. Of an all-reduce, `output` must hold a copy of the input already.
/// Temporaries beside input and result stay below a few MiB: where the parts do not lie one after
/// the other in memory, the tensor is moved in slabs. A halo exchange takes the rows that it sends
/// and receives.
void run_collective_into(const CollectiveCall& call,
                         const at::Tensor& input,
                         const at::Tensor& output);
/// Storage for the result of a step that has not begun.
[[nodiscard]] at::Tensor result_storage(const CollectiveCall& call, const at::Tensor& input);
/// Both together: returns fresh contiguous storage.
[[nodiscard]] at::Tensor run_collective(const CollectiveCall& call, const at::Tensor& input);

/// This rank's part of a full tensor, as fresh contiguous storage. `spec` has no partial sums.
[[nodiscard]] at::Tensor shard_of(const at::Tensor& full,
                                  const sharding::ShardingSpec& spec,
                                  const cluster::DeviceMesh& mesh,
                                  std::int64_t rank);
/// The same part as a view.
[[nodiscard]] at::Tensor shard_view(const at::Tensor& full,
                                    const sharding::ShardingSpec& spec,
                                    const cluster::DeviceMesh& mesh,
                                    std::int64_t rank);
/// Number of this rank's part along `axes` (major to minor): its mixed-radix coordinate.
[[nodiscard]] std::int64_t part_number(const cluster::DeviceMesh& mesh,
                                       std::int64_t rank,
                                       const std::vector<int>& axes);

}  // namespace shardplan::runtime
