// Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines (Li and
// Hoefler, SC 2021), its section on the choice of a configuration.
//
// There is no search for cuts: D equal stages, W replicas of the whole, W D devices. The microbatch
// is as large as fits the memory (a power of two of the profile's). Then, over all W and D, the
// least
//   T = (F + p2p) C_f + (B + p2p) C_b + what the all-reduces take longer,
// where C_f and C_b count the passes on the critical path of the schedule. Here the schedule is run
// with the times of its stages (sim::time_schedule), which counts them exactly and takes stages
// that are not quite equal as they are. The gradients of a stage are summed over its 2W copies by
// Rabenseifner's algorithm, 2 log2(r) alpha + 2 (r - 1)/r bytes/bandwidth, from the stage's last
// backward pass on, one after the other on each device.
//
// Deviations: all three ways of scaling are tried where they apply (the paper chooses by hand);
// recomputation of everything is tried where the profile has it.

#include "shardplan/planners/pipeline/chimera2021.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "shardplan/lower/schedule.h"
#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostPasses = 1 << 21;  // of a schedule; bubbles are gone long before
constexpr auto kScalings =
    std::to_array<std::string_view>({"concatenation", "doubling", "halving"});

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// One configuration of equal stages.
struct Configuration {
  std::vector<std::vector<int>> stages{};
  std::vector<int> choices{};
  std::vector<StageSums> sums{};
  int copies = 1;           // W
  std::int64_t size = 1;    // microbatches of the profile in one of the pipeline's
  std::size_t scaling = 0;  // of kScalings
  lower::Schedule schedule{};
};

/// The most bytes on a device: weights of its two stages, and what is in flight of each.
double memory_of(const Configuration& configuration) {
  const lower::Schedule& schedule = configuration.schedule;
  // Halves of microbatches hold half as much.
  const double share =
      static_cast<double>(configuration.size) / (configuration.scaling == 2 ? 2 : 1);
  double most = 0;
  for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
    double constant = 0;
    for (const std::vector<int>& device_of : schedule.device_of) {
      for (std::size_t s = 0; s < device_of.size(); ++s) {
        constant += at(device_of[s]) == device ? configuration.sums[s].constant_bytes : 0;
      }
    }
    double held = 0;
    double peak = 0;
    for (const lower::Task& task : schedule.tasks[device]) {
      const double bytes = share * configuration.sums[at(task.stage)].in_flight_bytes;
      held += task.work == lower::Work::kForward ? bytes : 0;
      peak = std::max(peak, held);
      held -= task.work == lower::Work::kBackward ? bytes : 0;
    }
    most = std::max(most, constant + peak);
  }
  return most;
}

class Chooser {
 public:
  Chooser(const LayerRequest& request, double alpha)
      : request_(request),
        options_(limits_of(request)),
        budget_(options_),
        equal_(request.graph),
        alpha_(alpha) {}

  LayerPlanResult run() {
    const problem::LayerMachines& machines = request_.machines;
    for (int depth = 2; depth <= std::min(equal_.blocks(), machines.devices); depth += 2) {
      if (machines.devices % depth != 0 ||
          machines.microbatches % (machines.devices / depth) != 0) {
        continue;
      }
      for (int variant = 0;; ++variant) {
        Configuration configuration;
        configuration.choices = uniform_choice(request_.graph, 1, variant);
        if (configuration.choices.empty()) {
          break;
        }
        configuration.stages = equal_.cut(depth);
        configuration.sums =
            stage_sums(request_.graph, configuration.stages, configuration.choices);
        configuration.copies = machines.devices / depth;
        for (configuration.scaling = 0;
             configuration.scaling < kScalings.size() && !budget_.exhausted();
             ++configuration.scaling) {
          choose_size(configuration);
        }
      }
    }
    result_.limit = search_limit(budget_.limit());
    if (result_.objective == kInfinity && result_.limit != SearchLimit::kNone) {
      result_.explanation = "the search was stopped before it found a plan";
      return result_;
    }
    if (result_.objective == kInfinity) {
      result_.status = SearchStatus::kInfeasible;
      result_.explanation =
          least_memory_ < kInfinity
              ? fmt::format("no even depth fits {:.6g} bytes a device; the closest needs {:.6g}",
                            machines.memory_bytes,
                            least_memory_)
              : fmt::format(
                    "no even depth divides {} devices so that its copies share {} "
                    "microbatches evenly",
                    machines.devices,
                    machines.microbatches);
      return result_;
    }
    result_.status = SearchStatus::kFeasible;
    return result_;
  }

 private:
  /// The largest microbatch that fits, and its time.
  void choose_size(Configuration& configuration) {
    const std::int64_t own = request_.machines.microbatches / configuration.copies;
    std::int64_t size = 1;
    while (own % (2 * size) == 0) {
      size *= 2;
    }
    for (; size >= 1 && !budget_.exhausted(); size /= 2) {
      configuration.size = size;
      lower::ScheduleShape shape;
      shape.devices = static_cast<int>(configuration.stages.size());
      shape.microbatches = own / size;
      shape.scaling = static_cast<lower::ChimeraScaling>(configuration.scaling);
      if (shape.microbatches * shape.devices > kMostPasses) {
        continue;
      }
      const Result<const lower::ScheduleInfo*> info = lower::find_schedule("chimera");
      Result<lower::Schedule> schedule = (*info)->make(shape);
      if (!schedule) {
        continue;  // doubling of an odd number
      }
      configuration.schedule = std::move(*schedule);
      const double memory = memory_of(configuration);
      least_memory_ = std::min(least_memory_, memory);
      if (request_.machines.memory_bytes <= 0 || memory <= request_.machines.memory_bytes) {
        consider(configuration, memory);
        return;
      }
    }
  }

  [[nodiscard]] double seconds(double bytes) const {
    return bytes / request_.machines.bandwidth * request_.graph.units_per_transfer_second;
  }

  void consider(const Configuration& configuration, double memory) {
    const double share =
        static_cast<double>(configuration.size) / (configuration.scaling == 2 ? 2 : 1);
    std::vector<sim::StageTimes> times(configuration.sums.size());
    for (std::size_t s = 0; s < times.size(); ++s) {
      const StageSums& sums = configuration.sums[s];
      times[s].forward = share * sums.forward;
      times[s].backward = share * sums.backward;
      times[s].send_forward = seconds(share * sums.out_bytes);
      times[s].send_backward = seconds(share * sums.in_bytes);
    }
    const Result<sim::ScheduleTime> time = sim::time_schedule(configuration.schedule, times);
    if (!time) {
      return;
    }
    const double total = with_reduction(configuration, *time);
    if (total < result_.objective) {
      result_.objective = total;
      take(configuration, memory);
    }
  }

  /// The end of the batch with each stage's gradients summed from its last backward pass on.
  [[nodiscard]] double with_reduction(const Configuration& configuration,
                                      const sim::ScheduleTime& time) const {
    const lower::Schedule& schedule = configuration.schedule;
    std::vector<double> ready(at(schedule.stages), 0);
    for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
      for (std::size_t i = 0; i < schedule.tasks[device].size(); ++i) {
        const lower::Task& task = schedule.tasks[device][i];
        if (task.work == lower::Work::kBackward) {
          ready[at(task.stage)] = std::max(ready[at(task.stage)], time.tasks[device][i].end);
        }
      }
    }
    const double r = 2.0 * configuration.copies;
    double end = time.makespan;
    for (int s = 0; s < schedule.stages / 2; ++s) {  // a device has stages s and D - 1 - s
      const int other = schedule.stages - 1 - s;
      const auto reduce = [&](int stage) {
        return 2 * std::log2(r) * alpha_ * request_.graph.units_per_transfer_second +
               seconds(2 * (r - 1) / r * configuration.sums[at(stage)].parameter_bytes);
      };
      const bool first = ready[at(s)] <= ready[at(other)];
      const int early = first ? s : other;
      const int late = first ? other : s;
      const double free = ready[at(early)] + reduce(early);
      end = std::max(end, std::max(free, ready[at(late)]) + reduce(late));
    }
    return end;
  }

  void take(const Configuration& configuration, double memory) {
    problem::LayerPlan& plan = result_.best;
    plan.stages.clear();
    for (std::size_t s = 0; s < configuration.stages.size(); ++s) {
      problem::LayerStage& stage = plan.stages.emplace_back();
      stage.layers = configuration.stages[s];
      for (const int v : stage.layers) {
        stage.choices.push_back(configuration.choices[at(v)]);
      }
      stage.time = static_cast<double>(configuration.size) *
                   (configuration.sums[s].forward + configuration.sums[s].backward);
      stage.memory_bytes = memory;
    }
    plan.pipelines = configuration.copies;
    plan.microbatches = request_.machines.microbatches / configuration.copies / configuration.size;
    plan.schedule = fmt::format("chimera:{}", kScalings.at(configuration.scaling));
  }

  const LayerRequest& request_;
  solvers::SolveOptions options_;
  solvers::Budget budget_;
  EqualStages equal_;
  double alpha_;
  LayerPlanResult result_{};
  double least_memory_ = kInfinity;
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "chimera"));
  SHARDPLAN_RETURN_IF_ERROR(require_batch_and_bandwidth(request, "chimera"));
  if (request.machines.devices % 2 != 0) {
    return unsupported(fmt::format("chimera's pipelines in two directions need an even number of "
                                   "devices, not {}",
                                   request.machines.devices),
                       "--devices");
  }
  return Chooser(request, std::stod(request.options.at("alpha"))).run();
}

}  // namespace

LayerPlannerInfo chimera_planner() {
  return {"chimera",
          "Li and Hoefler, Chimera: Efficiently Training Large-Scale Neural Networks with "
          "Bidirectional Pipelines",
          2021,
          "replicas, depth, microbatch and scaling of equal stages for pipelines in two directions",
          "unequal stages, tensor parallelism, an odd number of devices",
          "a batch",
          {{"alpha", "0", {}, "seconds that one message of an all-reduce takes at least"}},
          &solve,
          &problem::chimera_objective};
}

}  // namespace shardplan::planners
