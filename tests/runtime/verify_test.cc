#include "shardplan/runtime/verify.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "ranks.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/planner.h"
#include "shardplan/runtime/initial.h"

namespace shardplan::runtime {
namespace {

constexpr const char* kModel = "gpt:layers=1,hidden=16,heads=2,seq=16,batch=4,vocab=64";

struct Case {
  training::Recipe recipe{};
  ir::Graph step{};
  plan::Plan plan{};
  lower::Program program{};
};

Case dp_on_two_ranks(training::Precision precision) {
  Case made;
  made.recipe.precision = precision;
  made.step = training::build_training_step(*frontends::zoo_model(kModel), made.recipe).value();
  const planners::PlannerInfo* const dp = planners::find_planner("dp").value();
  made.plan = dp->plan({.step = made.step,
                        .recipe = made.recipe,
                        .cluster = cluster::load_cluster("local:2").value()})
                  .value()
                  .best;
  made.program =
      lower::lower(made.step,
                   made.plan,
                   [](const sharding::ReshardStep&, const ir::TensorType&) { return 1.0; },
                   {.keep_gradients = true})
          .value();
  return made;
}

/// Trains some steps; `spoil` may change what rank 1 holds after each of them.
Difference verify(const Case& made, int steps, const std::function<void(Executor&)>& spoil) {
  Difference worst;
  const std::vector<std::int64_t> bounds = lookup_bounds(made.step);
  run_ranks(2, [&](std::int64_t rank, GroupSource& groups) {
    const auto run = Executor::create({made.step, made.program, rank, 1, &groups, {}}).value();
    const auto verifier = Verifier::create(made.step, made.plan, rank, 1, {}).value();
    for (int i = 0; i < steps; ++i) {
      const InputSource inputs = [&](ir::ValueId input, std::int64_t microbatch) {
        return random_input(made.step, input, bounds[input.index()], 1, i, microbatch);
      };
      const double loss = run->run_step(inputs).value();
      if (rank == 1) {
        spoil(*run);
      }
      EXPECT_TRUE(verifier->compare_step(*run, loss, inputs).has_value());
    }
    if (rank == 0) {
      worst = verifier->worst();
    }
  });
  return worst;
}

// The gradient of a key bias is zero but for rounding, and Adam divides it by its size.
TEST(Verifier, Fp32IsEqualThoughAdamMagnifiesRounding) {
  const Case made = dp_on_two_ranks(training::Precision::kFloat32);
  const Difference worst = verify(made, 3, [](Executor&) {});
  EXPECT_LT(worst.relative, tolerance(made.step)) << worst.where;
  EXPECT_EQ(tolerance(made.step), 1e-4);
}

TEST(Verifier, NamesAParameterThatOneRankHasWrong) {
  for (const auto& [precision, error] : {std::pair(training::Precision::kFloat64, 1e-8),
                                         std::pair(training::Precision::kFloat32, 1e-3)}) {
    const Case made = dp_on_two_ranks(precision);
    const ir::ValueId weight = made.step.find_input("transformer.h.0.mlp.c_fc.weight");
    ASSERT_TRUE(weight.valid());
    const Difference worst = verify(made, 1, [&, much = error](Executor& run) {
      const at::Tensor wrong = run.resident(weight).tensor.clone();
      wrong.view({-1})[3] += wrong.abs().max().item<double>() * much;
      run.set_resident(weight, wrong);
    });
    EXPECT_NEAR(worst.relative / error, 1, 0.1);
    EXPECT_GT(worst.relative, tolerance(made.step));
    EXPECT_EQ(worst.where, "parameter transformer.h.0.mlp.c_fc.weight, step 1");
  }
}

}  // namespace
}  // namespace shardplan::runtime
