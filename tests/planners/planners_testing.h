#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/planner.h"
#include "shardplan/training/training.h"

namespace shardplan::planners {

inline ir::Graph step_of(const std::string& model) {
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, {});
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

/// The registry without the published planners of layer graphs, which have tests of their own.
inline std::vector<PlannerInfo> planners_of_steps() {
  std::vector<PlannerInfo> out;
  for (const PlannerInfo& planner : registry()) {
    if (!find_layer_planner(planner.name)) {
      out.push_back(planner);
    }
  }
  return out;
}

}  // namespace shardplan::planners
