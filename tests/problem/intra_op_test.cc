#include "shardplan/problem/intra_op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "shardplan/ops/op.h"
#include "shardplan/sim/sim.h"
#include "shardplan/solvers/class_elimination.h"
#include "shardplan/solvers/elimination.h"
#include "tests/problem/problem_testing.h"

namespace shardplan::problem {
namespace {

const std::vector<std::string>& zoo_models() {
  static const std::vector<std::string> models{
      "mlp:layers=3,hidden=64,batch=16",
      "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96",
      "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96,dropout=0.1",
      "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32,batch=8,vocab=96",
      "convolutional"};
  return models;
}

cost::CostModel cost_on(const std::vector<cluster::MeshAxis>& axes) {
  return {*cluster::load_cluster("8xA100-80GB"), cluster::DeviceMesh{axes}};
}

sim::Simulation simulate(const ir::Graph& step,
                         const plan::Plan& plan,
                         const cost::CostModel& cost) {
  return sim::simulate(lowered(step, plan, cost), step, cost);
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

/// The problem is the program: for every assignment the objective is the sum of its kernels and
/// collectives, the row of the moment of its peak is its peak, and no other row is above that.
TEST_P(IntraOp, ObjectiveAndRowsAreThoseOfTheProgram) {
  std::mt19937 rng(2302);
  for (const std::int64_t microbatches : {1, 2}) {
    const ir::Graph step = step_of(GetParam(), microbatches);
    for (const auto& axes : {std::vector<cluster::MeshAxis>{{"a", 8}},
                             std::vector<cluster::MeshAxis>{{"a", 2}, {"b", 4}}}) {
      const cost::CostModel cost = cost_on(axes);
      const auto problem = IntraOpProblem::build(step, cost);
      ASSERT_TRUE(problem);
      const bool recompute = true;
      const StrategyGraph graph = problem->strategy_graph(recompute, {});
      for (int round = 0; round < 12; ++round) {
        const std::vector<int> choice = odd_assignment(graph.problem.objective, rng);
        const double modelled = solvers::evaluate(graph.problem.objective, choice);
        plan::Plan plan = problem->to_plan(choice, recompute);
        plan.recipe.microbatches = microbatches;
        ASSERT_TRUE(plan::check(plan, step));
        const sim::Simulation simulation = simulate(step, plan, cost);
        EXPECT_NEAR(simulation.additive_seconds, modelled, 1e-9 * modelled);
        double kernels = 0;  // what bounds of planners rely on
        for (std::size_t n = 0; n < problem->nodes().size(); ++n) {
          kernels +=
              problem->nodes()[n].type->choices[static_cast<std::size_t>(choice[n])].kernel_seconds;
        }
        EXPECT_GE(simulation.compute_seconds, kernels * (1 - 1e-9));
        std::vector<Moment> moments{problem->moment_of(simulation.peak, plan)};
        for (int k = 0; k < 20; ++k) {
          const Moment run = Timeline::run(ir::OpId(rng() % step.ops().size()));
          moments.insert(moments.end(), {run, Timeline::halo(run, k % 2)});
        }
        const StrategyGraph rows = problem->strategy_graph(recompute, moments);
        const auto peak = static_cast<double>(simulation.peak_bytes);
        const double one_number = 8;  // the loss of the microbatch before is not in the rows
        for (std::size_t r = 0; r < moments.size(); ++r) {
          const double bytes = solvers::evaluate(rows.problem, rows.problem.rows[r], choice);
          if (r == 0) {
            EXPECT_NEAR(bytes, peak, one_number)
                << rows.rows[r] << " what " << static_cast<int>(simulation.peak.what) << " again "
                << simulation.peak.again;
          }
          EXPECT_LE(bytes, peak * (1 + 1e-9)) << rows.rows[r];
        }
      }
    }
  }
}

TEST_P(IntraOp, TablesAreTheSameWhenTheyAreMadeAgain) {
  const ir::Graph step = step_of(GetParam());
  const cost::CostModel cost = cost_on({{"a", 4}, {"b", 2}});
  auto problem = IntraOpProblem::build(step, cost);
  ASSERT_TRUE(problem);
  const ClassNetwork first = problem->class_network(false);
  problem->forget_tables();
  const ClassNetwork second = problem->class_network(false);
  ASSERT_EQ(first.factors.size(), second.factors.size());
  for (std::size_t f = 0; f < first.factors.size(); ++f) {
    ASSERT_EQ(*first.factors[f].cost, *second.factors[f].cost);
  }
}

/// Equal layers share their tables and are eliminated once. With a table of its own for every node
/// and edge nothing is shared, and the optimum is the same.
TEST(Folding, OfEqualLayersChangesNothing) {
  const ir::Graph step = step_of("gpt:layers=6,hidden=64,heads=4,seq=32,batch=8,vocab=96");
  const cost::CostModel cost = cost_on({{"a", 2}, {"b", 4}});
  const auto problem = IntraOpProblem::build(step, cost);
  ASSERT_TRUE(problem);
  const ClassNetwork folded = problem->class_network(false);
  ClassNetwork unfolded = folded;
  std::set<const void*> shared;
  for (ClassNetwork::Factor& factor : unfolded.factors) {
    shared.insert(factor.cost.get());
    factor.cost = std::make_shared<const std::vector<double>>(*factor.cost);
    for (auto& classes : factor.classes) {
      classes = std::make_shared<const ChoiceClasses>(*classes);
    }
  }
  EXPECT_LT(2 * shared.size(), unfolded.factors.size());
  for (solvers::CostTable& table : unfolded.unary) {
    table = std::make_shared<const std::vector<double>>(*table);
  }
  const solvers::ClassSolution once = solvers::minimise(folded);
  const solvers::ClassSolution each = solvers::minimise(unfolded);
  ASSERT_TRUE(once.solved);
  ASSERT_TRUE(each.solved);
  EXPECT_NEAR(once.cost, each.cost, 1e-12 * each.cost);
  EXPECT_NEAR(evaluate(unfolded, once.choice), each.cost, 1e-12 * each.cost);
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
