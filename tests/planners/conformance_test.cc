// What every planner of the registry must do, on every model of the zoo in small.
#include <gtest/gtest.h>

#include "shardplan/planners/evaluate.h"
#include "shardplan/planners/planner.h"
#include "tests/planners/planners_testing.h"

namespace shardplan::planners {
namespace {

struct Case {
  std::string planner;
  std::string model;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const PlannerInfo& planner : planners_of_steps()) {
    for (const char* model :
         {"mlp:layers=3,hidden=64,batch=16",
          "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96",
          "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32,batch=8,vocab=96"}) {
      out.push_back({std::string(planner.name), model});
    }
  }
  return out;
}

PlanResult plan_with(const std::string& planner, const PlanRequest& request) {
  const auto info = find_planner(planner);
  EXPECT_TRUE(info);
  auto result = (*info)->plan(request);
  EXPECT_TRUE(result) << result.error().text();
  return std::move(*result);
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, PlanIsValidAndItsPredictionIsTheSimulators) {
  const ir::Graph step = step_of(GetParam().model);
  for (const char* name : {"local:1", "local:3", "8xA100-80GB"}) {
    const PlanRequest request{.step = step, .cluster = *cluster::load_cluster(name)};
    const PlanResult result = plan_with(GetParam().planner, request);
    ASSERT_NE(result.status, SearchStatus::kInfeasible) << result.explanation;
    EXPECT_EQ(result.best.planner, GetParam().planner);
    const Status checked = plan::check(result.best, step);
    ASSERT_TRUE(checked) << checked.error().text();
    const auto again = evaluate(result.best, step);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->simulation.step_seconds, result.best.prediction.step_seconds);
    EXPECT_EQ(again->simulation.peak_bytes, result.best.prediction.peak_bytes);
    EXPECT_LE(result.best.prediction.lower_bound_seconds,
              result.best.prediction.additive_seconds * (1 + 1e-9));
  }
}

TEST_P(Conformance, SameRequestGivesTheSamePlan) {
  const ir::Graph step = step_of(GetParam().model);
  const PlanRequest request{.step = step, .cluster = *cluster::load_cluster("8xA100-80GB")};
  plan::Plan first = plan_with(GetParam().planner, request).best;
  plan::Plan second = plan_with(GetParam().planner, request).best;
  first.prediction.search_seconds = 0;
  second.prediction.search_seconds = 0;
  EXPECT_EQ(plan::to_json(first, step), plan::to_json(second, step));
}

TEST_P(Conformance, SaysWhatIsMissingWhenNothingFits) {
  const ir::Graph step = step_of(GetParam().model);
  PlanRequest request{.step = step, .cluster = *cluster::load_cluster("8xA100-80GB")};
  request.memory_limit = 1000;
  const PlanResult result = plan_with(GetParam().planner, request);
  EXPECT_EQ(result.status, SearchStatus::kInfeasible);
  EXPECT_NE(result.explanation.find("the smallest needs"), std::string::npos);
}

TEST_P(Conformance, StopsWhenInterrupted) {
  const ir::Graph step = step_of(GetParam().model);
  const std::atomic<bool> stop{true};
  PlanRequest request{.step = step, .cluster = *cluster::load_cluster("8xA100-80GB")};
  request.control.interrupt = &stop;
  const PlanResult result = plan_with(GetParam().planner, request);
  EXPECT_EQ(result.limit, SearchLimit::kInterrupted);
  EXPECT_EQ(result.best.prediction.lower_bound_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(
    AllPlanners, Conformance, testing::ValuesIn(cases()), [](const auto& test) {
      return test.param.planner + "_" + test.param.model.substr(0, test.param.model.find(':'));
    });

class Map : public testing::TestWithParam<std::string> {};

TEST_P(Map, IsNeverBehindAnExpert) {
  const ir::Graph step = step_of(GetParam());
  for (const char* name : {"pairs8", "local:4"}) {
    PlanRequest request{.step = step, .cluster = *cluster::load_cluster(name)};
    const PlanResult free = plan_with("map", request);
    for (const double part : {1.0, 0.7}) {
      request.memory_limit =
          static_cast<Bytes>(part * static_cast<double>(free.best.prediction.peak_bytes));
      const PlanResult best = plan_with("map", request);
      for (const PlannerInfo& planner : planners_of_steps()) {
        const PlanResult other = plan_with(std::string(planner.name), request);
        if (other.status == SearchStatus::kInfeasible || other.best.pipeline) {
          continue;
        }
        ASSERT_NE(best.status, SearchStatus::kInfeasible) << name << " " << planner.name;
        EXPECT_LE(best.best.prediction.peak_bytes, request.memory_limit);
        EXPECT_LE(best.best.prediction.step_seconds, other.best.prediction.step_seconds)
            << name << " " << planner.name << " at " << part;
      }
    }
  }
}

TEST_P(Map, MoreMemoryOrFasterLinksAreNeverSlower) {
  const ir::Graph step = step_of(GetParam());
  PlanRequest request{.step = step, .cluster = *cluster::load_cluster("pairs8")};
  const auto peak = static_cast<double>(plan_with("map", request).best.prediction.peak_bytes);
  double last = std::numeric_limits<double>::infinity();
  for (const double part : {0.6, 0.8, 1.0, 1.5}) {
    request.memory_limit = static_cast<Bytes>(part * peak);
    const PlanResult result = plan_with("map", request);
    if (result.status == SearchStatus::kInfeasible) {
      EXPECT_EQ(last, std::numeric_limits<double>::infinity()) << "at " << part;
      continue;
    }
    EXPECT_LE(result.best.prediction.step_seconds, last * (1 + 1e-9)) << "at " << part;
    last = result.best.prediction.step_seconds;
  }
  request.memory_limit = 0;
  for (const double factor : {2.0, 16.0}) {
    PlanRequest faster = request;
    for (cluster::LinkLevel& level : faster.cluster.levels) {
      level.bandwidth *= factor;
    }
    const double seconds = plan_with("map", faster).best.prediction.step_seconds;
    EXPECT_LE(seconds, last * (1 + 1e-9)) << "links " << factor << " times as fast";
    last = seconds;
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo,
                         Map,
                         testing::Values("mlp:layers=3,hidden=64,batch=16",
                                         "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96",
                                         "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,"
                                         "seq=32,batch=8,vocab=96"));

TEST(Registry, SuggestsTheNameThatWasMeant) {
  const auto planner = find_planner("zero33");
  ASSERT_FALSE(planner);
  EXPECT_NE(planner.error().text().find("did you mean 'zero3'"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::planners
