#include "shardplan/sim/certificate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "shardplan/frontends/frontends.h"
#include "shardplan/plan/labels.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

constexpr const char* kMlp = "mlp:layers=3,hidden=16,batch=8";
constexpr const char* kGpt = "gpt:layers=2,hidden=16,heads=4,seq=8,batch=8,vocab=32,dropout=0.1";
constexpr const char* kLlama = "llama:layers=2,hidden=16,ffn=32,heads=4,kv_heads=2,seq=8,batch=8";

ir::Graph step_of(const std::string& model, const training::Recipe& recipe) {
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, recipe);
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

bool takes_partial_sums(const sharding::Strategy& strategy) {
  return std::any_of(strategy.axis.begin(), strategy.axis.end(), [](std::int8_t choice) {
    return choice <= sharding::Strategy::kPartialBase;
  });
}

/// Layouts, blocks and strategies by chance. Of the strategies that take partial sums those that
/// fit what is chosen already.
plan::Plan random_plan(const ir::Graph& step,
                       const training::Recipe& recipe,
                       std::mt19937& random) {
  plan::Plan plan;
  plan.graph_hash = ir::structural_hash(step);
  plan.recipe = recipe;
  plan.cluster = *cluster::load_cluster("8xA100-80GB");
  plan.mesh.axes = {{"m0", 4}, {"m1", 2}};
  plan.strategies.resize(step.ops().size());
  for (std::size_t v = 0; v < step.values().size(); ++v) {
    const ir::Value& value = step.values()[v];
    if (!plan::has_layout(value) || value.type.rank() == 0 || random() % 2 == 0) {
      continue;
    }
    sharding::ShardingSpec spec;
    spec.shard(0, static_cast<int>(random() % 2));
    if (sharding::fits(spec, value.type.shape, plan.mesh)) {
      plan.layouts[ir::ValueId(v)] = spec;
    }
  }
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const auto choices =
        sharding::enumerate_strategies(ops::axis_map(step, ir::OpId(i)), plan.mesh);
    do {
      plan.strategies[i] = choices[random() % choices.size()];
    } while (takes_partial_sums(plan.strategies[i]) && !plan::check(plan, step));
  }
  for (const std::string& block : plan::blocks_of(step)) {
    const auto how = static_cast<plan::Recompute>(random() % 3);
    if (how != plan::Recompute::kNone) {
      plan.recompute.push_back({block, how});
    }
  }
  return plan;
}

lower::Program lowered(const ir::Graph& step, const plan::Plan& plan, const cost::CostModel& cost) {
  auto program = lower::lower(
      step, plan, [&](const sharding::ReshardStep& change, const ir::TensorType& type) {
        return cost.reshard_step(change, type);
      });
  EXPECT_TRUE(program) << program.error().text();
  return std::move(*program);
}

TEST(CertificateProperty, EqualsTheSimulatorOnRandomPlans) {
  std::mt19937 random(2302);
  for (const char* model : {kMlp, kGpt, kLlama}) {
    for (const std::int64_t microbatches : {1, 2, 4}) {
      training::Recipe recipe;
      recipe.microbatches = microbatches;
      const ir::Graph step = step_of(model, recipe);
      for (int round = 0; round < 10; ++round) {
        const plan::Plan plan = random_plan(step, recipe, random);
        const cost::CostModel cost(plan.cluster, plan.mesh);
        const lower::Program program = lowered(step, plan, cost);
        const auto certificate = certify(program, step, cost);
        ASSERT_TRUE(certificate) << certificate.error().text();
        const Simulation s = simulate(program, step, cost);
        EXPECT_EQ(certificate->peak_bytes, s.peak_bytes) << model << " round " << round;
        EXPECT_NEAR(certificate->additive_seconds, s.additive_seconds, 1e-9 * s.additive_seconds);
        EXPECT_NEAR(certificate->kernel_seconds, s.compute_seconds, 1e-9 * s.additive_seconds);
        const auto& section = certificate->peak_in_update ? program.update : program.microbatch;
        EXPECT_EQ(section[certificate->peak_step].op, s.peak.op);
      }
    }
  }
}

// A result that a buffer keeps, and that the rest of the step reads.
TEST(CertificateProperty, WhatIsWrittenMayStillBeRead) {
  std::mt19937 random(7);
  int read_later = 0;
  for (const std::int64_t microbatches : {1, 4}) {
    training::Recipe recipe;
    recipe.microbatches = microbatches;
    ir::Graph step = step_of(kMlp, recipe);
    const ir::ValueId made = step.ops().front().outputs.front();
    ir::Value buffer = step.value(made);
    buffer.kind = ir::ValueKind::kBuffer;
    buffer.name = "running";
    buffer.producer = {};
    step.writes.push_back({step.add_value(buffer), made});
    for (int round = 0; round < 20; ++round) {
      const plan::Plan plan = random_plan(step, recipe, random);
      const cost::CostModel cost(plan.cluster, plan.mesh);
      const lower::Program program = lowered(step, plan, cost);
      const auto certificate = certify(program, step, cost);
      ASSERT_TRUE(certificate) << certificate.error().text();
      EXPECT_EQ(certificate->peak_bytes, simulate(program, step, cost).peak_bytes);
      std::size_t written = 0;
      for (const lower::Step& s : program.microbatch) {
        written = s.kind == lower::StepKind::kWrite ? program.root(s.inputs[0]).index() : written;
        read_later += s.kind != lower::StepKind::kWrite && written > 0 &&
                              std::any_of(s.inputs.begin(),
                                          s.inputs.end(),
                                          [&](lower::LocalId id) {
                                            return program.root(id).index() == written;
                                          })
                          ? 1
                          : 0;
      }
    }
  }
  EXPECT_GT(read_later, 0);
}

/// A program and what it is of.
struct Lowered {
  ir::Graph step{};
  plan::Plan plan{};
  lower::Program program{};
};

Lowered whole_mlp() {
  Lowered out;
  out.step = step_of(kMlp, {});
  std::mt19937 random(1);
  out.plan = random_plan(out.step, {}, random);
  out.program = lowered(out.step, out.plan, {out.plan.cluster, out.plan.mesh});
  return out;
}

std::vector<lower::Step>::iterator first_free(lower::Program& program) {
  return std::find_if(program.microbatch.begin(), program.microbatch.end(), [](const auto& step) {
    return step.kind == lower::StepKind::kFree;
  });
}

TEST(Certificate, FindsStorageThatIsNeverFreed) {
  Lowered mlp = whole_mlp();
  mlp.program.microbatch.erase(first_free(mlp.program));
  const auto certificate = certify(mlp.program, mlp.step, {mlp.plan.cluster, mlp.plan.mesh});
  ASSERT_FALSE(certificate);
  EXPECT_NE(certificate.error().text().find("is never freed"), std::string::npos);
}

TEST(Certificate, FindsUsesOfWhatIsNotThere) {
  Lowered mlp = whole_mlp();
  const auto free = first_free(mlp.program);
  mlp.program.microbatch.insert(free, *free);
  const auto certificate = certify(mlp.program, mlp.step, {mlp.plan.cluster, mlp.plan.mesh});
  ASSERT_FALSE(certificate);
  EXPECT_NE(certificate.error().text().find("used where it is not there"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::sim
