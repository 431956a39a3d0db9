#include "shardplan/runtime/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/kernel.h"

namespace shardplan::runtime {

at::Tensor gather(const Trainer& trainer, const LocatedPart& located, const ir::TensorType& type) {
  const at::NoGradGuard no_grad;
  const sharding::ShardingSpec& spec = located.part.spec;
  const cluster::DeviceMesh& mesh = *located.mesh;
  if (trainer.world() == nullptr || (spec.fully_replicated() && mesh.size() == trainer.ranks())) {
    return located.part.tensor.clone(at::MemoryFormat::Contiguous);
  }
  struct Held {
    std::vector<sharding::Range> box;
    std::int64_t member;  // the first that has it
    at::Tensor tensor;
  };
  std::vector<Held> all;
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  const at::TensorOptions options(scalar_type(type.dtype));
  for (std::int64_t member = 0; member < mesh.size(); ++member) {
    std::vector<sharding::Range> box = sharding::part(spec, type.shape, mesh, member);
    if (std::any_of(all.begin(), all.end(), [&](const Held& h) { return h.box == box; })) {
      continue;
    }
    const std::int64_t rank = located.first_rank + member;
    at::Tensor tensor;
    if (rank == trainer.rank()) {
      tensor = located.part.tensor.contiguous();
      for (std::int64_t other = 0; other < trainer.ranks(); ++other) {
        if (other != rank) {
          sends.push_back({other, tensor});
        }
      }
    } else {
      tensor = at::empty(sharding::part_shape(spec, type.shape, mesh, member), options);
      receives.push_back({rank, tensor});
    }
    all.push_back({std::move(box), member, std::move(tensor)});
  }
  trainer.world()->transfer(receives, sends);
  at::Tensor full = at::empty(type.shape, options);
  for (const Held& held : all) {
    shard_view(full, spec, mesh, held.member).copy_(held.tensor);
  }
  return full;
}

}  // namespace shardplan::runtime
