#include "shardplan/lower/local_op.h"

#include <gtest/gtest.h>

#include "shardplan/lower/program.h"
#include "tests/convolutional_testing.h"

namespace shardplan::lower {
namespace {

using sharding::CollectiveKind;

/// The op of the net with the axis h, or the whole op, over two ranks.
struct Cut {
  ir::Graph graph = *ir::parse(kConvolutional);
  cluster::DeviceMesh mesh{{{"space", 2}}};

  [[nodiscard]] LocalOp local(std::size_t op) const {
    const ir::OpId id(op);
    const ops::AxisMap map = ops::axis_map(graph, id);
    sharding::Strategy strategy;
    strategy.set(0, map.find("h"));
    const ir::Op& node = graph.op(id);
    return local_op(ops::get(node.name),
                    map,
                    ops::op_types(graph, id),
                    node.attributes,
                    sharding::layouts(map, strategy, mesh).value_or(sharding::OpLayouts{}),
                    mesh);
  }
};

TEST(LocalOp, HasItsPartWithWhatItsWindowsNeed) {
  const LocalOp stem = Cut().local(0);  // 18 rows to 9 by windows of 3 every 2nd, padded by 1
  ASSERT_EQ(stem.exchanges.size(), 1U);
  EXPECT_EQ(stem.results[0].shape, (ir::Shape{4, 8, 5, 9}));
  EXPECT_EQ(stem.inputs[0].shape, (ir::Shape{4, 3, 11, 17}));
  EXPECT_EQ(stem.exchanges[0].made, stem.inputs[0]);
  EXPECT_EQ(stem.cut.size(), 1U);
  // Rank 0 needs rows -1 to 9 and has the first 9; rank 1 needs 9 to 17, and has them.
  EXPECT_EQ(stem.exchanges[0].workspace, 4 * 3 * 1 * 17 * 4);
}

TEST(LocalOp, GetsNothingWhereWindowsFitTheParts) {
  const ir::Graph graph = *ir::parse(R"(graph "fit" microbatches=1
%0 = input "x" f32[1,2,12,8]
%1 = avg_pool(%0) {ceil=false, count_padding=true, kernel=[2,2], padding=[0,0], stride=[2,2]} : f32[1,2,6,4]
%2 = sum(%1) {dims=[0,1,2,3], keepdim=false} : f32[]
output %2
)");
  const LocalOp halves = Cut{graph, {{{"space", 2}}}}.local(0);
  EXPECT_TRUE(halves.exchanges.empty());
  EXPECT_EQ(halves.cut.size(), 1U);
  EXPECT_EQ(halves.inputs[0].shape, (ir::Shape{1, 2, 6, 8}));
  // Four parts of 3 rows, but of windows 2, 2, 2 and none.
  EXPECT_EQ((Cut{graph, {{{"space", 4}}}}.local(0).exchanges.size()), 1U);
}

TEST(Lower, ExchangesHalosJustBeforeTheOp) {
  const Cut cut;
  plan::Plan plan;
  plan.mesh = cut.mesh;
  for (std::size_t op = 0; op < cut.graph.ops().size(); ++op) {
    sharding::Strategy strategy;
    strategy.set(0, ops::axis_map(cut.graph, ir::OpId(op)).find(op == 0 ? "h" : "c"));
    plan.strategies.push_back(op < 2 ? strategy : sharding::Strategy{});
  }
  const auto program = lower(
      cut.graph, plan, [](const auto&, const auto&) { return 1.0; }, LowerOptions{});
  ASSERT_TRUE(program) << program.error().text();
  std::size_t seen = 0;
  for (std::size_t i = 0; i + 1 < program->microbatch.size(); ++i) {
    const Step& step = program->microbatch[i];
    if (step.kind != StepKind::kCollective ||
        step.collective.kind != CollectiveKind::kHaloExchange) {
      continue;
    }
    ++seen;
    const Step& kernel = program->microbatch[i + 1];
    EXPECT_EQ(kernel.kind, StepKind::kCompute);
    EXPECT_EQ(kernel.op, ir::OpId(0));
    EXPECT_EQ(kernel.inputs[0], step.outputs[0]);
    EXPECT_EQ(program->value(step.outputs[0]).type.shape, (ir::Shape{4, 3, 11, 17}));
    const Step& free = program->microbatch[i + 2];
    EXPECT_EQ(free.kind, StepKind::kFree);
    EXPECT_EQ(free.inputs[0], step.outputs[0]);
  }
  EXPECT_EQ(seen, 1U);
  EXPECT_NE(print(*program, cut.graph).find("halo_exchange[space]"), std::string::npos);
}

}  // namespace
}  // namespace shardplan::lower
