// Whole training steps: ranks as threads over Gloo against one device, under plans of planners and
// under random plans, which need every change of layout that lowering can make.

#include "shardplan/runtime/executor.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ranks.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"
#include "shardplan/planners/planner.h"
#include "shardplan/runtime/initial.h"
#include "shardplan/runtime/verify.h"
#include "shardplan/sim/rank_memory.h"
#include "shardplan/sim/sim.h"
#include "tests/convolutional_testing.h"
#include "tests/normalised_testing.h"

namespace shardplan::runtime {
namespace {

using sharding::ShardingSpec;

constexpr int kSteps = 2;

struct Found {
  Difference worst{};
  std::vector<double> losses{};
  std::vector<Bytes> peaks{};
  std::string error{};
};

/// Trains kSteps steps on as many threads as the plan has ranks, and compares with one device.
Found train(const ir::Graph& step, const plan::Plan& plan, const lower::Program& program) {
  Found found;
  found.peaks.resize(static_cast<std::size_t>(program.mesh.size()));
  const std::vector<std::int64_t> bounds = lookup_bounds(step);
  run_ranks(program.mesh.size(), [&](std::int64_t rank, GroupSource& groups) {
    auto executor = Executor::create({step, program, rank, 7, &groups, {}});
    auto verifier = Verifier::create(step, plan, rank, 7, {});
    if (!executor || !verifier) {
      found.error = executor ? verifier.error().text() : executor.error().text();
      return;
    }
    for (int i = 0; i < kSteps; ++i) {
      const InputSource inputs = [&](ir::ValueId input, std::int64_t microbatch) {
        return random_input(step, input, bounds[input.index()], 7, i, microbatch);
      };
      (*executor)->reset_peak();
      const Result<double> loss = (*executor)->run_step(inputs);
      if (!loss) {
        found.error = loss.error().text();
        return;
      }
      Bytes& peak = found.peaks[static_cast<std::size_t>(rank)];
      peak = std::max(peak, (*executor)->memory().peak());
      const Status compared = (*verifier)->compare_step(**executor, *loss, inputs);
      if (!compared) {
        found.error = compared.error().text();
      }
      if (rank == 0) {
        found.losses.push_back(*loss);
      }
    }
    if (rank == 0) {
      found.worst = (*verifier)->worst();
    }
  });
  return found;
}

ir::Graph step_of(const std::string& model, const training::Recipe& recipe) {
  Result<ir::Graph> forward = model == "convolutional" ? ir::parse(kConvolutional)
                              : model == "normalised"  ? ir::parse(kNormalised)
                                                       : frontends::zoo_model(model);
  EXPECT_TRUE(forward.has_value()) << forward.error().text();
  Result<ir::Graph> step = training::build_training_step(*forward, recipe);
  EXPECT_TRUE(step.has_value()) << step.error().text();
  return *std::move(step);
}

training::Recipe recipe_of(const std::string& optimizer,
                           training::Precision precision,
                           std::int64_t microbatches = 1,
                           double clip = 0) {
  return {.optimizer = training::parse_optimizer(optimizer).value(),
          .precision = precision,
          .clip_norm = clip,
          .microbatches = microbatches};
}

Result<lower::Program> lower_plan(const ir::Graph& step, const plan::Plan& plan) {
  return lower::lower(
      step,
      plan,
      [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
        return static_cast<double>(sharding::local_bytes(move.from, type, plan.mesh) +
                                   sharding::local_bytes(move.to, type, plan.mesh) + 1);
      },
      {.keep_gradients = true, .overlap = true});
}

/// Any possible strategy for every op, any layout for every input: nothing fits to anything, so
/// every value changes its layout on the way.
plan::Plan random_plan(const ir::Graph& step,
                       const training::Recipe& recipe,
                       const cluster::DeviceMesh& mesh,
                       unsigned seed) {
  std::mt19937 random(seed);
  plan::Plan plan;
  plan.recipe = recipe;
  plan.mesh = mesh;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ops::AxisMap map = ops::axis_map(step, ir::OpId(i));
    std::vector<sharding::Strategy> choices;
    for (const sharding::Strategy& s : sharding::enumerate_strategies(map, mesh)) {
      bool whole = true;
      for (std::size_t m = 0; m < mesh.axes.size(); ++m) {
        whole = whole && s.at(static_cast<int>(m)) >= sharding::Strategy::kNone;
      }
      if (whole && sharding::layouts(map, s, mesh)) {
        choices.push_back(s);
      }
    }
    plan.strategies.push_back(choices[random() % choices.size()]);
  }
  for (std::size_t i = 0; i < step.values().size(); ++i) {
    const ir::Value& value = step.values()[i];
    if (value.kind == ir::ValueKind::kOpResult || value.kind == ir::ValueKind::kConstant) {
      continue;
    }
    ShardingSpec spec;
    for (std::size_t m = 0; m < mesh.axes.size() && value.type.rank() > 0; ++m) {
      ShardingSpec cut = spec;
      cut.shard(static_cast<int>(random() % value.type.shape.size()), static_cast<int>(m));
      spec = sharding::fits(cut, value.type.shape, mesh) ? cut : spec;
    }
    plan.layouts[ir::ValueId(i)] = spec;
  }
  return plan;
}

void check_random_plans(const std::string& model,
                        const training::Recipe& recipe,
                        const cluster::DeviceMesh& mesh,
                        unsigned count) {
  SCOPED_TRACE(model + " on " + cluster::to_string(mesh));
  const ir::Graph step = step_of(model, recipe);
  for (unsigned seed = 0; seed < count; ++seed) {
    const plan::Plan plan = random_plan(step, recipe, mesh, seed);
    const Result<lower::Program> program = lower_plan(step, plan);
    ASSERT_TRUE(program.has_value()) << program.error().text();
    const Found found = train(step, plan, *program);
    EXPECT_EQ(found.error, "");
    EXPECT_LT(found.worst.relative, 1e-9) << "seed " << seed << ": " << found.worst.where;
  }
}

TEST(Executor, RandomPlansEqualOneDevice) {
  const auto fp64 = training::Precision::kFloat64;
  check_random_plans(
      "mlp:layers=2,hidden=12,batch=12", recipe_of("adamw", fp64), {{{"a", 2}, {"b", 2}}}, 5);
  check_random_plans("mlp:layers=2,hidden=12,batch=12",
                     recipe_of("sgd:momentum=0.9", fp64, 2, 0.5),
                     {{{"a", 3}}},
                     4);
  check_random_plans("gpt:layers=1,hidden=8,heads=4,seq=8,batch=4,vocab=24,dropout=0.2",
                     recipe_of("adamw", fp64, 2),
                     {{{"a", 2}, {"b", 2}}},
                     4);
  check_random_plans("llama:layers=1,hidden=16,heads=4,kv_heads=2,ffn=24,seq=8,batch=4,vocab=24",
                     recipe_of("adam", fp64, 1, 1.0),
                     {{{"a", 2}, {"b", 2}}},
                     4);
}

TEST(Executor, RandomPlansWithUnevenPartsEqualOneDevice) {
  const auto fp64 = training::Precision::kFloat64;
  check_random_plans("mlp:layers=2,hidden=9,input=7,classes=11,batch=6",
                     recipe_of("adamw", fp64),
                     {{{"a", 4}}},
                     5);
  check_random_plans("mlp:layers=2,hidden=10,input=5,classes=7,batch=6",
                     recipe_of("sgd:momentum=0.9", fp64, 2, 0.5),
                     {{{"a", 2}, {"b", 2}}},
                     4);
  check_random_plans("gpt:layers=1,hidden=9,heads=3,seq=7,batch=6,vocab=23,dropout=0.2",
                     recipe_of("adamw", fp64, 2),
                     {{{"a", 2}, {"b", 2}}},
                     4);
  check_random_plans("llama:layers=1,hidden=12,heads=6,kv_heads=3,ffn=10,seq=5,batch=3,vocab=23",
                     recipe_of("adam", fp64, 1, 1.0),
                     {{{"a", 4}}},
                     4);
}

/// The first planner's plan, which cuts unevenly, against one device.
void check_uneven_plan(const std::string& model, std::string_view planner) {
  SCOPED_TRACE(model);
  const training::Recipe recipe = recipe_of("adamw", training::Precision::kFloat64);
  const Result<cluster::Cluster> machines = cluster::load_cluster("local:4");
  ASSERT_TRUE(machines.has_value());
  const ir::Graph step = step_of(model, recipe);
  const auto made = planners::find_planner(planner).value()->plan(
      {.step = step, .recipe = recipe, .cluster = *machines});
  ASSERT_TRUE(made.has_value()) << made.error().text();
  const Result<lower::Program> program = lower_plan(step, made->best);
  ASSERT_TRUE(program.has_value()) << program.error().text();
  bool uneven = false;
  for (const lower::LocalValue& value : program->values) {
    const ir::Shape& whole = step.type(value.global).shape;
    uneven =
        uneven || value.type.shape != sharding::part_shape(value.spec, whole, made->best.mesh, 3);
  }
  EXPECT_TRUE(uneven);
  const Found found = train(step, made->best, *program);
  EXPECT_EQ(found.error, "");
  EXPECT_LT(found.worst.relative, 1e-9) << found.worst.where;
  const sim::Simulation predicted =
      sim::simulate(*program, step, cost::CostModel(*machines, made->best.mesh), {});
  constexpr double kChunks = 64 << 10;
  EXPECT_NEAR(static_cast<double>(found.peaks[0]),
              static_cast<double>(predicted.peak_bytes),
              0.01 * static_cast<double>(predicted.peak_bytes) + kChunks);
  EXPECT_LE(*std::max_element(found.peaks.begin(), found.peaks.end()), found.peaks[0]);
  const std::vector<Bytes> peaks = sim::rank_peaks(*program, step);
  EXPECT_EQ(peaks[0], predicted.peak_bytes);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    EXPECT_NEAR(static_cast<double>(found.peaks[rank]) / static_cast<double>(peaks[rank]), 1, 0.01)
        << "rank " << rank;
  }
}

TEST(Executor, ABatchAndAVocabularyThatDoNotDivideEqualOneDevice) {
  check_uneven_plan("mlp:layers=3,hidden=64,input=32,classes=1003,batch=6", "dp");
  check_uneven_plan("mlp:layers=3,hidden=64,input=32,classes=1003,batch=6", "zero3");
  check_uneven_plan("mlp:layers=3,hidden=64,input=32,classes=1003,batch=8", "megatron");
  check_uneven_plan("gpt:layers=1,hidden=32,heads=4,seq=8,batch=8,vocab=1003", "megatron");
  check_uneven_plan("gpt:layers=1,hidden=32,heads=4,seq=8,batch=6,vocab=1003", "map");
}

TEST(Executor, WindowsOverPartsOfSpaceEqualOneDevice) {
  const auto fp64 = training::Precision::kFloat64;
  check_random_plans("convolutional", recipe_of("adamw", fp64), {{{"a", 2}, {"b", 2}}}, 12);
  check_random_plans("convolutional", recipe_of("adamw", fp64), {{{"a", 4}}}, 6);
  check_random_plans("convolutional", recipe_of("adamw", fp64, 2), {{{"a", 3}}}, 6);
  check_uneven_plan("convolutional", "spatial");
}

// Statistics of each microbatch, of all ranks together; running statistics are compared, too.
TEST(Executor, BatchNormalisationOfMicrobatchesEqualsOneDevice) {
  const auto fp64 = training::Precision::kFloat64;
  check_random_plans("normalised", recipe_of("sgd:lr=0.1", fp64, 4), {{{"a", 2}, {"b", 2}}}, 4);
  check_random_plans("normalised", recipe_of("sgd:lr=0.1", fp64, 2), {{{"a", 3}}}, 3);
}

TEST(Executor, PlannersPlansEqualOneDeviceWithinPredictedMemory) {
  const training::Recipe recipe = recipe_of("adamw", training::Precision::kFloat64);
  const Result<cluster::Cluster> machines = cluster::load_cluster("local:4");
  ASSERT_TRUE(machines.has_value());
  for (const char* const model :
       {"gpt:layers=2,hidden=32,heads=4,seq=16,batch=8,vocab=64",
        "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq=16,batch=8,vocab=64"}) {
    const ir::Graph step = step_of(model, recipe);
    for (const planners::PlannerInfo& planner : planners::registry()) {
      SCOPED_TRACE(std::string(planner.name) + " on " + model);
      const Result<planners::PlanResult> made =
          planner.plan({.step = step, .recipe = recipe, .cluster = *machines});
      ASSERT_TRUE(made.has_value()) << made.error().text();
      if (made->best.pipeline || made->status == planners::SearchStatus::kNoPlanFound) {
        continue;  // pipeline_test.cc
      }
      const Result<lower::Program> program = lower_plan(step, made->best);
      ASSERT_TRUE(program.has_value()) << program.error().text();
      const Found found = train(step, made->best, *program);
      EXPECT_EQ(found.error, "");
      EXPECT_LT(found.worst.relative, 1e-9) << found.worst.where;
      const sim::Simulation predicted =
          sim::simulate(*program, step, cost::CostModel(*machines, made->best.mesh), {});
      // Kernels that work in chunks keep up to 64 Ki elements, which counts in tensors this small.
      constexpr double kChunks = 64 << 10;
      for (const Bytes peak : found.peaks) {
        EXPECT_NEAR(static_cast<double>(peak),
                    static_cast<double>(predicted.peak_bytes),
                    0.05 * static_cast<double>(predicted.peak_bytes) + kChunks)
            << step.op(predicted.peak.op).name;
      }
    }
  }
}

void check_recomputation(const std::string& model) {
  const training::Recipe recipe = recipe_of("adamw", training::Precision::kFloat64, 2);
  const ir::Graph step = step_of(model, recipe);
  plan::Plan plan = one_device_plan(step, {});
  std::vector<double> losses;
  Bytes kept = 0;
  for (const plan::Recompute how :
       {plan::Recompute::kNone, plan::Recompute::kSelective, plan::Recompute::kWhole}) {
    const bool recompute = how != plan::Recompute::kNone;
    plan.recompute.clear();
    if (recompute) {
      for (const ir::Op& op : step.ops()) {
        const std::string block(plan::block_of(op.layer));
        if (!block.empty() && (plan.recompute.empty() || plan.recompute.back().block != block)) {
          plan.recompute.push_back({std::string(block), how});
        }
      }
      ASSERT_FALSE(plan.recompute.empty());
    }
    const Result<lower::Program> program = lower_plan(step, plan);
    ASSERT_TRUE(program.has_value()) << program.error().text();
    const Found found = train(step, plan, *program);
    EXPECT_EQ(found.error, "");
    EXPECT_EQ(found.worst.relative, 0) << found.worst.where;
    losses.push_back(found.losses.back());
    if (recompute) {
      EXPECT_LT(found.peaks[0], kept);
    }
    kept = found.peaks[0];
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(Executor, RecomputationAndMicrobatchesChangeNothing) {
  check_recomputation("gpt:layers=2,hidden=16,heads=2,seq=8,batch=4,vocab=32,dropout=0.1");
}

// A microbatch's statistics are computed twice, and move the running ones once.
TEST(Executor, RecomputationMovesRunningStatisticsOnce) {
  check_recomputation("normalised");
}

/// PyTorch's binary cross-entropy refuses targets that are no probabilities.
TEST(Executor, TargetsOfBinaryCrossEntropyAreProbabilities) {
  ir::Graph graph;
  ir::Op op;
  op.name = "binary_cross_entropy";
  for (const char* const name : {"x", "target"}) {
    ir::Value value;
    value.name = name;
    value.kind = ir::ValueKind::kInput;
    value.type = {ir::DType::kFloat32, {64}};
    op.inputs.push_back(graph.add_value(std::move(value)));
  }
  ASSERT_TRUE(ops::append(graph, std::move(op)).has_value());
  const std::vector<std::int64_t> bounds = lookup_bounds(graph);
  EXPECT_EQ(bounds[0], 0);
  ASSERT_EQ(bounds[1], 1);
  const at::Tensor drawn = random_input(graph, ir::ValueId(1), bounds[1], 0, 0, 0);
  EXPECT_GE(drawn.min().item<float>(), 0);
  EXPECT_LE(drawn.max().item<float>(), 1);
  EXPECT_GT(drawn.max().item<float>(), drawn.min().item<float>());
}

TEST(Executor, LabelsAndIdsStayWithinTheirTables) {
  const ir::Graph step = step_of("gpt:layers=1,hidden=8,heads=2,seq=8,batch=4,vocab=24",
                                 recipe_of("sgd", training::Precision::kFloat32));
  const std::vector<std::int64_t> bounds = lookup_bounds(step);
  int integers = 0;
  for (std::size_t i = 0; i < step.values().size(); ++i) {
    const ir::Value& value = step.values()[i];
    if (value.kind == ir::ValueKind::kInput && !ir::is_floating(value.type.dtype)) {
      ++integers;
      EXPECT_EQ(bounds[i], 24) << value.name;
      EXPECT_LT(random_input(step, ir::ValueId(i), bounds[i], 0, 0, 0).max().item<std::int64_t>(),
                24);
    }
  }
  EXPECT_GT(integers, 0);
}

}  // namespace
}  // namespace shardplan::runtime
