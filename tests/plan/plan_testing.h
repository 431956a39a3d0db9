#pragma once

#include <string>
#include <utility>

#include "shardplan/ir/graph.h"
#include "shardplan/ops/op.h"
#include "shardplan/plan/plan.h"

namespace shardplan::plan {

/// A hand-written training step of a two-layer net with two microbatches, and a
/// plan for it on 2 × 2 devices: data parallel, the first weight cut over
/// "tensor", its gradient accumulated as a partial sum over "data" and reduced
/// at the update.
inline ir::Graph example_step() {
  Result<ir::Graph> graph = ir::parse(R"(graph "mlp" microbatches=2
%0 = parameter "net.0.weight" f32[16,8] trainable
%1 = input "x" f32[4,8]
%2 = state "step" f32[]
%3 = accumulator "net.0.weight.grad" f32[16,8]
%4 = accumulator "" f32[]
%5 = constant "" f32[] data=[1]
%6 = einsum(%1, %0) {equation="bk,nk->bn"} : f32[4,16] layer="net.0"
%7 = relu(%6) : f32[4,16] layer="net.1"
%8 = sum(%7) {dims=[0,1], keepdim=false} : f32[]
%9 = broadcast(%5) {shape=[4,16]} : f32[4,16] phase=backward
%10 = relu_backward(%9, %7) : f32[4,16] layer="net.1" phase=backward
%11 = einsum(%10, %1) {equation="bn,bk->nk"} : f32[16,8] layer="net.0" phase=backward
%12 = accumulate(%3, %11) : f32[16,8] layer="net.0" phase=backward
%13 = sgd_update(%0, %12, %2) {dampening=0.0, has_momentum=false, lr=0.1, momentum=0.0, nesterov=false, weight_decay=0.0} : f32[16,8] layer="net.0" phase=update
output %8
write %3 <- %12
write %0 <- %13
)");
  SHARDPLAN_CHECK(graph.has_value()) << graph.error().text();
  return std::move(graph).value();
}

inline sharding::ShardingSpec layout(const std::string& text,
                                     std::size_t rank,
                                     const cluster::DeviceMesh& mesh) {
  return *sharding::parse_spec(text, rank, mesh);
}

inline Plan example_plan(const ir::Graph& step) {
  Plan plan;
  plan.planner = "by hand";
  plan.model = "mlp.ir";
  plan.graph_hash = ir::structural_hash(step);
  plan.recipe.optimizer = *training::parse_optimizer("sgd:lr=0.1");
  plan.recipe.microbatches = 2;
  plan.cluster = *cluster::load_cluster("local:4");
  plan.mesh.axes = {{"data", 2}, {"tensor", 2}};
  for (const int value : {0, 1, 2, 3, 4}) {
    plan.layouts[ir::ValueId(value)] = {};
  }
  plan.layouts[ir::ValueId(0)] = layout("[tensor, -]", 2, plan.mesh);
  plan.layouts[ir::ValueId(1)] = layout("[data, -]", 2, plan.mesh);
  plan.layouts[ir::ValueId(3)] = layout("[tensor, -] + sum(data)", 2, plan.mesh);
  const char* const strategies[] = {"data=b tensor=n",
                                    "data=a tensor=b",
                                    "data=d0 tensor=d1",
                                    "data=a tensor=b",
                                    "data=a tensor=b",
                                    "data=b tensor=n",
                                    "data=partial:0 tensor=a",
                                    "tensor=a"};
  for (std::size_t op = 0; op < step.ops().size(); ++op) {
    const Result<sharding::Strategy> strategy =
        sharding::parse_strategy(strategies[op], ops::axis_map(step, ir::OpId(op)), plan.mesh);
    SHARDPLAN_CHECK(strategy.has_value()) << strategy.error().text();
    plan.strategies.push_back(*strategy);
  }
  plan.recompute = {{"net.1", plan::Recompute::kSelective}};
  plan.prediction = {
      0.125, 0.25, 0.25, 0.2, 0.25, 0.1, {{"net.1 add.3", 3328, 0.5}}, 3328, 0, 1.0 / 3};
  return plan;
}

}  // namespace shardplan::plan
