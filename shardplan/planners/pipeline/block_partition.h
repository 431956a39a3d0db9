#pragma once

#include "shardplan/planners/layer_planner.h"

namespace shardplan::planners {

/// torchgpipe's block partition (Kim et al., 2020, after Barany and Grinberg): a chain of layers in
/// blocks whose largest time is small, by moving single layers between blocks. Not optimal.
[[nodiscard]] LayerPlannerInfo torchgpipe_planner();

/// The exact answer to the same question, which GPipe leaves to a heuristic (Huang et al., 2019):
/// contiguous blocks of the chain with the least possible largest time.
[[nodiscard]] LayerPlannerInfo gpipe_planner();

}  // namespace shardplan::planners
