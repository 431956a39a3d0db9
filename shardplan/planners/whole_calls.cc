// Operators that were called by name on whole tensors, on every device.

#include <algorithm>
#include <map>
#include <utility>

#include "shardplan/cost/cost_model.h"
#include "shardplan/lower/program.h"
#include "shardplan/ops/call.h"
#include "shardplan/planners/planner.h"

namespace shardplan::planners {

std::vector<WholeCall> whole_calls(const plan::Plan& plan, const ir::Graph& step) {
  const cost::CostModel cost(plan.cluster, plan.mesh);
  std::map<std::string, WholeCall> by_target;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::OpId id{i};
    const ir::Op& op = step.op(id);
    if (op.name != "call" && op.name != "call_backward") {
      continue;
    }
    const std::size_t axes = plan.mesh.axes.size();
    bool cut = false;
    for (std::size_t m = 0; m < axes && i < plan.strategies.size(); ++m) {
      cut = cut || plan.strategies[i].at(static_cast<int>(m)) >= 0;
    }
    if (cut || plan.mesh.size() < 2) {
      continue;
    }
    const ops::OpTypes types = ops::op_types(step, id);
    const Bytes bytes = lower::memory_traffic(ops::axis_map(step, id), types.inputs, types.results);
    const auto times = static_cast<double>(op.phase == ir::Phase::kUpdate ? 1 : step.microbatches);
    WholeCall& call = by_target[op.attributes.string("target")];
    call.target = op.attributes.string("target");
    call.count += op.name == "call" ? 1 : 0;
    call.seconds +=
        times * cost.kernel(cost::kernel_of(
                    ops::get(op.name), types.inputs, types.results, ops::flops(step, id), bytes));
  }
  std::vector<WholeCall> out;
  out.reserve(by_target.size());
  for (auto& [target, call] : by_target) {
    out.push_back(std::move(call));
  }
  std::stable_sort(out.begin(), out.end(), [](const WholeCall& a, const WholeCall& b) {
    return a.seconds > b.seconds;
  });
  return out;
}

}  // namespace shardplan::planners
