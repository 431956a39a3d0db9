// Plans under parts of the memory that the plan without a limit takes.
#include <gtest/gtest.h>

#include <vector>

#include "shardplan/planners/planner.h"
#include "tests/planners/planners_testing.h"

namespace shardplan::planners {
namespace {

class Budgets : public testing::TestWithParam<std::string> {};

/// Below what sharding alone can save, recomputation takes over: the trade between time and memory
/// goes on down to less than half.
TEST_P(Budgets, OfPartsOfTheUnlimitedPeakAreMet) {
  const ir::Graph step = step_of(GetParam());
  const PlannerInfo* map = *find_planner("map");
  const PlanRequest request{.step = step, .cluster = *cluster::load_cluster("local:4")};
  const auto free = map->plan(request);
  ASSERT_TRUE(free) << free.error().text();
  const auto peak = static_cast<double>(free->best.prediction.peak_bytes);
  std::vector<Bytes> limits;
  for (const double part : {0.45, 0.6, 0.75, 0.9}) {
    limits.push_back(static_cast<Bytes>(part * peak));
  }
  const auto results = sweep(*map, request, limits);
  ASSERT_TRUE(results) << results.error().text();
  Seconds last = std::numeric_limits<Seconds>::infinity();
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const PlanResult& result = (*results)[i];
    ASSERT_NE(result.status, SearchStatus::kInfeasible) << result.explanation;
    const plan::Prediction& prediction = result.best.prediction;
    EXPECT_LE(prediction.peak_bytes, limits[i]);
    EXPECT_GT(prediction.lower_bound_seconds, 0);
    EXPECT_LE(prediction.lower_bound_seconds, prediction.objective_seconds * (1 + 1e-9));
    EXPECT_LE(prediction.step_seconds, last * (1 + 1e-9)) << "more memory is never slower";
    last = prediction.step_seconds;
  }
  EXPECT_FALSE(results->front().best.recompute.empty());
  EXPECT_GT(results->front().best.prediction.step_seconds, free->best.prediction.step_seconds);
}

INSTANTIATE_TEST_SUITE_P(
    Zoo,
    Budgets,
    testing::Values("gpt:layers=4,hidden=64,heads=4,seq=128,batch=16,vocab=128",
                    "llama:layers=4,hidden=64,ffn=128,heads=4,kv_heads=2,seq=128,batch=16,"
                    "vocab=128"),
    [](const auto& test) { return test.param.substr(0, test.param.find(':')); });

}  // namespace
}  // namespace shardplan::planners
