// What the problem's seconds and bytes mean, by the programs that run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "shardplan/ops/op.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/sim/certificate.h"
#include "shardplan/solvers/elimination.h"
#include "tests/problem/problem_testing.h"

namespace shardplan::problem {
namespace {

constexpr const char* kGpt = "gpt:layers=2,hidden=64,heads=4,seq=32,batch=8,vocab=96";
constexpr const char* kLlama =
    "llama:layers=2,hidden=64,ffn=128,heads=4,kv_heads=2,seq=32,batch=8,vocab=96";

cluster::Cluster box() {
  return *cluster::load_cluster("8xA100-80GB");
}

const cluster::DeviceMesh& grid() {
  static const cluster::DeviceMesh two_by_four{{{"a", 2}, {"b", 4}}};
  return two_by_four;
}

sim::Certificate certified(const lower::Program& program,
                           const ir::Graph& step,
                           const cost::CostModel& cost) {
  const auto certificate = sim::certify(program, step, cost);
  EXPECT_TRUE(certificate) << certificate.error().text();
  return *certificate;
}

solvers::Elimination::Outcome optimum(const solvers::CostNetwork& network) {
  solvers::Elimination elimination;
  return elimination.minimise(network);
}

/// A plan that computes everything everywhere.
plan::Plan whole_plan(const ir::Graph& step) {
  plan::Plan plan;
  plan.cluster = *cluster::load_cluster("local:1");
  plan.strategies.resize(step.ops().size());
  return plan;
}

TEST(ProblemBytes, CountWhatLivesAtOnceAndNotAllThatIsMade) {
  for (const char* model : {kGpt, kLlama}) {
    const ir::Graph step = step_of(model);
    const cost::CostModel cost(box(), grid());
    const auto problem = IntraOpProblem::build(step, cost);
    ASSERT_TRUE(problem);
    const auto best = optimum(problem->strategy_graph(false, {}).problem.objective);
    const lower::Program program =
        lowered(step, problem->to_plan(best.solution.choice, false), cost);
    Bytes made = 0;
    for (std::size_t v = 0; v < program.values.size(); ++v) {
      made +=
          program.root(lower::LocalId(v)) == lower::LocalId(v) ? program.values[v].type.bytes() : 0;
    }
    const Bytes peak = certified(program, step, cost).peak_bytes;
    EXPECT_LT(2 * peak, made) << model;
    // The problem's row at the moment of the peak says the same as the program.
    std::vector<Moment> moments;
    for (std::size_t op = 0; op < step.ops().size(); ++op) {
      moments.push_back(Timeline::run(ir::OpId(op)));
    }
    const StrategyGraph rows = problem->strategy_graph(false, moments);
    double most = 0;
    for (const auto& row : rows.problem.rows) {
      most = std::max(most, solvers::evaluate(rows.problem, row, best.solution.choice));
    }
    EXPECT_LE(most, static_cast<double>(peak) * (1 + 1e-9));
    EXPECT_GE(most, 0.9 * static_cast<double>(peak));
  }
}

TEST(ProblemBytes, OfAnInputAreThoseOfItsType) {
  const ir::Graph step = step_of(kGpt);
  const lower::Program program = lowered(step, whole_plan(step), {box(), {}});
  for (const lower::Resident& resident : program.residents) {
    const ir::Value& value = step.value(resident.global);
    if (value.kind == ir::ValueKind::kInput) {
      ASSERT_EQ(value.type.dtype, ir::DType::kInt64);
      EXPECT_EQ(program.value(resident.local).type.bytes(), 8 * 8 * 32);
    }
  }
  training::Recipe recipe;
  recipe.precision = *training::parse_precision("bf16");
  const auto half = training::build_training_step(*frontends::zoo_model(kGpt), recipe);
  ASSERT_TRUE(half);
  const auto parameter_bytes = [](const ir::Graph& graph) {
    return lower::resident_bytes(
        lowered(graph, whole_plan(graph), {box(), {}}), graph, ir::ValueKind::kParameter);
  };
  EXPECT_EQ(parameter_bytes(step), 2 * parameter_bytes(*half));
}

/// No constant weighs arithmetic against communication: on a machine that is faster in everything
/// the same assignment is the best, and takes so many times less.
TEST(ProblemSeconds, FallWithEveryRateOfTheMachineTogether) {
  constexpr double kFaster = 8;  // a power of two: exact
  cluster::Cluster fast = box();
  for (auto& [dtype, rate] : fast.device.peak_flops) {
    rate *= kFaster;
  }
  fast.device.memory_bandwidth *= kFaster;
  fast.device.kernel_overhead /= kFaster;
  for (cluster::LinkLevel& level : fast.levels) {
    level.bandwidth *= kFaster;
    level.latency /= kFaster;
  }
  for (const char* model : {kGpt, kLlama}) {
    const ir::Graph step = step_of(model);
    const auto here = IntraOpProblem::build(step, cost::CostModel(box(), grid()));
    const auto there = IntraOpProblem::build(step, cost::CostModel(fast, grid()));
    ASSERT_TRUE(here && there);
    const auto slow_best = optimum(here->strategy_graph(false, {}).problem.objective);
    const auto fast_best = optimum(there->strategy_graph(false, {}).problem.objective);
    EXPECT_NEAR(
        slow_best.solution.cost, kFaster * fast_best.solution.cost, 1e-9 * slow_best.solution.cost);
    EXPECT_EQ(slow_best.solution.choice, fast_best.solution.choice);
  }
}

/// Communication is not noise beside arithmetic: where links are slow, less is sent.
TEST(ProblemSeconds, SlowLinksMakePlansThatSendLess) {
  cluster::Cluster slow = box();
  for (cluster::LinkLevel& level : slow.levels) {
    level.bandwidth /= 1000;
  }
  const ir::Graph step = step_of("gpt:layers=2,hidden=1024,heads=16,seq=512,batch=16,vocab=512");
  const cost::CostModel measure(slow, grid());
  const auto sent = [&](const cluster::Cluster& planned_on) {
    const auto problem = IntraOpProblem::build(step, cost::CostModel(planned_on, grid()));
    const auto best = optimum(problem->strategy_graph(false, {}).problem.objective);
    const lower::Program program =
        lowered(step, problem->to_plan(best.solution.choice, false), measure);
    const sim::Certificate certificate = certified(program, step, measure);
    return certificate.additive_seconds - certificate.kernel_seconds;
  };
  EXPECT_LT(sent(slow), 0.9 * sent(box()));
}

/// Pairs of nodes that exchange several values (forward one way, gradients the other; residual
/// additions) pay for each of them.
TEST(ProblemSeconds, OfSeveralEdgesBetweenTwoNodesAddUp) {
  std::mt19937 random(17);
  for (const char* model : {kGpt, kLlama}) {
    const ir::Graph step = step_of(model);
    const cost::CostModel cost(box(), grid());
    const auto problem = IntraOpProblem::build(step, cost);
    ASSERT_TRUE(problem);
    std::map<std::pair<int, int>, int> edges;
    for (const IntraOpEdge& edge : problem->edges()) {
      ++edges[std::minmax(edge.from, edge.to)];
    }
    EXPECT_TRUE(
        std::any_of(edges.begin(), edges.end(), [](const auto& e) { return e.second > 1; }));
    const StrategyGraph graph = problem->strategy_graph(false, {});
    std::set<std::pair<int, int>> paid_twice;
    for (int round = 0; round < 10; ++round) {
      const std::vector<int> choice = odd_assignment(graph.problem.objective, random);
      std::map<std::pair<int, int>, int> paid;
      double sum = 0;
      for (std::size_t n = 0; n < graph.problem.objective.unary.size(); ++n) {
        sum += (*graph.problem.objective.unary[n])[static_cast<std::size_t>(choice[n])];
      }
      for (const solvers::CostNetwork::Factor& factor : graph.problem.objective.factors) {
        const double seconds =
            (*factor.cost)[solvers::table_index(graph.problem.objective, factor, choice)];
        sum += seconds;
        const auto pair = std::minmax(factor.scope.front(), factor.scope.back());
        if (seconds > 0 && ++paid[pair] > 1) {
          paid_twice.insert(pair);
        }
      }
      const lower::Program program = lowered(step, problem->to_plan(choice, false), cost);
      EXPECT_NEAR(certified(program, step, cost).additive_seconds, sum, 1e-9 * sum);
    }
    EXPECT_FALSE(paid_twice.empty());
  }
}

/// One strategy serves an op and its backward ops by what their axes mean, not by their order: an
/// operand that both read is wanted in one layout.
TEST(ProblemChoices, TieForwardAndBackwardOpsByTheirDimensions) {
  const ir::Graph step = step_of(kGpt);
  const auto problem = IntraOpProblem::build(step, cost::CostModel(box(), grid()));
  ASSERT_TRUE(problem);
  int compared = 0;
  for (const IntraOpNode& node : problem->nodes()) {
    if (node.kind != IntraOpNode::Kind::kOp || step.op(node.members[0]).name != "einsum") {
      continue;
    }
    const ir::Op& forward = step.op(node.members[0]);
    for (const NodeChoice& choice : node.type->choices) {
      for (std::size_t m = 1; m < node.members.size(); ++m) {
        const ir::Op& backward = step.op(node.members[m]);
        for (std::size_t i = 0; i < backward.inputs.size(); ++i) {
          for (std::size_t k = 0; k < forward.inputs.size(); ++k) {
            if (backward.inputs[i] == forward.inputs[k]) {
              EXPECT_EQ(choice.layouts[m].inputs[i], choice.layouts[0].inputs[k]);
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
}

/// A weight that two ops read (embedding and head) is stored once, in one layout; a reader that
/// wants another one pays for the change in the program as in the problem.
TEST(ProblemChoices, GiveATiedWeightOneLayout) {
  std::mt19937 random(23);
  const ir::Graph step = step_of(kGpt);
  const cost::CostModel cost(box(), grid());
  const auto problem = IntraOpProblem::build(step, cost);
  ASSERT_TRUE(problem);
  std::map<int, std::set<int>> readers;  // of parameters, among the nodes of forward ops
  for (const IntraOpEdge& edge : problem->edges()) {
    const auto& nodes = problem->nodes();
    if (nodes[static_cast<std::size_t>(edge.from)].kind == IntraOpNode::Kind::kParameter) {
      readers[edge.from].insert(edge.to);
    }
  }
  const auto tied = std::find_if(
      readers.begin(), readers.end(), [](const auto& entry) { return entry.second.size() > 1; });
  ASSERT_NE(tied, readers.end()) << "the model ties no weights";
  const StrategyGraph graph = problem->strategy_graph(false, {});
  for (int round = 0; round < 10; ++round) {
    const std::vector<int> choice = odd_assignment(graph.problem.objective, random);
    const plan::Plan plan = problem->to_plan(choice, false);
    const lower::Program program = lowered(step, plan, cost);
    const double modelled = solvers::evaluate(graph.problem.objective, choice);
    EXPECT_NEAR(certified(program, step, cost).additive_seconds, modelled, 1e-9 * modelled);
    const ir::ValueId weight = problem->nodes()[static_cast<std::size_t>(tied->first)].parameter;
    EXPECT_EQ(std::count_if(program.residents.begin(),
                            program.residents.end(),
                            [&](const lower::Resident& r) { return r.global == weight; }),
              1);
  }
}

struct Recomputed {
  sim::Certificate certificate{};
  std::vector<lower::Step> again{};
};

Recomputed recompute(const ir::Graph& step, plan::Recompute how) {
  const cost::CostModel cost(*cluster::load_cluster("local:1"), {});
  plan::Plan plan = whole_plan(step);
  if (how != plan::Recompute::kNone) {
    for (const char* block : {"transformer.h.0", "transformer.h.1"}) {
      plan.recompute.push_back({block, how});
    }
  }
  const lower::Program program = lowered(step, plan, cost);
  Recomputed out{certified(program, step, cost), {}};
  std::copy_if(
      program.microbatch.begin(),
      program.microbatch.end(),
      std::back_inserter(out.again),
      [](const lower::Step& s) { return s.recompute && s.kind == lower::StepKind::kCompute; });
  return out;
}

TEST(Recomputation, AddsTheTimeOfTheKernelsThatRunAgain) {
  const ir::Graph step = step_of(kGpt);
  const cost::CostModel cost(*cluster::load_cluster("local:1"), {});
  const lower::Program once = lowered(step, whole_plan(step), cost);
  std::map<ir::OpId, Seconds> forward;  // on one device nothing but kernels runs
  for (const lower::Step& instruction : once.microbatch) {
    const ops::OpDef& op = ops::get(step.op(instruction.op).name);
    if (instruction.kind == lower::StepKind::kCompute && !op.view) {
      ops::Types inputs;
      ops::Types results;
      for (const lower::LocalId id : instruction.inputs) {
        inputs.push_back(once.value(id).type);
      }
      for (const lower::LocalId id : instruction.outputs) {
        results.push_back(once.value(id).type);
      }
      forward[instruction.op] =
          cost.kernel(cost::kernel_of(op, inputs, results, instruction.flops, instruction.bytes));
    }
  }
  const Seconds base = recompute(step, plan::Recompute::kNone).certificate.additive_seconds;
  for (const plan::Recompute how : {plan::Recompute::kSelective, plan::Recompute::kWhole}) {
    const Recomputed again = recompute(step, how);
    Seconds more = 0;
    std::set<Seconds> different;
    for (const lower::Step& instruction : again.again) {
      more += forward[instruction.op];
      different.insert(forward[instruction.op]);
    }
    EXPECT_NEAR(again.certificate.additive_seconds, base + more, 1e-9 * base);
    EXPECT_GT(different.size(), 3U);  // not one unit an op
  }
}

TEST(Recomputation, OfPartOfABlockIsBetweenNoneAndAll) {
  const ir::Graph step = step_of(kGpt);
  const Recomputed none = recompute(step, plan::Recompute::kNone);
  const Recomputed some = recompute(step, plan::Recompute::kSelective);
  const Recomputed all = recompute(step, plan::Recompute::kWhole);
  EXPECT_TRUE(none.again.empty());
  EXPECT_GT(some.again.size(), 0U);
  EXPECT_LT(some.again.size(), all.again.size());
  for (const lower::Step& instruction : some.again) {
    EXPECT_FALSE(ops::get(step.op(instruction.op).name).matmul);
  }
  EXPECT_LT(none.certificate.additive_seconds, some.certificate.additive_seconds);
  EXPECT_LT(some.certificate.additive_seconds, all.certificate.additive_seconds);
  EXPECT_LT(some.certificate.peak_bytes, none.certificate.peak_bytes);
}

}  // namespace
}  // namespace shardplan::problem
