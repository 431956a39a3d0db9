#pragma once

#include <functional>

#include "shardplan/sharding/reshard.h"

namespace shardplan::sharding {

/// Calls `visit` for every step of one_step_reshards(), in the same order, without allocating for
/// each: the step is valid only during the call. Of the room; callers outside use
/// one_step_reshards().
void for_each_step(const ShardingSpec& spec,
                   const ir::Shape& shape,
                   const cluster::DeviceMesh& mesh,
                   const std::function<void(const ReshardStep&)>& visit);

}  // namespace shardplan::sharding
