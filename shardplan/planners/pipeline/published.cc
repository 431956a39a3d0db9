#include "shardplan/planners/pipeline/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "shardplan/plan/labels.h"
#include "shardplan/planners/intra/map2023.h"

namespace shardplan::planners {
namespace {

using problem::LayerStage;

/// What a method says beside its stages.
struct Traits {
  std::string_view name;
  std::string_view schedule;      ///< that its plans run in
  std::string_view deviation;     ///< of the plan from the paper's
  std::size_t levels = 1;         ///< of machines that it knows; with more it is told one
  bool recomputes = false;        ///< everything, where that is needed
  bool map_inside = false;        ///< the paper solves stages by an intra-operator planner
  Seconds time_limit = 0;         ///< where the request has none
  std::string_view refusal{};     ///< why it plans no training step; empty: it does
  int pipelines = 1;              ///< in both directions, for a schedule that has them
  std::string_view stale{};       ///< the paper's schedule, which has no flush
  bool every_microbatch = false;  ///< that schedule updates the weights
};
constexpr std::string_view kFlush = "asynchronous; run as 1f1b with a flush";
constexpr std::string_view kStale = "asynchronous where the step allows it, else 1f1b with a flush";
constexpr std::int64_t kBatches = 8;  // without a flush, for each group of devices that fills late
constexpr std::size_t kAnyLevels = 100;
constexpr Seconds kMostSeconds = 5;  // of an integer program
constexpr auto kTraits = std::to_array<Traits>({
    {"gpipe", "gpipe", "", 1, true},
    {"torchgpipe", "gpipe", "", 1, true},
    {.name = "pipedream",
     .schedule = "1f1b",
     .deviation = kStale,
     .levels = kAnyLevels,
     .stale = "pipedream",
     .every_microbatch = true},
    {.name = "pipedream_2bw", .schedule = "1f1b", .deviation = kStale, .stale = "pipedream_2bw"},
    {"piper", "1f1b", kFlush},
    {"dapple", "dapple", "", 2, true},
    {.name = "chimera",
     .schedule = "chimera",
     .deviation = "with the step's microbatches",
     .pipelines = 2},
    {"distir", "1f1b", "with the step's microbatches"},
    {"alpa", "1f1b", "", 2, false, true},
    {"dnn_partitioning_ip", "1f1b", "", 1, false, false, kMostSeconds},
    {"dnn_partitioning_latency",
     "",
     "",
     1,
     false,
     false,
     0,
     "plans queries of inference, and no training steps"},
    {"vpipe", "1f1b", "what it swaps is recomputed"},
});

Traits traits_of(std::string_view name) {
  const auto found = std::find_if(
      kTraits.begin(), kTraits.end(), [&](const Traits& traits) { return traits.name == name; });
  return found != kTraits.end() ? *found : Traits{name, "1f1b", ""};
}

/// A stage without stages inside.
struct Part {
  std::vector<int> layers{};
  std::vector<int> choices{};
  std::vector<problem::Retention> retention{};
  std::int64_t copies = 1;
  std::int64_t degree = 1;

  [[nodiscard]] std::int64_t devices() const { return copies * degree; }
};

void flatten(const std::vector<LayerStage>& stages, std::int64_t copies, std::vector<Part>& out) {
  for (const LayerStage& stage : stages) {
    if (!stage.inner.empty()) {
      flatten(stage.inner, copies * stage.replicas, out);
    } else if (!stage.layers.empty()) {
      Part part{
          stage.layers, stage.choices, stage.retention, copies * stage.replicas, stage.degree};
      part.choices.resize(part.layers.size(), 0);
      part.retention.resize(part.layers.size(), problem::Retention::kKeep);
      out.push_back(std::move(part));
    }
  }
}

/// Whether so many devices from the `first` on lie in more boxes than they need.
bool lies_across(const cluster::Cluster& cluster, std::int64_t first, std::int64_t devices) {
  std::int64_t box = 1;
  for (auto level = cluster.levels.rbegin(); level != cluster.levels.rend(); ++level) {
    box *= level->fanout;
    if (devices <= box) {
      return first / box != (first + devices - 1) / box;
    }
  }
  return false;
}

/// Data over tensor parallelism, by the rules of expert planners.
Result<StageShape> expert_shape(std::int64_t copies, std::int64_t degree) {
  StageShape shape;
  shape.devices = copies * degree;
  shape.mesh.emplace();
  if (copies > 1) {
    shape.mesh->axes.push_back({"data", copies});
  }
  if (degree > 1) {
    shape.mesh->axes.push_back({"tensor", degree});
  }
  SHARDPLAN_ASSIGN_OR_RETURN(shape.inside,
                             find_planner(degree == 1   ? "dp"
                                          : copies == 1 ? "megatron"
                                                        : "megatron_dp"));
  return shape;
}

class Publication {
 public:
  Publication(const LayerPlannerInfo& method,
              const PlanRequest& request,
              const StepLayers& layers,
              StagePlans& stages,
              Weights weights,
              const Budget& budget)
      : method_(method),
        traits_(traits_of(method.name)),
        request_(request),
        layers_(layers),
        stages_(stages),
        weights_(weights),
        budget_(budget) {}

  Result<std::vector<Candidate>> run() {
    if (!traits_.refusal.empty()) {
      return unsupported(fmt::format("{} {}", method_.name, traits_.refusal));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(StageCut cut, cut_step());
    std::vector<Candidate> candidates;
    if (weights_ == Weights::kStale && !traits_.stale.empty() && cut.groups > 1) {
      if (std::optional<Candidate> made = without_flush(cut)) {
        candidates.push_back(*std::move(made));
        return candidates;
      }
    }
    SHARDPLAN_ASSIGN_OR_RETURN(candidates.emplace_back(), plan(cut));
    const bool fits = candidates.front().simulation.peak_bytes <= memory_limit(request_);
    if (!fits && traits_.recomputes) {
      cut.recompute = plan::blocks_of(request_.step);
      SHARDPLAN_ASSIGN_OR_RETURN(candidates.emplace_back(), plan(cut));
    }
    return candidates;
  }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  /// The stages in the paper's own schedule; otherwise the note says why not.
  std::optional<Candidate> without_flush(const StageCut& cut) {
    StageCut stale = cut;
    stale.schedule = traits_.stale;
    // The pipeline fills and drains once in so many steps, of one microbatch or more.
    stale.steps = traits_.every_microbatch ? kBatches * cut.groups : kBatches;
    Result<Candidate> made = plan(stale);
    if (made && made->simulation.peak_bytes <= memory_limit(request_)) {
      return *std::move(made);
    }
    note_ = fmt::format(
        "{}: run as {} with a flush, since {}",
        method_.name,
        traits_.schedule,
        made ? "what its schedule keeps does not fit the memory" : made.error().message);
    return std::nullopt;
  }

  Result<std::vector<Part>> solve() {
    LayerRequest request{layers_.graph};
    request.machines.devices = static_cast<int>(request_.cluster.device_count());
    request.time_limit = request_.time_limit > 0 ? budget_.remaining() : traits_.time_limit;
    request.control = request_.control;
    const MachineLevels levels = machine_levels(request_.cluster);
    if (levels.sizes.size() > 1 && levels.sizes.size() <= traits_.levels) {
      request.machines.hierarchy = levels.sizes;
      request.machines.bandwidths = levels.bandwidths;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const LayerPlanResult result, solve_layers(method_, request));
    if (result.status != SearchStatus::kOptimal && result.status != SearchStatus::kFeasible) {
      return unsupported(result.explanation);
    }
    schedule_ = result.best.schedule;
    std::vector<Part> parts;
    flatten(result.best.stages, result.best.pipelines, parts);
    return parts;
  }

  Result<StageCut> cut_step() {
    SHARDPLAN_ASSIGN_OR_RETURN(std::vector<Part> parts, solve());
    const std::int64_t devices = request_.cluster.device_count();
    const std::int64_t used =
        std::accumulate(parts.begin(), parts.end(), std::int64_t{0}, [](auto sum, const Part& p) {
          return sum + p.devices();
        });
    if (used == 0 || devices % used != 0) {
      return unsupported(fmt::format("its plan uses {} of {} devices", used, devices));
    }
    StageCut cut;
    cut.schedule = traits_.schedule;
    cut.groups = static_cast<int>(parts.size());
    cut.stage_of.assign(request_.step.ops().size(), 0);
    std::int64_t first = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      Part& part = parts[p];
      part.copies *= devices / used;
      if (lies_across(request_.cluster, first, part.devices())) {
        return unsupported(
            fmt::format("its stage {} of {} devices would lie across boxes that "
                        "have room for it",
                        p,
                        part.devices()));
      }
      first += part.devices();
      SHARDPLAN_ASSIGN_OR_RETURN(const StageShape shape, expert_shape(part.copies, part.degree));
      cut.shapes.push_back(traits_.map_inside ? StageShape{shape.devices, nullptr, {}} : shape);
      for (const int layer : part.layers) {
        const Segment& segment = layers_.segments[static_cast<std::size_t>(layer)];
        std::fill(cut.stage_of.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                  cut.stage_of.begin() + static_cast<std::ptrdiff_t>(segment.end),
                  static_cast<int>(p));
      }
    }
    if (!traits_.map_inside) {
      cut.recompute = recomputed(parts);
    }
    cut.pipelines = traits_.pipelines;
    if (cut.pipelines > 1) {
      // Halves of microbatches are microbatches here, and run as doubled forward passes do.
      const bool alone = schedule_ == "chimera:concatenation" ||
                         request_.step.microbatches % 2 != 0 ||
                         request_.step.microbatches < std::int64_t{2} * cut.pipelines;
      cut.forward_group = alone ? 1 : 2;
      // Up, on the same groups.
      const std::vector<StageShape> down = cut.shapes;
      cut.shapes.insert(cut.shapes.end(), down.rbegin(), down.rend());
    }
    return cut;
  }

  [[nodiscard]] std::vector<std::string> recomputed(const std::vector<Part>& parts) const {
    std::vector<std::string> blocks;
    for (const Part& part : parts) {
      for (std::size_t i = 0; i < part.layers.size(); ++i) {
        const auto layer = static_cast<std::size_t>(part.layers[i]);
        const auto& choices = layers_.graph.layers[layer].choices;
        const std::string& block = layers_.segments[layer].block;
        const bool again = choices[static_cast<std::size_t>(part.choices[i])].name == kRecomputed ||
                           part.retention[i] != problem::Retention::kKeep;
        if (again && !block.empty()) {
          blocks.push_back(block);
        }
      }
    }
    return blocks;
  }

  Result<Candidate> plan(const StageCut& cut) {
    if (cut.groups > 1) {
      return stages_.plan(cut, budget_, request_.worth);
    }
    PlanRequest whole = request_;
    whole.mesh = cut.shapes.front().mesh;
    whole.time_limit = budget_.remaining();
    const PlannerInfo* const inside = cut.shapes.front().inside;
    SHARDPLAN_ASSIGN_OR_RETURN(PlanResult result,
                               inside != nullptr ? inside->plan(whole) : map_planner().plan(whole));
    if (result.status == SearchStatus::kNoPlanFound) {
      return unsupported(result.explanation);
    }
    if (cut.recompute) {
      result.best.recompute.clear();
      for (const std::string& block : *cut.recompute) {
        result.best.recompute.push_back({block, plan::Recompute::kWhole});
      }
    }
    return evaluate(std::move(result.best), request_.step);
  }

  const LayerPlannerInfo& method_;
  Traits traits_;
  const PlanRequest& request_;
  const StepLayers& layers_;
  StagePlans& stages_;
  Weights weights_;
  const Budget& budget_;
  std::string schedule_{};  ///< of the method's plan
  std::string note_{};
};

std::string by_name(std::string_view name, const std::string& why) {
  return why.starts_with(name) ? why : fmt::format("{}: {}", name, why);
}

Result<PlanResult> plan_model(const LayerPlannerInfo& method, const PlanRequest& request) {
  const Budget budget(request);
  PlanResult none;
  if (request.mesh) {
    none.explanation = by_name(method.name, "cuts the devices into stages, and takes no mesh");
    return none;
  }
  if (request.cluster.device_count() < 2) {
    none.explanation = by_name(method.name, "one device has no stages");
    return none;
  }
  const Result<StepLayers> layers = layers_of(request);
  if (!layers) {
    none.explanation = by_name(method.name, layers.error().message);
    return none;
  }
  const PlannerInfo inside = map_planner();
  StagePlans stages(request, inside);
  const PublishedOutcome outcome =
      plan_published(method, request, *layers, stages, Weights::kStale, budget);
  if (outcome.candidates.empty()) {
    none.limit = budget.limit();
    none.explanation = outcome.why;
    return none;
  }
  PlanResult result =
      conclude(request, method.name, outcome.candidates, memory_limit(request), {}, budget);
  if (result.explanation.empty()) {
    result.explanation = outcome.note;
  }
  return result;
}

/// Planners are plain functions: one for each row of the table of layer planners.
template <std::size_t Row>
Result<PlanResult> plan_row(const PlanRequest& request) {
  return plan_model(layer_planners()[Row], request);
}

constexpr std::size_t kMostMethods = 32;

template <std::size_t... Rows>
constexpr auto plan_rows(std::index_sequence<Rows...> /*rows*/) {
  using Plan = Result<PlanResult> (*)(const PlanRequest& request);
  return std::array<Plan, sizeof...(Rows)>{plan_row<Rows>...};
}

}  // namespace

PublishedOutcome plan_published(const LayerPlannerInfo& method,
                                const PlanRequest& request,
                                const StepLayers& layers,
                                StagePlans& stages,
                                Weights weights,
                                const Budget& budget) {
  PublishedOutcome out;
  Publication publication(method, request, layers, stages, weights, budget);
  Result<std::vector<Candidate>> made = publication.run();
  out.note = publication.note();
  if (made) {
    out.candidates = *std::move(made);
  } else {
    out.why = by_name(method.name, made.error().message);
  }
  return out;
}

std::vector<PlannerInfo> published_planners() {
  static const std::vector<std::string> summaries = [] {
    std::vector<std::string> all;
    for (const LayerPlannerInfo& method : layer_planners()) {
      const Traits traits = traits_of(method.name);
      all.push_back(traits.deviation.empty()
                        ? std::string(method.summary)
                        : fmt::format("{} ({})", method.summary, traits.deviation));
    }
    return all;
  }();
  constexpr auto kRows = plan_rows(std::make_index_sequence<kMostMethods>{});
  std::vector<PlannerInfo> all;
  for (std::size_t row = 0; row < std::min(kMostMethods, layer_planners().size()); ++row) {
    const LayerPlannerInfo& method = layer_planners()[row];
    all.push_back({method.name, method.paper, method.year, summaries[row], kRows[row]});
  }
  return all;
}

}  // namespace shardplan::planners
