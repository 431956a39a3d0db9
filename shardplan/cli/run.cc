#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "shardplan/cli/command.h"
#include "shardplan/cli/session.h"
#include "shardplan/support/text.h"
#ifdef SHARDPLAN_WITH_RUNTIME
#include "shardplan/runtime/runtime.h"
#endif

namespace shardplan::cli {

namespace {

struct Options {
  std::string plan{};
  int steps = 3;
  bool verify = false;
  std::uint64_t seed = 0;
  int threads = 1;
  Seconds timeout = 60;
  bool random_weights = false;
  bool oversubscribe = false;
  bool times = false;
};

#ifdef SHARDPLAN_WITH_RUNTIME

/// More ranks than this for each core make a run that looks like a hang.
constexpr std::int64_t kMostRanksPerCore = 8;

/// A file that was exported without weights cannot be trained from them.
Status check_weights(const LoadedPlan& loaded, bool random_weights) {
  if (random_weights ||
      !(loaded.plan.model.ends_with(".pt2") || loaded.plan.model.ends_with(".onnx"))) {
    return {};
  }
  const auto missing =
      std::find_if(loaded.step.values().begin(), loaded.step.values().end(), [](const auto& value) {
        return value.kind == ir::ValueKind::kParameter && value.data == nullptr &&
               value.type.numel() > 0;
      });
  if (missing == loaded.step.values().end()) {
    return {};
  }
  return Error{
      ErrorCode::kInvalidInput,
      fmt::format("holds no data of parameter '{}' (was it exported under the meta device?)",
                  missing->name),
      loaded.plan.model,
      {"export it with its weights, or run with --random-weights"}};
}

Status check_ranks(std::int64_t ranks, bool oversubscribe) {
  const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  if (ranks <= kMostRanksPerCore * cores || oversubscribe) {
    return {};
  }
  return Error{ErrorCode::kInvalidInput,
               fmt::format("the plan needs {} ranks and this machine has {} {}",
                           ranks,
                           cores,
                           cores == 1 ? "core" : "cores"),
               "",
               {"plan for fewer devices (--cluster local:N), start the ranks on several machines "
                "with torchrun, or insist with --oversubscribe"}};
}

/// What rank 0 tells of a run: predictions of the very Program that ran, beside what was measured.
struct Outcome {
  runtime::RunReport report{};
  Predicted predicted{};
  std::int64_t steps = 1;  ///< that follow each other without a flush

  /// Needs a timeline.
  [[nodiscard]] std::map<std::string, Seconds> predicted_by_name() const {
    std::map<std::string, Seconds> out;
    for (const sim::Event& event : predicted.simulation.timeline) {
      out[event.name] += (event.end - event.start) / static_cast<double>(steps);
    }
    return out;
  }
  [[nodiscard]] double memory_difference(std::size_t rank) const {
    return static_cast<double>(report.measured_peak_bytes[rank]) /
               static_cast<double>(predicted.peak_bytes[rank]) -
           1;
  }
};

nlohmann::ordered_json to_object(const Outcome& outcome, const Options& options) {
  const runtime::RunReport& report = outcome.report;
  nlohmann::ordered_json object;
  object["ok"] = report.ok;
  object["verified"] = options.verify;
  object["max_relative_error"] = report.max_relative_error;
  object["worst_tensor"] = report.worst_tensor;
  object["steps_a_run"] = outcome.steps;
  object["losses"] = report.losses;
  object["reference_losses"] = report.reference_losses;
  object["predicted_peak_bytes"] = outcome.predicted.peak_bytes;
  object["measured_peak_bytes"] = report.measured_peak_bytes;
  object["predicted_step_seconds"] = outcome.predicted.simulation.step_seconds;
  object["measured_step_seconds"] = report.measured_step_seconds;
  object["measured_rank_seconds"] = report.measured_rank_seconds;
  object["step_seconds"] = report.step_seconds;
  if (options.times) {
    object["seconds_by_name"] = report.seconds_by_name;
    object["predicted_seconds_by_name"] = outcome.predicted_by_name();
  }
  return object;
}

/// The largest first.
void print_times(const Outcome& outcome) {
  std::map<std::string, Seconds> predicted = outcome.predicted_by_name();
  std::vector<std::pair<std::string, Seconds>> measured(outcome.report.seconds_by_name.begin(),
                                                        outcome.report.seconds_by_name.end());
  std::stable_sort(measured.begin(), measured.end(), [](const auto& a, const auto& b) {
    return a.second > b.second;
  });
  TextTable table({"what", "predicted", "measured"});
  for (const auto& [name, seconds] : measured) {
    table.add({name, human_seconds(predicted[name]), human_seconds(seconds)});
  }
  fmt::print("{}\n", table.text());
}

void print_outcome(const Outcome& outcome, const LoadedPlan& loaded, const Options& options) {
  const runtime::RunReport& report = outcome.report;
  fmt::print("plan      {} of {}, mesh {}\n\n",
             loaded.plan.planner,
             loaded.plan.model,
             shape_text(loaded.plan));
  const std::int64_t steps = outcome.steps;
  std::vector<std::string> columns = {steps == 1 ? "step" : "run", "loss"};
  if (steps > 1) {
    fmt::print("a run is {} steps without a flush, with stale weights; its loss is their mean\n\n",
               steps);
  }
  if (options.verify) {
    columns.emplace_back(steps == 1 ? "one device" : "one device, as stale");
  }
  TextTable losses(columns);
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    std::vector<std::string> row{fmt::format("{}", i + 1), fmt::format("{:.6f}", report.losses[i])};
    if (i < report.reference_losses.size()) {
      row.push_back(fmt::format("{:.6f}", report.reference_losses[i]));
    }
    losses.add(std::move(row));
  }
  fmt::print("{}\n", losses.text());

  TextTable ranks(
      {"rank", "peak predicted", "measured", "difference", "step predicted", "measured"});
  for (std::size_t rank = 0; rank < report.measured_peak_bytes.size(); ++rank) {
    ranks.add({fmt::format("{}", rank),
               human_bytes(outcome.predicted.peak_bytes[rank]),
               human_bytes(report.measured_peak_bytes[rank]),
               fmt::format("{:+.2f} %", 100 * outcome.memory_difference(rank)),
               human_seconds(outcome.predicted.simulation.step_seconds),
               human_seconds(report.measured_rank_seconds[rank])});
  }
  fmt::print("{}\n", ranks.text());
  if (options.times) {
    print_times(outcome);
  }
  if (options.verify) {
    fmt::print("verify    {}: largest difference from one device{} {:.2g}{}\n",
               report.ok ? "equal" : "NOT EQUAL",
               steps == 1 ? "" : " that computes with weights as stale, not from training on one,",
               report.max_relative_error,
               report.worst_tensor.empty() ? "" : fmt::format(" ({})", report.worst_tensor));
  }
}

/// What to try where a difference may be rounding that the model magnifies: one unit in the last
/// place puts an element on the other side of a ReLU's zero or makes another one the maximum, and
/// the gradient is another one. In fp64 that is too rare to be met.
std::vector<std::string> notes_on_rounding(const ir::Graph& step) {
  const bool narrow =
      std::any_of(step.values().begin(), step.values().end(), [](const ir::Value& value) {
        return value.kind == ir::ValueKind::kParameter && ir::is_floating(value.type.dtype) &&
               value.type.dtype != ir::DType::kFloat64;
      });
  if (!narrow) {
    return {};
  }
  return {"a model may magnify rounding by as much: a plan made with --precision fp64 tells"};
}

Result<int> run_here(const LoadedPlan& loaded,
                     const runtime::RankInfo& rank,
                     const runtime::RunOptions& run_options,
                     const Options& options,
                     const Session& session) {
  Control control = session.control;
  if (rank.rank != 0) {
    control.progress = {};
  }
  Result<runtime::RunReport> report =
      loaded.pipeline
          ? runtime::run_rank(
                loaded.step, loaded.plan, *loaded.pipeline, rank, run_options, control)
          : runtime::run_rank(loaded.step, loaded.plan, loaded.program, rank, run_options, control);
  if (!report) {
    return std::move(report).error();
  }
  if (rank.rank != 0) {
    return report->ok ? 0 : 1;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Predicted predicted, predict(loaded, options.times));
  const std::int64_t steps = loaded.plan.pipeline ? loaded.plan.pipeline->steps : 1;
  const Outcome outcome{std::move(*report), std::move(predicted), steps};
  if (session.json) {
    print_json(to_object(outcome, options));
  } else {
    clear_progress();
    print_outcome(outcome, loaded, options);
  }
  if (!outcome.report.ok) {
    return Error{ErrorCode::kNotEqual,
                 fmt::format("the run is not equal to one device: {} differs by {:.3g} of its "
                             "largest magnitude",
                             outcome.report.worst_tensor,
                             outcome.report.max_relative_error),
                 "",
                 notes_on_rounding(loaded.step)};
  }
  return 0;
}

Result<int> run(const Options& options, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.plan, "run", "a PLAN file"));
  const runtime::RunOptions run_options{.steps = options.steps,
                                        .verify = options.verify,
                                        .seed = options.seed,
                                        .threads_per_rank = options.threads,
                                        .timeout = options.timeout};
  const std::optional<runtime::RankInfo> rank = runtime::rank_from_environment();
  std::int64_t ranks = 1;
  {
    // The launching process reads everything too, so that a wrong input is told once and at once;
    // it lets go of the weights before it starts the ranks.
    SHARDPLAN_ASSIGN_OR_RETURN(
        const LoadedPlan loaded,
        load_plan(options.plan,
                  {.weights = !options.random_weights, .keep_gradients = options.verify}));
    SHARDPLAN_RETURN_IF_ERROR(check_weights(loaded, options.random_weights));
    ranks = loaded.ranks();
    if (rank && rank->world_size != ranks) {
      return invalid_input(
          fmt::format(
              "the plan needs {} ranks and {} were started (WORLD_SIZE)", ranks, rank->world_size),
          options.plan);
    }
    if (rank || ranks == 1) {
      return run_here(loaded, rank.value_or(runtime::RankInfo{}), run_options, options, session);
    }
    SHARDPLAN_RETURN_IF_ERROR(check_ranks(ranks, options.oversubscribe));
  }
  return runtime::launch_local(
      static_cast<int>(ranks), session.arguments, run_options, session.control);
}

#else

Result<int> run(const Options& /*options*/, const Session& /*session*/) {
  return Error{ErrorCode::kUnsupported,
               "this build has no runtime",
               "run",
               {"build with torch (make build) and use build/shardplan"}};
}

#endif

}  // namespace

Action add_run(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("PLAN", options->plan, "file that shardplan plan wrote");
  app.add_option("--steps", options->steps, "training steps")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--verify", options->verify, "compare losses, gradients and weights to one device");
  app.add_option("--seed", options->seed, "of inputs, dropout and random weights")
      ->check(number_at_least(0))
      ->capture_default_str();
  app.add_option("--threads", options->threads, "threads of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--timeout", options->timeout, "seconds of silence after which a rank has hung")
      ->check(number_at_least(0.001))
      ->capture_default_str();
  app.add_flag("--random-weights", options->random_weights, "also where the file holds weights");
  app.add_flag("--times", options->times, "where the time of a step goes, beside the prediction");
  app.add_flag("--oversubscribe", options->oversubscribe, "any number of ranks for a core");
  return [options](const Session& session) { return run(*options, session); };
}

}  // namespace shardplan::cli
