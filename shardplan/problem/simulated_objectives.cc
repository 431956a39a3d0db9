// Objectives of pipeline_objectives.h, of planners whose stages choose among the layers' choices or
// whose objective is the time of a schedule.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "shardplan/lower/schedule.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/sim/schedule_time.h"

namespace shardplan::problem {
namespace {

constexpr double kSlack = 1e-9;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

Error broken(const std::string& message) {
  return Error{ErrorCode::kRuntime, message, "plan", {}};
}

/// What the layers of one stage cost together, in their choices.
struct StageTotals {
  double forward = 0;
  double backward = 0;
  double weights = 0;
  double in_flight = 0;
  double constant = 0;
  double enters = 0;  // bytes
  double leaves = 0;
};

/// `forward_share` is that of a layer whose profile does not tell its forward time apart.
Result<std::vector<StageTotals>> totals(const LayerGraph& graph,
                                        const LayerPlan& plan,
                                        double forward_share) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<int> stage_of, stages_in_order(graph, plan));
  std::vector<const LayerChoice*> choice_of(graph.layers.size(), nullptr);
  for (const LayerStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const std::size_t v = at(stage.layers[i]);
      choice_of[v] = &graph.layers[v].choices[stage.choices.empty() ? 0 : at(stage.choices[i])];
      if (choice_of[v]->degree != stage.degree) {
        return broken(fmt::format("{} runs by a choice of degree {} in a stage of degree {}",
                                  describe(graph.layers[v]),
                                  choice_of[v]->degree,
                                  stage.degree));
      }
    }
  }
  std::vector<StageTotals> all(plan.stages.size());
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    StageTotals& stage = all[at(stage_of[v])];
    const double forward = choice_of[v]->forward_time.value_or(choice_of[v]->time * forward_share);
    stage.forward += forward;
    stage.backward += choice_of[v]->time - forward;
    stage.weights += choice_of[v]->parameter_bytes;
    stage.in_flight += choice_of[v]->in_flight_bytes;
    stage.constant += choice_of[v]->constant_bytes;
  }
  std::vector<std::size_t> in_seen(stage_of.size(), 0);
  std::vector<std::size_t> out_seen(stage_of.size(), 0);
  for (const LayerEdge& edge : graph.edges) {
    const std::size_t source = at(edge.source);
    const std::size_t target = at(edge.target);
    const std::size_t out = out_seen[source]++;
    const std::size_t in = in_seen[target]++;
    if (stage_of[source] < stage_of[target]) {
      const std::vector<double>& more_out = choice_of[source]->extra_out_bytes;
      const std::vector<double>& more_in = choice_of[target]->extra_in_bytes;
      all[at(stage_of[source])].leaves += edge.bytes + (more_out.empty() ? 0 : more_out[out]);
      all[at(stage_of[target])].enters += edge.bytes + (more_in.empty() ? 0 : more_in[in]);
    }
  }
  return all;
}

Result<lower::Schedule> schedule_of(const std::string& name, const lower::ScheduleShape& shape) {
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::ScheduleInfo* info, lower::find_schedule(name));
  return info->make(shape);
}

/// Microbatches of the profile in one microbatch of one of the plan's pipelines.
Result<double> size_of(const LayerMachines& machines, const LayerPlan& plan) {
  const std::int64_t parts = plan.pipelines * plan.microbatches;
  if (plan.pipelines < 1 || plan.microbatches < 1 || parts > machines.microbatches ||
      machines.microbatches % parts != 0) {
    return broken(fmt::format("{} pipelines of {} microbatches do not divide a batch of {}",
                              plan.pipelines,
                              plan.microbatches,
                              machines.microbatches));
  }
  const std::int64_t size = machines.microbatches / parts;
  return static_cast<double>(size);
}

Status check_machines(const LayerMachines& machines, const LayerPlan& plan, double memory) {
  std::int64_t devices = 0;
  for (const LayerStage& stage : plan.stages) {
    devices += std::int64_t{plan.pipelines} * stage.degree * stage.replicas;
  }
  if (devices > machines.devices) {
    return broken(fmt::format("{} devices in use, of {}", devices, machines.devices));
  }
  if (machines.memory_bytes > 0 && memory > machines.memory_bytes * (1 + kSlack)) {
    return broken(fmt::format("{} bytes on a device that has {}", memory, machines.memory_bytes));
  }
  return {};
}

}  // namespace

Result<double> merak_objective(const LayerGraph& graph,
                               const LayerMachines& machines,
                               const LayerPlan& plan,
                               const PublishedOptions& /*options*/) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<StageTotals> stages, totals(graph, plan, 0.25));
  SHARDPLAN_RETURN_IF_ERROR(check_machines(machines, plan, 0));
  // 1F1B by its recurrence: when each pass ends, microbatch by microbatch and stage by stage.
  const std::size_t p = stages.size();
  const std::size_t m = 2 * p;
  constexpr double kNever = -1;
  std::vector<std::vector<double>> forward(p, std::vector<double>(m, kNever));
  std::vector<std::vector<double>> backward(p, std::vector<double>(m, kNever));
  std::vector<double> free(p, 0);
  std::vector<std::size_t> did_forward(p, 0);
  std::vector<std::size_t> did_backward(p, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < p; ++s) {
      const std::size_t held = did_forward[s] - did_backward[s];
      const std::size_t f = did_forward[s];
      const std::size_t b = did_backward[s];
      const bool wants_forward = f < m && held < p - s;
      if (wants_forward && (s == 0 || forward[s - 1][f] != kNever)) {
        forward[s][f] = std::max(free[s], s == 0 ? 0 : forward[s - 1][f]) + stages[s].forward;
        free[s] = forward[s][f];
        ++did_forward[s];
        moved = true;
      } else if (!wants_forward && b < m && (s + 1 == p || backward[s + 1][b] != kNever)) {
        backward[s][b] =
            std::max(free[s], s + 1 == p ? 0 : backward[s + 1][b]) + stages[s].backward;
        free[s] = backward[s][b];
        ++did_backward[s];
        moved = true;
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

Result<double> distir_objective(const LayerGraph& graph,
                                const LayerMachines& machines,
                                const LayerPlan& plan,
                                const PublishedOptions& /*options*/) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<StageTotals> stages, totals(graph, plan, 1.0 / 3));
  SHARDPLAN_ASSIGN_OR_RETURN(const double size, size_of(machines, plan));
  const double per_byte = graph.units_per_transfer_second / machines.bandwidth;
  const auto d = static_cast<double>(plan.pipelines);
  std::vector<sim::StageTimes> times;
  double memory = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    sim::StageTimes& time = times.emplace_back();
    time.forward = size * stages[s].forward;
    time.backward = size * stages[s].backward;
    time.send_forward = size * stages[s].leaves * per_byte;
    time.send_backward = size * stages[s].enters * per_byte;
    time.update = 2 * (d - 1) / d * stages[s].weights * per_byte;
    const double held =
        std::min(static_cast<double>(stages.size() - s), static_cast<double>(plan.microbatches));
    memory = std::max(memory, stages[s].constant + held * size * stages[s].in_flight);
  }
  SHARDPLAN_RETURN_IF_ERROR(check_machines(machines, plan, memory));
  lower::ScheduleShape shape;
  shape.devices = static_cast<int>(stages.size());
  shape.microbatches = plan.microbatches;
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::Schedule schedule, schedule_of("1f1b", shape));
  SHARDPLAN_ASSIGN_OR_RETURN(const sim::ScheduleTime time, sim::time_schedule(schedule, times));
  return time.makespan;
}

namespace {

/// Chimera's schedule of a plan, and what share of a microbatch of the pipeline one pass has.
Result<lower::Schedule> chimera_schedule(const LayerPlan& plan, double& share) {
  lower::ScheduleShape shape;
  shape.devices = static_cast<int>(plan.stages.size());
  shape.microbatches = plan.microbatches;
  share = 1;
  if (plan.schedule == "chimera:doubling") {
    shape.scaling = lower::ChimeraScaling::kForwardDoubling;
  } else if (plan.schedule == "chimera:halving") {
    shape.scaling = lower::ChimeraScaling::kBackwardHalving;
    share = 0.5;
  } else if (plan.schedule != "chimera:concatenation") {
    return broken(fmt::format("the schedule is '{}'", plan.schedule));
  }
  return schedule_of("chimera", shape);
}

double chimera_memory(const lower::Schedule& schedule,
                      const std::vector<StageTotals>& stages,
                      double size) {
  double most = 0;
  const int last = schedule.stages - 1;
  for (int device = 0; device < schedule.devices; ++device) {
    const double weights = stages[at(device)].constant + stages[at(last - device)].constant;
    double held = 0;
    for (const lower::Task& task : schedule.tasks[at(device)]) {
      if (task.work == lower::Work::kForward) {
        held += size * stages[at(task.stage)].in_flight;
      } else if (task.work == lower::Work::kBackward) {
        held -= size * stages[at(task.stage)].in_flight;
      }
      most = std::max(most, weights + held);
    }
  }
  return most;
}

}  // namespace

Result<double> chimera_objective(const LayerGraph& graph,
                                 const LayerMachines& machines,
                                 const LayerPlan& plan,
                                 const PublishedOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<StageTotals> stages, totals(graph, plan, 1.0 / 3));
  SHARDPLAN_ASSIGN_OR_RETURN(double size, size_of(machines, plan));
  double share = 1;
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::Schedule schedule, chimera_schedule(plan, share));
  size *= share;
  SHARDPLAN_RETURN_IF_ERROR(check_machines(machines, plan, chimera_memory(schedule, stages, size)));
  const double per_byte = graph.units_per_transfer_second / machines.bandwidth;
  std::vector<sim::StageTimes> times;
  for (const StageTotals& stage : stages) {
    sim::StageTimes& time = times.emplace_back();
    time.forward = size * stage.forward;
    time.backward = size * stage.backward;
    time.send_forward = size * stage.leaves * per_byte;
    time.send_backward = size * stage.enters * per_byte;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const sim::ScheduleTime time, sim::time_schedule(schedule, times));
  const auto alpha = options.find("alpha");
  const double copies = 2.0 * plan.pipelines;
  const double start = 2 * std::log2(copies) * graph.units_per_transfer_second *
                       (alpha == options.end() ? 0 : std::stod(alpha->second));
  std::vector<double> last(stages.size(), 0);
  for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
    for (std::size_t i = 0; i < schedule.tasks[device].size(); ++i) {
      const lower::Task& task = schedule.tasks[device][i];
      if (task.work == lower::Work::kBackward) {
        last[at(task.stage)] = std::max(last[at(task.stage)], time.tasks[device][i].end);
      }
    }
  }
  double end = time.makespan;
  for (std::size_t s = 0; s < stages.size() / 2; ++s) {
    const std::size_t mirror = stages.size() - 1 - s;
    const auto reduce = [&](std::size_t stage) {
      return start + 2 * (copies - 1) / copies * stages[stage].weights * per_byte;
    };
    const std::size_t one = last[s] <= last[mirror] ? s : mirror;
    const std::size_t two = one == s ? mirror : s;
    const double first = last[one] + reduce(one);
    end = std::max({end, first, std::max(first, last[two]) + reduce(two)});
  }
  return end;
}

namespace {

/// Bytes of the edges that enter each stage from earlier ones, without what choices add.
std::vector<double> plain_bytes_in(const LayerGraph& graph, const LayerPlan& plan) {
  std::vector<std::size_t> stage_of(graph.layers.size(), 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const int v : plan.stages[s].layers) {
      stage_of[at(v)] = s;
    }
  }
  std::vector<double> bytes(plan.stages.size(), 0);
  for (const LayerEdge& edge : graph.edges) {
    const std::size_t target = stage_of[at(edge.target)];
    bytes[target] += stage_of[at(edge.source)] == target ? 0 : edge.bytes;
  }
  return bytes;
}

}  // namespace

Result<double> alpa_objective(const LayerGraph& graph,
                              const LayerMachines& machines,
                              const LayerPlan& plan,
                              const PublishedOptions& /*options*/) {
  const bool hosts = machines.hierarchy.size() == 2;
  const int host = hosts ? machines.hierarchy[0] : machines.devices;
  const bool levels = !machines.bandwidths.empty();
  const double near = levels ? machines.bandwidths.front() : machines.bandwidth;
  const double far = levels ? machines.bandwidths.back() : machines.bandwidth;
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<StageTotals> stages, totals(graph, plan, 1.0 / 3));
  const std::vector<double> entering = plain_bytes_in(graph, plan);
  double sum = 0;
  double largest = 0;
  std::int64_t devices = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const int d = plan.stages[s].replicas;
    const int size = d * plan.stages[s].degree;
    const bool part = size < host && (size & (size - 1)) == 0;
    if (d < 1 || plan.stages[s].degree > host || (!part && size % host != 0)) {
      return broken(fmt::format("stage {} has {} devices, which are no submesh", s, size));
    }
    devices += size;
    const auto held = static_cast<double>(stages.size() - s);
    const double memory = stages[s].constant + held * stages[s].in_flight / d;
    if (machines.memory_bytes > 0 && memory > machines.memory_bytes * (1 + kSlack)) {
      return broken(fmt::format("{} bytes on a device that has {}", memory, machines.memory_bytes));
    }
    const double transfer = 2 * entering[s] / d / far;
    const double reduction = 2 * stages[s].weights * (d - 1) / d / (size <= host ? near : far) /
                             static_cast<double>(machines.microbatches);
    const double time = (stages[s].forward + stages[s].backward) / d +
                        (transfer + reduction) * graph.units_per_transfer_second;
    sum += time;
    largest = std::max(largest, time);
  }
  if (devices != machines.devices) {
    return broken(fmt::format("{} devices in use, of {}", devices, machines.devices));
  }
  return sum + static_cast<double>(machines.microbatches - 1) * largest;
}

Result<double> vpipe_objective(const LayerGraph& graph,
                               const LayerMachines& machines,
                               const LayerPlan& plan,
                               const PublishedOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<StageTotals> stages, totals(graph, plan, 1.0 / 3));
  const auto host = options.find("host_bandwidth");
  const double bandwidth = host == options.end() ? 12e9 : std::stod(host->second);
  std::vector<double> enters(graph.layers.size(), 0);
  for (const LayerEdge& edge : graph.edges) {
    enters[at(edge.target)] += edge.bytes;
  }
  double slowest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const LayerStage& stage = plan.stages[s];
    if (!stage.retention.empty() && stage.retention.size() != stage.layers.size()) {
      return broken(fmt::format("stage {} says of {} activations what becomes of them, of {}",
                                s,
                                stage.retention.size(),
                                stage.layers.size()));
    }
    const auto held = static_cast<double>(stages.size() - s);
    double time = stages[s].forward + stages[s].backward;
    double memory = stages[s].constant;
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const std::size_t v = at(stage.layers[i]);
      const LayerChoice& choice = graph.layers[v].choices.front();
      const Retention kept = stage.retention.empty() ? Retention::kKeep : stage.retention[i];
      if (kept == Retention::kKeep) {
        memory += held * choice.in_flight_bytes;
      } else if (kept == Retention::kRecompute) {
        memory += held * std::min(enters[v], choice.in_flight_bytes);
        time += choice.forward();
      } else {
        const double moved = 2 * choice.in_flight_bytes / bandwidth;
        memory += choice.in_flight_bytes;
        time += std::max(0.0, moved * graph.units_per_transfer_second - choice.time);
      }
    }
    if (machines.memory_bytes > 0 && memory > machines.memory_bytes * (1 + kSlack)) {
      return broken(fmt::format(
          "{} bytes in stage {} on a device that has {}", memory, s, machines.memory_bytes));
    }
    slowest = std::max(slowest, time);
  }
  if (plan.stages.size() > at(machines.devices)) {
    return broken(fmt::format("{} stages on {} devices", plan.stages.size(), machines.devices));
  }
  return slowest;
}

}  // namespace shardplan::problem
