// Collectives beside compute: the same work, in the same order on every rank, within the peak of
// the program that has them in line.
#include "shardplan/lower/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "planners_testing.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/planner.h"
#include "shardplan/sim/certificate.h"
#include "shardplan/sim/sim.h"

namespace shardplan::planners {
namespace {

using lower::LocalId;
using lower::Program;
using lower::Step;
using lower::StepKind;

struct Both {
  Program in_line{};
  Program aside{};
};

Both lower_both(const ir::Graph& step, const plan::Plan& plan, const cost::CostModel& cost) {
  const sharding::StepPrice price = [&](const sharding::ReshardStep& move,
                                        const ir::TensorType& type) {
    return cost.reshard_step(move, type);
  };
  Result<Program> in_line = lower::lower(step, plan, price, {});
  Result<Program> aside =
      lower::lower(step, plan, price, {.keep_gradients = false, .overlap = true});
  EXPECT_TRUE(in_line.has_value() && aside.has_value());
  return {*std::move(in_line), *std::move(aside)};
}

/// Every collective aside is waited for once, later, before anyone touches what it makes; what it
/// reads is neither freed nor overwritten before. Number of collectives aside.
int check_windows(const Program& program) {
  int count = 0;
  std::map<LocalId, LocalId> in_flight;  // what is made: the storage that is read
  for (const auto* section : {&program.microbatch, &program.update}) {
    for (const Step& step : *section) {
      if (step.kind == StepKind::kWait) {
        EXPECT_EQ(in_flight.erase(step.inputs[0]), 1U);
        continue;
      }
      for (const auto& [made, read] : in_flight) {
        for (const LocalId input : step.inputs) {
          EXPECT_NE(program.root(input), made) << "read before it is there";
          EXPECT_FALSE(step.kind == StepKind::kFree && input == read) << "freed while it is read";
        }
        for (const LocalId output : step.outputs) {
          EXPECT_NE(program.root(output), read) << "changed while it is read";
        }
      }
      if (step.aside) {
        ++count;
        const bool in_place = step.collective.kind == sharding::CollectiveKind::kAllReduce;
        in_flight[step.outputs[0]] = in_place ? step.outputs[0] : program.root(step.inputs[0]);
      }
    }
  }
  EXPECT_TRUE(in_flight.empty()) << "never waited for";
  return count;
}

std::size_t count_collectives(const Program& program) {
  std::size_t count = 0;
  for (const auto* section : {&program.microbatch, &program.update}) {
    count += static_cast<std::size_t>(
        std::count_if(section->begin(), section->end(), [](const Step& step) {
          return step.kind == StepKind::kCollective;
        }));
  }
  return count;
}

TEST(Overlap, KeepsPeakWorkAndOrderForEveryPlanner) {
  const Result<cluster::Cluster> machines = cluster::load_cluster("local:4");
  ASSERT_TRUE(machines.has_value());
  int aside = 0;
  for (const std::int64_t microbatches : {1, 2}) {
    const training::Recipe recipe{.microbatches = microbatches};
    Result<ir::Graph> forward =
        frontends::zoo_model("gpt:layers=2,hidden=32,heads=4,seq=16,batch=8,vocab=64");
    ASSERT_TRUE(forward.has_value());
    Result<ir::Graph> step = training::build_training_step(*forward, recipe);
    ASSERT_TRUE(step.has_value());
    for (const PlannerInfo& planner : planners_of_steps()) {
      SCOPED_TRACE(std::string(planner.name) + ", " + std::to_string(microbatches));
      const Result<PlanResult> found =
          planner.plan({.step = *step, .recipe = recipe, .cluster = *machines});
      ASSERT_TRUE(found.has_value());
      if (found->best.pipeline) {
        continue;  // stages have no collectives aside
      }
      const cost::CostModel cost(*machines, found->best.mesh);
      const Both both = lower_both(*step, found->best, cost);
      aside += check_windows(both.aside);
      EXPECT_EQ(count_collectives(both.in_line), count_collectives(both.aside));
      const auto before = sim::simulate(both.in_line, *step, cost, {.overlap = false});
      const auto after = sim::simulate(both.aside, *step, cost, {.overlap = false});
      EXPECT_LE(after.peak_bytes, before.peak_bytes);
      EXPECT_NEAR(after.step_seconds, before.step_seconds, 1e-9);
      const auto certificate = sim::certify(both.aside, *step, cost);
      ASSERT_TRUE(certificate.has_value()) << certificate.error().text();
      EXPECT_EQ(certificate->peak_bytes, after.peak_bytes);
    }
  }
  EXPECT_GT(aside, 100);
}

}  // namespace
}  // namespace shardplan::planners
