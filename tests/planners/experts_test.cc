// A mixture of experts in the form of GShard: tokens in groups, each expert takes so many of each
// group. Cut by groups before and by experts within, with all-to-alls between.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"
#include "shardplan/planners/planner.h"
#include "shardplan/training/training.h"

namespace shardplan::planners {
namespace {

constexpr std::string_view kGShard = R"(graph "gshard" microbatches=1
%0 = parameter "enter" f32[1024,1024] trainable
%1 = parameter "first" f32[8,1024,4096] trainable
%2 = parameter "second" f32[8,4096,1024] trainable
%3 = input "x" f32[8,512,1024]
%4 = input "dispatch" f32[8,512,8,128]
%5 = einsum(%3, %0) {equation="gtm,nm->gtn"} : f32[8,512,1024]
%6 = einsum(%4, %5) {equation="gtec,gtm->egcm"} : f32[8,8,128,1024]
%7 = einsum(%6, %1) {equation="egcm,emh->egch"} : f32[8,8,128,4096]
%8 = relu(%7) : f32[8,8,128,4096]
%9 = einsum(%8, %2) {equation="egch,ehm->egcm"} : f32[8,8,128,1024]
%10 = einsum(%4, %9) {equation="gtec,egcm->gtm"} : f32[8,512,1024]
%11 = add(%5, %10) : f32[8,512,1024]
%12 = mul(%11, %11) : f32[8,512,1024]
%13 = sum(%12) {dims=[0,1,2], keepdim=false} : f32[]
output %13
)";

struct Planned {
  ir::Graph step{};
  plan::Plan plan{};
  std::int64_t all_to_alls = 0;
};

Planned plan_by(std::string_view planner) {
  Planned out;
  out.step = training::build_training_step(ir::parse(kGShard).value(), {}).value();
  const cluster::Cluster machines = cluster::load_cluster("8xA100-80GB").value();
  out.plan = find_planner(planner)
                 .value()
                 ->plan({.step = out.step, .recipe = {}, .cluster = machines})
                 .value()
                 .best;
  const cost::CostModel cost(machines, out.plan.mesh);
  const Result<lower::Program> program =
      lower::lower(out.step,
                   out.plan,
                   [&](const sharding::ReshardStep& move, const ir::TensorType& type) {
                     return cost.reshard_step(move, type);
                   },
                   {});
  EXPECT_TRUE(program.has_value());
  out.all_to_alls = std::count_if(
      program->microbatch.begin(), program->microbatch.end(), [](const lower::Step& step) {
        return step.kind == lower::StepKind::kCollective &&
               step.collective.kind == sharding::CollectiveKind::kAllToAll;
      });
  return out;
}

/// By how many devices the dimension of experts of a weight is cut.
std::int64_t cuts_of_experts(const Planned& planned, const std::string& weight) {
  const auto found = planned.plan.layouts.find(planned.step.find_input(weight));
  std::int64_t parts = 1;
  if (found != planned.plan.layouts.end()) {
    for (const int axis : found->second.axes_of(0)) {
      parts *= planned.plan.mesh.axes[static_cast<std::size_t>(axis)].size;
    }
  }
  return parts;
}

// Two on the way to the experts and back, two for their gradients.
TEST(Experts, AreReachedByAllToAlls) {
  for (const std::string_view planner : {"map", "expert_parallel"}) {
    SCOPED_TRACE(std::string(planner));
    const Planned planned = plan_by(planner);
    EXPECT_GE(planned.all_to_alls, 4);
    EXPECT_EQ(cuts_of_experts(planned, "first"), 8);
    EXPECT_EQ(cuts_of_experts(planned, "second"), 8);
  }
}

TEST(Experts, StayWholeInDataParallelism) {
  const Planned planned = plan_by("dp");
  EXPECT_EQ(planned.all_to_alls, 0);
  EXPECT_EQ(cuts_of_experts(planned, "first"), 1);
}

TEST(Experts, AreFasterThanDataParallelism) {
  const double experts = plan_by("expert_parallel").plan.prediction.step_seconds;
  EXPECT_LT(experts, 0.8 * plan_by("dp").plan.prediction.step_seconds);
  EXPECT_LE(plan_by("map").plan.prediction.step_seconds, experts * (1 + 1e-9));
}

}  // namespace
}  // namespace shardplan::planners
