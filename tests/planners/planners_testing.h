#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "shardplan/frontends/frontends.h"
#include "shardplan/training/training.h"

namespace shardplan::planners {

inline ir::Graph step_of(const std::string& model) {
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, {});
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

}  // namespace shardplan::planners
