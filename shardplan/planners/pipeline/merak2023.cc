// Merak: An Efficient Distributed DNN Training Framework with Automated 3D Parallelism for Giant
// Foundation Models (Lai et al., TPDS 2023), its AutoPipe.
//
// The model is a chain of layers (the graph in topological order). Start: the partition with the
// least largest stage. Then breadth first: simulate 1F1B with 2 p microbatches, find the stage with
// the most passes on the critical path, and go on with (a) the stages behind it, moved as far back
// as the slack under its time allows, and (b) the partitions in which it gives its first layer to
// the stages before it, or its last one to those behind it, each side balanced again. The best
// simulated time wins. Transfers cost nothing.
//
// Deviations: the critical stage is the one with the most passes on the critical path found by
// walking back from the last task (the published code follows stage times); at most kMostPartitions
// partitions are simulated, fewer of long chains.

#include "shardplan/planners/pipeline/merak2023.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <set>
#include <span>

#include "shardplan/lower/schedule.h"
#include "shardplan/planners/pipeline/even_cut.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr std::size_t kMostPartitions = 2000;
constexpr double kMostWork = 3e8;  // steps of all simulations and balancings
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// First layers of the stages, rising from 0.
using Begins = std::vector<std::size_t>;

class AutoPipe {
 public:
  AutoPipe(std::vector<double> forward, std::vector<double> backward, lower::Schedule schedule)
      : forward_(std::move(forward)),
        backward_(std::move(backward)),
        prefix_(forward_.size() + 1, 0),
        schedule_(std::move(schedule)) {
    for (std::size_t i = 0; i < forward_.size(); ++i) {
      prefix_[i + 1] = prefix_[i] + forward_[i] + backward_[i];
    }
  }

  /// The best partition and its simulated time.
  std::pair<Begins, double> run(const solvers::Budget& budget) {
    const auto stages = static_cast<std::size_t>(schedule_.stages);
    const auto p = static_cast<double>(stages);
    const auto n = static_cast<double>(forward_.size());
    const double most =
        std::min(static_cast<double>(kMostPartitions), kMostWork / (20 * p * p + p * n * n));
    std::deque<Begins> queue = {balanced(0, forward_.size(), stages)};
    std::set<Begins> seen = {queue.front()};
    std::pair<Begins, double> best = {{}, kInfinity};
    while (!queue.empty() && (best.first.empty() || !budget.exhausted())) {
      const Begins begins = std::move(queue.front());
      queue.pop_front();
      std::size_t critical = 0;
      const double time = simulate(begins, critical);
      if (time < best.second) {
        best = {begins, time};
      }
      for (Begins& next : budget.exhausted() ? std::vector<Begins>{} : variants(begins, critical)) {
        if (static_cast<double>(seen.size()) < most && seen.insert(next).second) {
          queue.push_back(std::move(next));
        }
      }
    }
    return best;
  }

 private:
  [[nodiscard]] double load(std::size_t from, std::size_t to) const {
    return prefix_[to] - prefix_[from];
  }

  [[nodiscard]] std::size_t end_of(const Begins& begins, std::size_t stage) const {
    return stage + 1 < begins.size() ? begins[stage + 1] : forward_.size();
  }

  /// The layers from `from` to `to` in stages whose largest is least.
  [[nodiscard]] Begins balanced(std::size_t from, std::size_t to, std::size_t stages) const {
    Begins begins = even_cut(std::span(prefix_).subspan(from, to - from + 1), stages);
    for (std::size_t& begin : begins) {
      begin += from;
    }
    return begins;
  }

  /// Time of 1F1B, and the stage with the most passes on its critical path.
  double simulate(const Begins& begins, std::size_t& critical) const {
    std::vector<sim::StageTimes> times(begins.size());
    for (std::size_t s = 0; s < begins.size(); ++s) {
      for (std::size_t i = begins[s]; i < end_of(begins, s); ++i) {
        times[s].forward += forward_[i];
        times[s].backward += backward_[i];
      }
    }
    const Result<sim::ScheduleTime> time = sim::time_schedule(schedule_, times);
    if (!time) {
      return kInfinity;
    }
    critical = critical_stage(*time);
    return time->makespan;
  }

  /// Walks back from the last task: what ended when this one began, on its own device first.
  [[nodiscard]] std::size_t critical_stage(const sim::ScheduleTime& time) const {
    const std::size_t stages = schedule_.tasks.size();
    std::vector<std::int64_t> passes(stages, 0);
    std::size_t stage = 0;
    auto index = static_cast<std::ptrdiff_t>(schedule_.tasks[0].size()) - 2;  // before the update
    while (index >= 0) {
      ++passes[stage];
      const lower::Task& task = schedule_.tasks[stage][static_cast<std::size_t>(index)];
      const double start = time.tasks[stage][static_cast<std::size_t>(index)].start;
      if (index > 0 && time.tasks[stage][static_cast<std::size_t>(index - 1)].end >= start) {
        --index;
        continue;
      }
      const bool forward = task.work == lower::Work::kForward;
      if (start <= 0 || (forward ? stage == 0 : stage + 1 == stages)) {
        break;
      }
      stage = forward ? stage - 1 : stage + 1;
      const std::vector<lower::Task>& tasks = schedule_.tasks[stage];
      const auto found = std::find_if(tasks.begin(), tasks.end(), [&](const lower::Task& other) {
        return other.work == task.work && other.microbatch == task.microbatch;
      });
      index = found - tasks.begin();
    }
    return static_cast<std::size_t>(std::max_element(passes.begin(), passes.end()) -
                                    passes.begin());
  }

  [[nodiscard]] std::vector<Begins> variants(const Begins& begins, std::size_t critical) const {
    const std::size_t stages = begins.size();
    const std::size_t begin = begins[critical];
    const std::size_t end = end_of(begins, critical);
    std::vector<Begins> all;
    Begins shifted = begins;  // (a)
    for (std::size_t s = critical + 1; s + 1 < stages; ++s) {
      while (shifted[s + 1] - shifted[s] > 1 &&
             load(shifted[s + 1] - 1, end_of(shifted, s + 1)) <= load(begin, end)) {
        --shifted[s + 1];
      }
    }
    all.push_back(std::move(shifted));
    if (end - begin > 1) {  // (b)
      if (critical > 0) {
        Begins earlier = balanced(0, begin + 1, critical);
        earlier.insert(
            earlier.end(), begins.begin() + static_cast<std::ptrdiff_t>(critical), begins.end());
        earlier[critical] = begin + 1;
        all.push_back(std::move(earlier));
      }
      if (critical + 1 < stages) {
        Begins later(begins.begin(), begins.begin() + static_cast<std::ptrdiff_t>(critical) + 1);
        const Begins behind = balanced(end - 1, forward_.size(), stages - critical - 1);
        later.insert(later.end(), behind.begin(), behind.end());
        all.push_back(std::move(later));
      }
    }
    return all;
  }

  std::vector<double> forward_;
  std::vector<double> backward_;
  std::vector<double> prefix_;
  lower::Schedule schedule_;
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  const problem::LayerGraph& graph = request.graph;
  const auto stages = static_cast<std::size_t>(request.machines.devices);
  const solvers::SolveOptions options = limits_of(request);
  const solvers::Budget budget(options);
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(graph, "merak"));
  SHARDPLAN_RETURN_IF_ERROR(require_layer_for_each_device(request, "merak"));
  const std::vector<int> order = problem::topological_order(graph);
  std::vector<double> forward;
  std::vector<double> backward;
  for (const int v : order) {
    const problem::LayerChoice& choice = graph.layers[static_cast<std::size_t>(v)].choices.front();
    forward.push_back(choice.forward_time.value_or(choice.time / 4));
    backward.push_back(choice.time - forward.back());
  }
  lower::ScheduleShape shape;
  shape.devices = request.machines.devices;
  shape.microbatches = 2 * std::int64_t{request.machines.devices};
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::ScheduleInfo* info, lower::find_schedule("1f1b"));
  SHARDPLAN_ASSIGN_OR_RETURN(lower::Schedule schedule, info->make(shape));
  const auto [begins, time] = AutoPipe(forward, backward, std::move(schedule)).run(budget);
  LayerPlanResult result;
  result.limit = search_limit(budget.limit());
  result.status = SearchStatus::kFeasible;
  result.objective = time;
  result.best.schedule = "1f1b";
  result.best.microbatches = shape.microbatches;
  for (std::size_t s = 0; s < stages; ++s) {
    problem::LayerStage& stage = result.best.stages.emplace_back();
    const std::size_t end = s + 1 < stages ? begins[s + 1] : order.size();
    for (std::size_t i = begins[s]; i < end; ++i) {
      stage.layers.push_back(order[i]);
      stage.time += forward[i] + backward[i];
    }
  }
  return result;
}

}  // namespace

LayerPlannerInfo merak_planner() {
  return {"merak",
          "Lai et al., Merak: An Efficient Distributed DNN Training Framework with Automated 3D "
          "Parallelism for Giant Foundation Models",
          2023,
          "stages of a chain by simulated 1F1B, from the balanced partition onwards",
          "memory, transfers, replicas, tensor parallelism; branches (the graph becomes a chain)",
          "for twice as many microbatches as stages",
          {},
          &solve,
          &problem::merak_objective};
}

}  // namespace shardplan::planners
