#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/lower/program.h"
#include "shardplan/solvers/elimination.h"
#include "shardplan/training/training.h"
#include "tests/convolutional_testing.h"

namespace shardplan::problem {

/// Of a zoo model, or of the net in tests/convolutional_testing.h.
inline ir::Graph step_of(const std::string& model, std::int64_t microbatches = 1) {
  training::Recipe recipe;
  recipe.microbatches = microbatches;
  auto graph = model == "convolutional" ? ir::parse(kConvolutional) : frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, recipe);
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

inline lower::Program lowered(const ir::Graph& step,
                              const plan::Plan& plan,
                              const cost::CostModel& cost) {
  auto program =
      lower::lower(step, plan, [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
        return cost.reshard_step(move, type);
      });
  EXPECT_TRUE(program) << program.error().text();
  return std::move(*program);
}

/// The optimum of costs by chance: possible, and unlike that of the seconds. (Partial sums that
/// nobody takes make most uniformly random assignments impossible.)
inline std::vector<int> odd_assignment(const solvers::CostNetwork& objective,
                                       std::mt19937& random) {
  std::uniform_real_distribution<double> chance(0, 1);
  solvers::CostNetwork odd = objective;
  const auto shuffle = [&](solvers::CostTable& table) {
    std::vector<double> values = *table;
    for (double& value : values) {
      value = std::isinf(value) ? value : chance(random);
    }
    table = std::make_shared<const std::vector<double>>(std::move(values));
  };
  std::for_each(odd.unary.begin(), odd.unary.end(), shuffle);
  for (solvers::CostNetwork::Factor& factor : odd.factors) {
    shuffle(factor.cost);
  }
  return solvers::Elimination().minimise(odd).solution.choice;
}

}  // namespace shardplan::problem
