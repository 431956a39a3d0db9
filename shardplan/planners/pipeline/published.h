#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/step_layers.h"

namespace shardplan::planners {

/// Every planner of layer graphs as a planner of models, under its name: it solves the layers of
/// the step (step_layers.h), and each of its stages gets what it asked for, as far as our plans
/// have it: a data-parallel copies of b tensor-parallel devices by the rules of expert planners
/// (alpa: what `map` finds), its choices of recomputation, and the paper's schedule where it can be
/// run, else the closest one that can, and then the result's explanation says why. PipeDream's and
/// PipeDream-2BW's plans are asynchronous where the step allows it: several steps without a flush,
/// with stale weights (plan::Pipeline::steps). Deviations are in the summary. The copies of a stage
/// share every microbatch, where papers have them take turns. What the method cannot do, and plans
/// that leave devices idle, are no plan and say so by the method's name.
[[nodiscard]] std::vector<PlannerInfo> published_planners();

/// What came of one method on one step.
struct PublishedOutcome {
  std::vector<Candidate> candidates{};
  std::string why{};   ///< there are none
  std::string note{};  ///< why they do not have the paper's schedule; empty: they do
};

/// Which weights a plan's passes may compute with.
enum class Weights : std::uint8_t {
  kFresh,  ///< those of the last step, as one device would
  kStale,  ///< older ones too, where the method is asynchronous
};

/// The method's stages planned and simulated; with all blocks recomputed as well where that does
/// not fit and the paper recomputes. `layers` are those of the request.
[[nodiscard]] PublishedOutcome plan_published(const LayerPlannerInfo& method,
                                              const PlanRequest& request,
                                              const StepLayers& layers,
                                              StagePlans& stages,
                                              Weights weights,
                                              const Budget& budget);

}  // namespace shardplan::planners
