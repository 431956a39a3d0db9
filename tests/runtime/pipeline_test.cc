// Pipelines of ranks that are threads of this process, against one device.

#include "shardplan/runtime/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ranks.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/planners/pipeline/stage_plans.h"
#include "shardplan/planners/planner.h"
#include "shardplan/runtime/initial.h"
#include "shardplan/runtime/verify.h"
#include "shardplan/sim/pipeline.h"
#include "tests/convolutional_testing.h"
#include "tests/normalised_testing.h"
#include "tests/viewed_testing.h"

namespace shardplan::runtime {
namespace {

struct Case {
  std::string model;
  std::string schedule = "1f1b";
  int groups = 2;
  int ranks = 2;
  std::int64_t microbatches = 2;
  double clip_norm = 0;
  std::string inside = "dp";
  int chunks = 1;
  int pipelines = 1;
  int forward_group = 1;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.model.substr(0, c.model.find(':')) + "_" + c.schedule + "_" +
                     std::to_string(c.groups) + "stages_" + std::to_string(c.ranks) + "ranks_" +
                     std::to_string(c.microbatches) + "microbatches_" + c.inside +
                     (c.clip_norm > 0 ? "_clipped" : "") + "_" + std::to_string(info.index);
  std::replace_if(
      name.begin(), name.end(), [](char ch) { return std::isalnum(ch) == 0; }, '_');
  return name;
}

std::vector<plan::Plan> stages_of(const plan::Plan& plan) {
  return plan.pipeline ? plan.pipeline->stages : std::vector<plan::Plan>();
}

/// A model cut into stages, planned and lowered.
struct Made {
  ir::Graph step{};
  cluster::Cluster cluster{};
  plan::Plan plan{};
  lower::PipelineProgram program{};
};

/// The groups that a rank asks for.
class RecordedGroups final : public GroupSource {
 public:
  explicit RecordedGroups(GroupSource& groups) : groups_(groups) {}
  Result<std::shared_ptr<Group>> group(const Ranks& ranks, const std::string& purpose) override {
    asked.push_back({ranks, purpose});
    return groups_.group(ranks, purpose);
  }
  std::vector<NeededGroup> asked{};

 private:
  GroupSource& groups_;
};

/// `steps`: without a flush, of an asynchronous schedule.
Result<Made> make(const Case& c, std::int64_t steps, bool keep_gradients) {
  Made made;
  training::Recipe recipe;
  recipe.precision = training::Precision::kFloat64;
  recipe.microbatches = c.microbatches;
  recipe.clip_norm = c.clip_norm;
  if (c.model == "normalised") {  // Adam divides gradients by their own size
    recipe.optimizer = training::default_optimizer(training::OptimizerKind::kSgd);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward,
                             c.model == "normalised"      ? ir::parse(kNormalised)
                             : c.model == "viewed"        ? ir::parse(kViewed)
                             : c.model == "convolutional" ? ir::parse(kConvolutional)
                                                          : frontends::zoo_model(c.model));
  SHARDPLAN_ASSIGN_OR_RETURN(made.step, training::build_training_step(forward, recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(made.cluster,
                             cluster::load_cluster("local:" + std::to_string(c.ranks)));
  planners::PlanRequest request{.step = made.step};
  request.recipe = recipe;
  request.cluster = made.cluster;
  const int stages = c.groups * c.chunks;
  const auto parts = planners::segments(
      made.step, cost::CostModel(made.cluster, {}), static_cast<std::size_t>(stages));
  const planners::StageCut cut{
      c.schedule,
      c.schedule.starts_with("zb_"),
      c.groups,
      planners::stages_of_segments(made.step, parts, planners::balanced_starts(parts, stages)),
      steps,
      c.pipelines,
      c.forward_group};
  SHARDPLAN_ASSIGN_OR_RETURN(const planners::PlannerInfo* const inside,
                             planners::find_planner(c.inside));
  planners::StagePlans stage_plans(request, *inside);
  SHARDPLAN_ASSIGN_OR_RETURN(planners::Candidate planned, stage_plans.plan(cut));
  made.plan = std::move(planned.plan);
  SHARDPLAN_ASSIGN_OR_RETURN(made.program,
                             lower::lower_pipeline(made.step,
                                                   made.plan,
                                                   [](const plan::Plan&) {
                                                     return
                                                         [](const sharding::ReshardStep&,
                                                            const ir::TensorType&) { return 1.0; };
                                                   },
                                                   {.keep_gradients = keep_gradients}));
  return made;
}

class Pipelines : public testing::TestWithParam<Case> {};

// Losses, gradients and weights of three steps, and the peak of every rank to the byte.
TEST_P(Pipelines, EqualOneDevice) {
  const Case& c = GetParam();
  const Result<Made> made = make(c, 1, /*keep_gradients=*/true);
  ASSERT_TRUE(made.has_value()) << made.error().text();
  const auto& [step, cluster, plan, program] = *made;
  const std::vector<std::int64_t> bounds = lookup_bounds(step);
  Difference worst;
  std::vector<Bytes> peaks(static_cast<std::size_t>(c.ranks), 0);
  run_ranks(c.ranks, [&](std::int64_t rank, GroupSource& sources) {
    RecordedGroups groups(sources);
    const auto run = PipelineTrainer::create({program, rank, 1, &groups, {}});
    ASSERT_TRUE(run.has_value()) << run.error().text();
    std::vector<NeededGroup> needed = needed_groups(program);
    std::erase_if(needed, [&](const NeededGroup& group) {
      return std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end();
    });
    EXPECT_EQ(groups.asked, needed);
    const auto verifier = Verifier::create(step, plan, rank, 1, {}).value();
    for (int i = 0; i < 3; ++i) {
      const InputSource inputs = [&](ir::ValueId input, std::int64_t microbatch) {
        return random_input(step, input, bounds[input.index()], 1, i, microbatch);
      };
      (*run)->reset_peak();
      const Result<double> loss = (*run)->run_step(inputs);
      ASSERT_TRUE(loss.has_value()) << loss.error().text();
      Bytes& peak = peaks[static_cast<std::size_t>(rank)];
      peak = std::max(peak, (*run)->memory().peak());
      ASSERT_TRUE(verifier->compare_step(**run, *loss, inputs).has_value());
    }
    if (rank == 0) {
      worst = verifier->worst();
    }
  });
  EXPECT_LT(worst.relative, tolerance(step)) << worst.where;
  EXPECT_FALSE(worst.where.empty());
  const auto simulated =
      sim::simulate_pipeline(program, cluster, stages_of(plan), {.overlap = false});
  ASSERT_TRUE(simulated.has_value());
  // A rank with smaller parts has less.
  std::vector<Bytes> largest(simulated->peak_bytes.size(), 0);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    const int group = program.device_of_rank(static_cast<std::int64_t>(rank));
    Bytes& of_group = largest[static_cast<std::size_t>(group)];
    of_group = std::max(of_group, peaks[rank]);
  }
  EXPECT_EQ(largest, simulated->peak_bytes);
}

/// Losses and weights of a program on one device whose passes see the weights that the schedule
/// says, by stage: each batch's gradient is taken at those, and applied to the newest.
struct Delayed {
  std::vector<double> losses{};
  std::map<ir::ValueId, at::Tensor> weights{};
};

Delayed train_delayed(const ir::Graph& step,
                      const plan::Plan& plan,
                      const lower::PipelineProgram& program,
                      std::int64_t runs,
                      const std::function<at::Tensor(ir::ValueId, std::int64_t)>& input) {
  const plan::Plan alone = one_device_plan(step, plan);
  const lower::Program whole =
      lower::lower(step, alone, [](const sharding::ReshardStep&, const ir::TensorType&) {
        return 1.0;
      }).value();
  const auto device = Executor::create({step, whole, 0, 1, nullptr, {}}).value();
  std::map<ir::ValueId, int> stage_of;
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    for (std::size_t v = 0; v < program.stages[s].graph.values().size(); ++v) {
      if (program.stages[s].graph.values()[v].kind == ir::ValueKind::kParameter) {
        stage_of[program.stages[s].value_of[v]] = static_cast<int>(s);
      }
    }
  }
  const auto version_of = [&](int stage, std::int64_t microbatch) {
    for (const std::vector<lower::Task>& tasks : program.schedule.tasks) {
      for (const lower::Task& task : tasks) {
        if (task.work == lower::Work::kForward && task.stage == stage &&
            task.microbatch == microbatch) {
          return task.weight_version;
        }
      }
    }
    return std::int64_t{-1};
  };
  Delayed out;
  std::vector<std::map<ir::ValueId, at::Tensor>> history;
  const auto remember = [&] {
    for (const auto& [weight, stage] : stage_of) {
      history.back()[weight] = device->resident(weight).tensor.clone();
    }
  };
  const std::int64_t batches = program.schedule.microbatches / step.microbatches;
  for (std::int64_t run = 0; run < runs; ++run) {
    history.assign(1, {});
    remember();
    double sum = 0;
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      const std::int64_t first = batch * step.microbatches;
      for (const auto& [weight, stage] : stage_of) {
        device->set_resident(
            weight, history[static_cast<std::size_t>(version_of(stage, first))].at(weight));
      }
      const double loss =
          device
              ->run_microbatches([&](ir::ValueId value, std::int64_t microbatch) {
                return input(value, run * program.schedule.microbatches + first + microbatch);
              })
              .value();
      for (const auto& [weight, stage] : stage_of) {
        device->set_resident(weight, history.back().at(weight));
      }
      EXPECT_TRUE(device->run_update().has_value());
      history.emplace_back();
      remember();
      sum += loss;
    }
    out.losses.push_back(sum / static_cast<double>(batches));
  }
  out.weights = history.back();
  return out;
}

class Asynchronous : public testing::TestWithParam<Case> {};

// Nothing is flushed: passes see stale weights, exactly as stale as the schedule says.
TEST_P(Asynchronous, EqualsASequentialProgramWithItsDelays) {
  const Case& c = GetParam();
  constexpr std::int64_t kSteps = 7;
  constexpr std::int64_t kRuns = 2;
  const Result<Made> made = make(c, kSteps, /*keep_gradients=*/false);
  ASSERT_TRUE(made.has_value()) << made.error().text();
  const auto& [step, cluster, plan, program] = *made;
  const std::vector<std::int64_t> bounds = lookup_bounds(step);
  const auto input = [&](ir::ValueId value, std::int64_t number) {
    return random_input(step, value, bounds[value.index()], 1, number, 0);
  };
  const Delayed truth = train_delayed(step, plan, program, kRuns, input);
  std::vector<Bytes> largest(static_cast<std::size_t>(c.groups), 0);
  std::mutex mutex;
  run_ranks(c.ranks, [&](std::int64_t rank, GroupSource& groups) {
    const auto run = PipelineTrainer::create({program, rank, 1, &groups, {}});
    ASSERT_TRUE(run.has_value()) << run.error().text();
    ASSERT_EQ((*run)->steps_a_run(), kSteps);
    for (std::int64_t r = 0; r < kRuns; ++r) {
      (*run)->reset_peak();
      const Result<double> loss = (*run)->run_step([&](ir::ValueId value, std::int64_t microbatch) {
        return input(value, r * program.schedule.microbatches + microbatch);
      });
      ASSERT_TRUE(loss.has_value()) << loss.error().text();
      EXPECT_NEAR(*loss, truth.losses[static_cast<std::size_t>(r)], 1e-9);
    }
    const std::lock_guard lock(mutex);
    Bytes& peak = largest[static_cast<std::size_t>(program.device_of_rank(rank))];
    peak = std::max(peak, (*run)->memory().peak());
    for (const LocatedPart& weight : (*run)->residents()) {
      if (step.value(weight.value).kind != ir::ValueKind::kParameter) {
        continue;
      }
      if (weight.part.tensor.defined() && weight.part.spec.fully_replicated()) {
        const at::Tensor& expected = truth.weights.at(weight.value);
        EXPECT_LT(weight.part.tensor.sub(expected).abs().max().item<double>(), 1e-9)
            << step.value(weight.value).name;
      }
    }
  });
  const auto simulated =
      sim::simulate_pipeline(program, cluster, stages_of(plan), {.overlap = false});
  ASSERT_TRUE(simulated.has_value());
  // Scalars that the step before has left are still there when a pass in flight is taken up again.
  constexpr double kScalars = 64;
  for (std::size_t group = 0; group < largest.size(); ++group) {
    EXPECT_NEAR(static_cast<double>(largest[group]),
                static_cast<double>(simulated->peak_bytes[group]),
                kScalars);
  }
}

/// `run --verify` without a flush: equal to one device that is as stale, and not to one that is
/// not.
TEST_P(Asynchronous, VerifiersKnowTheDelays) {
  const Case& c = GetParam();
  constexpr std::int64_t kSteps = 6;
  const Result<Made> made = make(c, kSteps, /*keep_gradients=*/false);
  ASSERT_TRUE(made.has_value()) << made.error().text();
  const auto& [step, cluster, plan, program] = *made;
  const std::vector<std::int64_t> bounds = lookup_bounds(step);
  for (const bool delayed : {true, false}) {
    Difference worst;
    run_ranks(c.ranks, [&](std::int64_t rank, GroupSource& groups) {
      lower::PipelineProgram other = program;
      for (std::vector<lower::Task>& tasks : other.schedule.tasks) {
        for (lower::Task& task : tasks) {
          task.weight_version = task.microbatch / step.microbatches;  // never stale
        }
      }
      const auto run = PipelineTrainer::create({program, rank, 1, &groups, {}}).value();
      const auto verifier =
          Verifier::create(step, plan, rank, 1, {}, delayed ? &program : &other).value();
      for (std::int64_t i = 0; i < 2; ++i) {
        const InputSource inputs = [&](ir::ValueId value, std::int64_t microbatch) {
          return random_input(
              step, value, bounds[value.index()], 1, i * kSteps * c.microbatches + microbatch, 0);
        };
        const Result<double> loss = run->run_step(inputs);
        ASSERT_TRUE(loss.has_value()) << loss.error().text();
        ASSERT_TRUE(verifier->compare_step(*run, *loss, inputs).has_value());
      }
      if (rank == 0) {
        worst = verifier->worst();
        EXPECT_EQ(verifier->reference_losses().size(), 2U);
      }
    });
    if (delayed) {
      EXPECT_LT(worst.relative, tolerance(step)) << worst.where;
    } else {
      EXPECT_GT(worst.relative, 1e3 * tolerance(step));
    }
  }
}

constexpr const char* kMlp = "mlp:layers=4,hidden=16,batch=24";
constexpr const char* kLlama =
    "llama:layers=3,hidden=16,heads=2,kv_heads=1,ffn=32,seq=8,batch=8,vocab=32";
constexpr const char* kGpt = "gpt:layers=3,hidden=16,heads=2,seq=8,batch=24,vocab=64";

INSTANTIATE_TEST_SUITE_P(All,
                         Pipelines,
                         testing::Values(Case{kMlp},
                                         Case{kMlp, "gpipe", 2, 2, 4},
                                         Case{kMlp, "1f1b", 3, 3, 4, 1.0},
                                         Case{kGpt, "1f1b", 2, 2, 1},
                                         Case{kGpt, "1f1b", 2, 2, 4},
                                         Case{kGpt, "gpipe", 2, 4, 2, 1.0},
                                         Case{kGpt, "1f1b", 2, 4, 4, 1.0, "megatron"},
                                         Case{kGpt, "1f1b", 4, 4, 8},
                                         Case{kGpt, "interleaved_1f1b", 2, 2, 4, 0, "dp", 2},
                                         Case{kGpt, "breadth_first", 2, 4, 4, 1.0, "dp", 2},
                                         Case{kGpt, "dapple", 3, 3, 6},
                                         Case{kGpt, "zb_h1", 3, 3, 6, 1.0},
                                         Case{kGpt, "zb_h2", 2, 4, 4, 0, "zero3"},
                                         Case{kMlp, "zb_v", 2, 2, 4, 0, "dp", 2},
                                         Case{kGpt, "zb_v", 2, 4, 4, 1.0, "megatron", 2},
                                         Case{kMlp, "chimera", 2, 2, 2, 0, "dp", 1, 2},
                                         Case{kMlp, "chimera", 4, 4, 8, 1.0, "dp", 1, 2},
                                         Case{kGpt, "chimera", 2, 2, 2, 0, "dp", 1, 2},
                                         Case{kGpt, "chimera", 2, 4, 4, 1.0, "dp", 1, 2},
                                         Case{kGpt, "chimera", 2, 4, 3, 1.0, "megatron", 1, 2},
                                         Case{kGpt, "chimera", 4, 4, 4, 1.0, "dp", 1, 2},
                                         Case{kGpt, "chimera", 4, 4, 8, 0, "dp", 1, 4},
                                         Case{"convolutional", "gpipe", 2, 2, 2},
                                         Case{"viewed", "gpipe", 2, 2, 4},
                                         Case{"viewed", "1f1b", 2, 4, 4},
                                         Case{"viewed", "zb_v", 2, 2, 4, 0, "dp", 2},
                                         Case{kGpt, "chimera", 4, 4, 12, 0, "dp", 1, 2, 2},
                                         Case{kMlp, "chimera", 2, 4, 6, 1.0, "dp", 1, 2, 2},
                                         Case{"normalised", "gpipe", 2, 2, 4},
                                         Case{"normalised", "1f1b", 4, 4, 4},
                                         Case{"normalised", "1f1b", 2, 4, 2},
                                         Case{"normalised", "zb_v", 2, 2, 4, 0, "dp", 2}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(All,
                         Asynchronous,
                         testing::Values(Case{kMlp, "pipedream", 2, 2, 1},
                                         Case{kMlp, "pipedream", 4, 4, 1},
                                         Case{kMlp, "pipedream", 2, 4, 1},
                                         Case{kMlp, "pipedream_2bw", 2, 2, 2},
                                         Case{kMlp, "pipedream_2bw", 3, 3, 4},
                                         Case{"viewed", "pipedream", 4, 4, 1},
                                         Case{"viewed", "pipedream_2bw", 2, 2, 4},
                                         Case{kLlama, "pipedream", 3, 3, 1},
                                         Case{kLlama, "pipedream_2bw", 2, 4, 4}),
                         name_of);

}  // namespace
}  // namespace shardplan::runtime
