#pragma once

#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/sharding/halo.h"

namespace shardplan::lower {

/// An operand gets the rows that windows need beside its part.
struct HaloExchange {
  int operand = 0;
  sharding::ReshardStep step{};
  ir::TensorType made{};  ///< of the largest part
  Bytes workspace = 0;
};

/// An op as a device runs it in some layouts, by the largest parts: what lower() makes of it, and
/// what the problem counts.
struct LocalOp {
  ops::Types inputs{};  ///< as the kernel gets them, with their halos
  ops::Types results{};
  std::vector<ops::Halo> cut{};
  std::vector<HaloExchange> exchanges{};  ///< by operand; just before the kernel
  Flops flops = 0;
  Bytes bytes = 0;      ///< read and written
  Bytes workspace = 0;  ///< of the kernel
};

/// `types`: of the whole op. A view does no work.
[[nodiscard]] LocalOp local_op(const ops::OpDef& def,
                               const ops::AxisMap& map,
                               const ops::OpTypes& types,
                               const ir::Attributes& attributes,
                               const sharding::OpLayouts& layouts,
                               const cluster::DeviceMesh& mesh);

}  // namespace shardplan::lower
