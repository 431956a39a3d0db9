#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/plan_testing.h"

namespace shardplan::plan {
namespace {

using ::testing::HasSubstr;

TEST(BlockOf, EndsAtTheFirstNumber) {
  EXPECT_EQ(block_of("transformer.h.3.attn.c_attn"), "transformer.h.3");
  EXPECT_EQ(block_of("transformer.h.12"), "transformer.h.12");
  EXPECT_EQ(block_of("layers.0.1.fc"), "layers.0");
  EXPECT_EQ(block_of("0"), "0");
  EXPECT_EQ(block_of("transformer.wte"), "");
  EXPECT_EQ(block_of("conv2d.weight"), "");
  EXPECT_EQ(block_of(""), "");
  EXPECT_EQ(block_of("a..b."), "");
}

class Check : public ::testing::Test {
 protected:
  [[nodiscard]] std::string error() const {
    const Status status = check(plan_, step_);
    return status ? "" : status.error().text();
  }
  [[nodiscard]] sharding::Strategy strategy(std::size_t op, const std::string& text) const {
    return *sharding::parse_strategy(text, ops::axis_map(step_, ir::OpId(op)), plan_.mesh);
  }

  ir::Graph step_ = example_step();
  Plan plan_ = example_plan(step_);
};

TEST_F(Check, TakesAGoodPlan) {
  EXPECT_EQ(error(), "");
  plan_.layouts.clear();  // replicated parameters can be written, and a partial
                          // sum reduced
  EXPECT_THAT(error(), HasSubstr("operand 0 must be partial over mesh axis \"data\""));
  plan_.strategies[6] = strategy(6, "tensor=a");
  EXPECT_EQ(error(), "");
}

TEST_F(Check, FindsAWrongMesh) {
  plan_.mesh.axes[1].size = 3;
  EXPECT_EQ(error(),
            "mesh: the sizes of its axes (data 2 × tensor 3) do not "
            "multiply to the 4 devices of "
            "the cluster");
  plan_.mesh.axes[1].size = std::int64_t{1} << 62;
  EXPECT_THAT(error(), HasSubstr("do not multiply"));
  plan_.mesh.axes[1].size = 0;
  EXPECT_EQ(error(), "mesh: axis \"tensor\" has size 0, which must be at least 1");
  plan_.mesh.axes[1] = {"data", 2};
  EXPECT_EQ(error(), "mesh: two axes are named \"data\"");
  plan_.mesh.axes[1] = {"a b", 2};
  EXPECT_THAT(error(), HasSubstr("mesh: \"a b\" is no name for an axis"));
  plan_.mesh.axes.assign(7, {"x", 1});
  EXPECT_EQ(error(), "mesh: it has 7 axes, at most 6 are supported");
}

TEST_F(Check, FindsAChangedModel) {
  step_.op(ir::OpId{1}).name = "sigmoid";
  EXPECT_THAT(error(), HasSubstr("graph_hash: the plan was made for another training step"));
  EXPECT_THAT(error(), HasSubstr(plan_.graph_hash));
  EXPECT_THAT(error(), HasSubstr("make the plan again"));
}

TEST_F(Check, FindsAWrongRecipe) {
  plan_.recipe.microbatches = 4;
  EXPECT_EQ(error(), "recipe: the recipe has 4 microbatches, the training step 2");
}

TEST_F(Check, FindsWrongStrategies) {
  plan_.strategies[0] = strategy(0, "data=b tensor=b");
  EXPECT_EQ(error(), "");  // 4 rows by 4
  plan_.strategies[0].set(0, 77);
  EXPECT_EQ(error(),
            "strategies / net.0 / einsum.0: mesh axis data is given "
            "to op axis 77, the op has 3");
  plan_.strategies[0] = {};
  plan_.strategies[0].set(3, 0);
  EXPECT_EQ(error(),
            "strategies / net.0 / einsum.0: it uses mesh axis 3, the "
            "mesh is data 2 × tensor 2");
  plan_.strategies.pop_back();
  EXPECT_EQ(error(), "strategies: there are 7 strategies for the 8 ops of the training step");
}

TEST_F(Check, FindsPartialSumsThatNobodyLeaves) {
  plan_.strategies[4] = strategy(4, "data=partial:0");
  EXPECT_EQ(error(),
            "strategies / net.1 / relu_backward.4: operand 0 must be partial over "
            "mesh axis "
            "\"data\" ([-, -] + sum(data)), but broadcast.3 gives [data, tensor]; "
            "choose a strategy "
            "that takes whole values here, or one that leaves a partial value there");
  plan_ = example_plan(step_);
  plan_.strategies[6] = strategy(6, "tensor=a");
  EXPECT_THAT(error(),
              HasSubstr("layouts / net.0.weight.grad: the value that is written back must be "
                        "partial over mesh axis \"data\" ([tensor, -] + sum(data)), but "
                        "accumulate.6 gives [tensor, -]"));
}

TEST_F(Check, FindsWrongLayouts) {
  const auto error_of = [&](int value, const sharding::ShardingSpec& spec) {
    plan_ = example_plan(step_);
    plan_.layouts[ir::ValueId(value)] = spec;
    return error();
  };
  sharding::ShardingSpec spec;
  spec.shard(2, 0);
  EXPECT_EQ(error_of(0, spec),
            "layouts / net.0.weight: mesh axis \"data\" "
            "cuts dimension 2 of f32[16,8]");
  spec = {};
  spec.shard(0, 5);
  EXPECT_EQ(error_of(0, spec),
            "layouts / net.0.weight: it uses mesh axis 5, "
            "the mesh is data 2 × tensor 2");
  spec = {};
  spec.make_partial(0, sharding::Reduction::kSum);
  EXPECT_EQ(error_of(0, spec),
            "layouts / net.0.weight: it cannot be partial "
            "over mesh axis \"data\": only "
            "accumulators of gradients can be partial sums");
  spec = {};
  spec.shard(0, 0);
  EXPECT_EQ(error_of(5, spec),
            "layouts / value.5: it is a constant, which every device holds whole");
  EXPECT_EQ(error_of(6, spec),
            "layouts / value.6: it is the result of an op: "
            "its layout follows from the op's "
            "strategy");
  EXPECT_EQ(error_of(99, spec), "layouts: there is no value 99");
  EXPECT_EQ(error_of(2, spec), "layouts / step: mesh axis \"data\" cuts dimension 0 of f32[]");

  plan_ = example_plan(step_);
  plan_.cluster = *cluster::load_cluster("local:64");
  plan_.mesh.axes = {{"data", 2}, {"tensor", 32}};
  EXPECT_EQ(error(),
            "layouts / net.0.weight: dimension 0 of size 16 is too small to be "
            "cut into 32 parts (mesh axis \"tensor\")");
}

TEST_F(Check, FindsWrongBlocks) {
  plan_.recompute = {{"net.11"}};
  EXPECT_EQ(error(), "recompute: no block is named \"net.11\"; did you mean \"net.1\"?");
  plan_.recompute = {{"net.1"}, {"net.1"}};
  EXPECT_EQ(error(), "recompute: block \"net.1\" is listed twice");
}

}  // namespace
}  // namespace shardplan::plan
