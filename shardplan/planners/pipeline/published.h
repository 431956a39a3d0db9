#pragma once

#include <string>
#include <vector>

#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/pipeline/step_layers.h"

namespace shardplan::planners {

/// Every planner of layer graphs as a planner of models, under its name: it solves the layers of
/// the step (step_layers.h), and each of its stages gets what it asked for, as far as our plans
/// have it: a data-parallel copies of b tensor-parallel devices by the rules of expert planners
/// (alpa: what `map` finds), its choices of recomputation, and the paper's schedule where it can be
/// run, else the closest one that can. Deviations are in the summary. The copies of a stage share
/// every microbatch, where papers have them take turns. What the method cannot do, and plans that
/// leave devices idle, are no plan and say so by the method's name.
[[nodiscard]] std::vector<PlannerInfo> published_planners();

/// What came of one method on one step.
struct PublishedOutcome {
  std::vector<Candidate> candidates{};
  std::string why{};  ///< there are none
};

/// The method's stages planned and simulated; with all blocks recomputed as well where that does
/// not fit and the paper recomputes. `layers` are those of the request.
[[nodiscard]] PublishedOutcome plan_published(const LayerPlannerInfo& method,
                                              const PlanRequest& request,
                                              const StepLayers& layers,
                                              StagePlans& stages,
                                              const Budget& budget);

}  // namespace shardplan::planners
