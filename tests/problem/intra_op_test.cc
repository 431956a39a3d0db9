#include "shardplan/problem/intra_op.h"

#include <gtest/gtest.h>

#include <random>

#include "shardplan/frontends/frontends.h"
#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"
#include "shardplan/sim/sim.h"

namespace shardplan::problem {
namespace {

ir::Graph step_of(const std::string& model, std::int64_t microbatches = 1) {
  training::Recipe recipe;
  recipe.microbatches = microbatches;
  auto graph = frontends::zoo_model(model);
  EXPECT_TRUE(graph) << graph.error().text();
  auto step = training::build_training_step(*graph, recipe);
  EXPECT_TRUE(step) << step.error().text();
  return std::move(*step);
}

const std::vector<std::string>& zoo_models() {
  static const std::vector<std::string> models{
      "mlp:layers=3,hidden=64,batch=16",
      "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96",
      "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96,dropout=0.1",
      "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32,batch=8,vocab=96"};
  return models;
}

cost::CostModel cost_on(const std::vector<cluster::MeshAxis>& axes) {
  return {*cluster::load_cluster("8xA100-80GB"), cluster::DeviceMesh{axes}};
}

sim::Simulation simulate(const ir::Graph& step,
                         const plan::Plan& plan,
                         const cost::CostModel& cost) {
  auto program =
      lower::lower(step, plan, [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
        return cost.reshard_step(move, type);
      });
  EXPECT_TRUE(program) << program.error().text();
  return sim::simulate(*program, step, cost);
}

class IntraOp : public testing::TestWithParam<std::string> {};

TEST_P(IntraOp, OptimumHasTheAdditiveTimeOfItsProgram) {
  for (const std::int64_t microbatches : {1, 2}) {
    const ir::Graph step = step_of(GetParam(), microbatches);
    for (const auto& axes : {std::vector<cluster::MeshAxis>{{"a", 8}},
                             std::vector<cluster::MeshAxis>{{"a", 4}, {"b", 2}},
                             std::vector<cluster::MeshAxis>{{"a", 2}, {"b", 4}}}) {
      const cost::CostModel cost = cost_on(axes);
      const auto problem = IntraOpProblem::build(step, cost);
      ASSERT_TRUE(problem);
      const StrategyGraph graph = problem->strategy_graph(false, {});
      solvers::Elimination elimination;
      const auto outcome = elimination.minimise(graph.problem.objective);
      ASSERT_TRUE(outcome.solved);
      plan::Plan plan = problem->to_plan(outcome.solution.choice, false);
      plan.recipe.microbatches = microbatches;
      const Status checked = plan::check(plan, step);
      ASSERT_TRUE(checked) << checked.error().text();
      const sim::Simulation simulation = simulate(step, plan, cost);
      EXPECT_NEAR(simulation.additive_seconds, outcome.solution.cost, 1e-9 * outcome.solution.cost);
    }
  }
}

/// Any assignment, however odd, is a plan that lowers, and costs at most what the problem says (two
/// readers of one changed copy are priced apart).
TEST_P(IntraOp, EveryAssignmentLowersAtNoMoreThanItsCost) {
  const ir::Graph step = step_of(GetParam());
  const cost::CostModel cost = cost_on({{"a", 4}, {"b", 2}});
  const auto problem = IntraOpProblem::build(step, cost);
  ASSERT_TRUE(problem);
  const StrategyGraph graph = problem->strategy_graph(false, {});
  std::mt19937 rng(2302);
  int lowered = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<int> choice;
    for (const IntraOpNode& node : problem->nodes()) {
      choice.push_back(static_cast<int>(rng() % static_cast<unsigned>(node.type->choices.size())));
    }
    const double modelled = solvers::evaluate(graph.problem.objective, choice);
    if (modelled == std::numeric_limits<double>::infinity()) {
      continue;
    }
    const plan::Plan plan = problem->to_plan(choice, false);
    ASSERT_TRUE(plan::check(plan, step));
    const sim::Simulation simulation = simulate(step, plan, cost);
    EXPECT_LE(simulation.additive_seconds, modelled * (1 + 1e-9));
    // What bounds of planners rely on: kernels run whatever else is shared, and so do the changes
    // of layout inside nodes.
    double kernels = 0;
    double nodes = 0;
    for (std::size_t n = 0; n < choice.size(); ++n) {
      const NodeChoice& chosen =
          problem->nodes()[n].type->choices[static_cast<std::size_t>(choice[n])];
      kernels += chosen.kernel_seconds;
      nodes += chosen.seconds;
    }
    EXPECT_GE(simulation.compute_seconds, kernels * (1 - 1e-9));
    EXPECT_GE(simulation.additive_seconds, nodes * (1 - 1e-9));
    ++lowered;
  }
  // Partial sums that nobody takes make most random assignments of a large graph infinite.
  RecordProperty("lowered", lowered);
}

TEST_P(IntraOp, MemoryRowsAreTheBytesOfTheProgram) {
  const ir::Graph step = step_of(GetParam());
  const cost::CostModel cost = cost_on({{"a", 4}, {"b", 2}});
  const auto problem = IntraOpProblem::build(step, cost);
  ASSERT_TRUE(problem);
  for (const bool recompute : {false, true}) {
    StrategyGraph graph = problem->strategy_graph(recompute, {});
    if (recompute) {
      // All blocks twice: forbid the single run.
      const auto twice = std::make_shared<const std::vector<double>>(
          std::vector<double>{std::numeric_limits<double>::infinity(), 0});
      for (std::size_t b = 0; b < problem->blocks().size(); ++b) {
        graph.problem.objective.unary[problem->nodes().size() + b] = twice;
      }
    }
    solvers::Elimination elimination;
    const auto outcome = elimination.minimise(graph.problem.objective);
    const plan::Plan plan = problem->to_plan(outcome.solution.choice, recompute);
    EXPECT_EQ(plan.recompute.size(), recompute ? problem->blocks().size() : 0U);
    const sim::Simulation simulation = simulate(step, plan, cost);
    const auto point = problem->point_of(simulation.peak_op, simulation.peak_recompute);
    const StrategyGraph rows = problem->strategy_graph(recompute, {point});
    const double bytes =
        solvers::evaluate(rows.problem, rows.problem.rows[0], outcome.solution.choice);
    const auto peak = static_cast<double>(simulation.peak_bytes);
    EXPECT_NEAR(bytes, peak, (recompute ? 0.06 : 0.03) * peak);
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, IntraOp, testing::ValuesIn(zoo_models()));

TEST(AxisMeanings, OfAGptAreThoseOfMegatron) {
  const ir::Graph step = step_of("gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96");
  const auto meanings = axis_meanings(step);
  int row_parallel = 0;
  int column_parallel = 0;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::Op& op = step.ops()[i];
    if (op.phase != ir::Phase::kForward || op.name != "einsum") {
      continue;
    }
    const ops::AxisMap map = ops::axis_map(step, ir::OpId(i));
    for (std::size_t a = 0; a < map.axes.size(); ++a) {
      if (meanings[i][a] == AxisMeaning::kTensor) {
        (map.axes[a].role == ops::AxisRole::kSum ? row_parallel : column_parallel) += 1;
      }
    }
  }
  // In each block the joint projection and the first feed-forward product are cut by columns, the
  // output projection and the second by rows; the head by its vocabulary.
  EXPECT_EQ(column_parallel, 2 * 2 + 1);
  EXPECT_EQ(row_parallel, 2 * 2);
}

}  // namespace
}  // namespace shardplan::problem
