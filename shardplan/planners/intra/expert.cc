#include "shardplan/planners/intra/expert.h"

#include <fmt/format.h>

#include "shardplan/planners/experts.h"

namespace shardplan::planners {
namespace {

template <std::size_t Index>
Result<PlanResult> plan_expert(const PlanRequest& request) {
  const ExpertRule& rule = expert_rules()[Index];
  if (request.mesh) {
    for (const cluster::MeshAxis& axis : request.mesh->axes) {
      if (axis.name != "data" && axis.name != "tensor" && axis.name != "space" &&
          axis.name != "expert") {
        return invalid_input(
            fmt::format("planner {} knows the mesh axes data, tensor, space and expert, not '{}'",
                        rule.name,
                        axis.name));
      }
    }
  }
  return plan_by_rules(request, rule.name, {&rule, 1});
}

}  // namespace

std::vector<PlannerInfo> expert_planners() {
  return {
      {"dp",
       "Data parallelism (all-reduced gradients)",
       2012,
       "the batch over all devices, everything else whole",
       plan_expert<0>},
      {"zero1",
       "Rajbhandari et al., ZeRO, SC 2020",
       2020,
       "data parallel, optimizer state cut",
       plan_expert<1>},
      {"zero2",
       "Rajbhandari et al., ZeRO, SC 2020",
       2020,
       "data parallel, optimizer state and gradients cut",
       plan_expert<2>},
      {"zero3",
       "Rajbhandari et al., ZeRO, SC 2020; FSDP",
       2020,
       "data parallel, optimizer state, gradients and parameters cut",
       plan_expert<3>},
      {"megatron",
       "Shoeybi et al. 2019; Korthikanti et al. 2022",
       2019,
       "tensor parallel with sequence parallelism over all devices",
       plan_expert<4>},
      {"megatron_dp",
       "Narayanan et al., SC 2021",
       2021,
       "data × tensor parallel, best 2-D mesh",
       plan_expert<5>},
      {"megatron_zero1",
       "Narayanan et al., SC 2021; ZeRO",
       2021,
       "data × tensor parallel, optimizer state cut",
       plan_expert<6>},
      {"megatron_zero3",
       "Narayanan et al., SC 2021; ZeRO",
       2021,
       "data × tensor parallel, parameters cut",
       plan_expert<7>},
      {"spatial",
       "Dryden et al., IPDPS 2019",
       2019,
       "the first dimension of space over all devices, with halo exchange, everything else whole",
       plan_expert<8>},
      {"expert_parallel",
       "Lepikhin et al., GShard, ICLR 2021",
       2020,
       "the batch over all devices, the experts' weights by expert, all-to-alls between",
       plan_expert<9>},
  };
}

}  // namespace shardplan::planners
