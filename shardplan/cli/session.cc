#include "shardplan/cli/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardplan/frontends/frontends.h"
#include "shardplan/sim/pipeline.h"
#include "shardplan/sim/rank_memory.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

std::atomic<bool>& interrupt_flag() {
  static std::atomic<bool> flag{false};
  return flag;
}

void on_interrupt(int /*signal*/) {
  interrupt_flag().store(true, std::memory_order_relaxed);
  // The next one is not caught: it ends the program.
  std::signal(SIGINT, SIG_DFL);
}

/// Where progress stands on standard error.
class ProgressLine {
 public:
  void show(std::string_view what, double done) {
    const Seconds time = now();
    const bool terminal = ::isatty(STDERR_FILENO) == 1;
    if (time - started_ < (terminal ? kPatience : kFirstSecond) ||
        time - shown_ < (terminal ? kRedraw : kRepeat)) {
      return;
    }
    shown_ = time;
    std::string line(what);
    if (done >= 0) {
      line += fmt::format("  {:.0f} %", 100 * done);
    }
    line += fmt::format("  {:.0f} s", time - started_);
    if (terminal) {
      fmt::print(stderr, "\r\033[K{}", line);
      drawn_ = true;
    } else {
      fmt::print(stderr, "{}\n", line);
    }
    std::fflush(stderr);
  }

  void clear() {
    if (drawn_) {
      fmt::print(stderr, "\r\033[K");
      std::fflush(stderr);
      drawn_ = false;
    }
  }

 private:
  static constexpr Seconds kPatience = 0.3;
  static constexpr Seconds kFirstSecond = 1;
  static constexpr Seconds kRedraw = 0.1;
  static constexpr Seconds kRepeat = 5;

  Seconds started_ = now();
  Seconds shown_ = 0;
  bool drawn_ = false;
};

ProgressLine& progress_line() {
  static ProgressLine line;
  return line;
}

/// The model as the plan names it; a path that is not there is looked for beside the plan.
std::string find_model(const std::string& model, const std::string& plan_path) {
  const std::filesystem::path path(model);
  std::error_code ignored;
  if (path.is_absolute() || std::filesystem::exists(path, ignored)) {
    return model;
  }
  const std::filesystem::path beside = std::filesystem::path(plan_path).parent_path() / path;
  return std::filesystem::exists(beside, ignored) ? beside.string() : model;
}

sharding::StepPrice price_of(const plan::Plan& plan) {
  return cost::step_price(cost_model_of(plan));
}

}  // namespace

Control watch_terminal() {
  // The line's clock starts here, with the program.
  progress_line();
  std::signal(SIGINT, on_interrupt);
  Control control;
  control.progress = [](std::string_view what, double done) { progress_line().show(what, done); };
  control.interrupt = &interrupt_flag();
  return control;
}

void clear_progress() {
  progress_line().clear();
}

void print_json(const nlohmann::ordered_json& object) {
  clear_progress();
  fmt::print("{}\n", object.dump(2));
}

nlohmann::ordered_json number_or_null(double number) {
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json();
}

nlohmann::ordered_json whole(Flops flops) {
  constexpr double kLargest = 9e18;
  if (std::abs(flops) > kLargest) {
    return flops;
  }
  return static_cast<std::int64_t>(flops);
}

CLI::Validator number_at_least(double least) {
  const std::string range =
      least == 0 ? "0 or more" : fmt::format("a number of at least {}", least);
  return {[range, least](const std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [rest, failed] = std::from_chars(text.data(), end, value);
            const bool good =
                failed == std::errc{} && rest == end && std::isfinite(value) && value >= least;
            return good ? std::string() : fmt::format("is '{}'; expected {}", text, range);
          },
          ""};
}

Status require(const std::string& value, const std::string& command, const std::string& what) {
  if (!value.empty()) {
    return {};
  }
  return invalid_input(fmt::format("{} needs {}; see shardplan {} --help", command, what, command));
}

Seconds now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("MODEL",
                 options.model,
                 "a .pt2 archive, an .onnx file, a file in the text form, or a zoo name");
  app.add_option("--dim", options.dims, "size of a dimension that the model names, as batch=64")
      ->allow_extra_args(false);
  app.add_option("--loss",
                 options.loss,
                 "of an ONNX model: cross_entropy, nll, mse, l1, bce or bce_with_logits, with "
                 ":output=...,...; none: its first output is the loss");
  app.add_option("--target", options.target, "name of the input that --loss compares with")
      ->capture_default_str();
}

Result<plan::Binding> read_binding(const ModelOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  plan::Binding binding;
  for (const std::string& text : options.dims) {
    const std::size_t equals = text.rfind('=');
    std::int64_t size = 0;
    const char* const end = text.data() + text.size();
    const bool named = equals != std::string::npos && equals > 0;
    const auto [rest, failed] = std::from_chars(named ? text.data() + equals + 1 : end, end, size);
    if (failed != std::errc{} || rest != end || size < 1 || size > kMost) {
      return invalid_input(
          fmt::format("is '{}'; write a name and a size of at least 1, as batch=64", text),
          "--dim");
    }
    if (!binding.dims.emplace(text.substr(0, equals), size).second) {
      return invalid_input(fmt::format("'{}' is given twice", text.substr(0, equals)), "--dim");
    }
  }
  if (!options.loss.empty() && options.loss != "none") {
    binding.loss = options.loss;
    binding.target = options.target;
  }
  return binding;
}

Result<ir::Graph> load_model(const std::string& model, const plan::Binding& binding, bool weights) {
  return frontends::load_model(
      model,
      {.weights = weights, .dims = binding.dims, .loss = binding.loss, .target = binding.target});
}

void add_recipe_options(CLI::App& app, RecipeOptions& options) {
  app.add_option("--optimizer", options.optimizer, "sgd, adam or adamw, with :lr=...,...")
      ->capture_default_str();
  app.add_option("--precision", options.precision, "model (dtypes as they are), fp64, fp32 or bf16")
      ->capture_default_str();
  app.add_option("--microbatches",
                 options.microbatches,
                 "pieces of the batch; gradients add up; auto: search for it (plan, compare)")
      ->capture_default_str();
  app.add_option("--clip-norm", options.clip_norm, "limit of the global gradient norm; 0 = none")
      ->capture_default_str();
}

Result<training::Recipe> read_recipe(const RecipeOptions& options) {
  training::Recipe recipe;
  SHARDPLAN_ASSIGN_OR_RETURN(recipe.optimizer, training::parse_optimizer(options.optimizer));
  SHARDPLAN_ASSIGN_OR_RETURN(recipe.precision, training::parse_precision(options.precision));
  const std::string& count = options.microbatches;
  const char* const end = count.data() + count.size();
  const auto [rest, failed] = std::from_chars(count.data(), end, recipe.microbatches);
  if (failed != std::errc{} || rest != end || recipe.microbatches < 1) {
    return invalid_input(
        fmt::format("--microbatches is {}; it must be a whole number {}{}",
                    count,
                    failed == std::errc::result_out_of_range ? "up to 2^63 - 1" : "of at least 1",
                    count == kAuto ? " (plan and compare find one themselves)" : ""));
  }
  if (!(options.clip_norm >= 0) || std::isinf(options.clip_norm)) {
    return invalid_input(fmt::format(
        "--clip-norm is {}; it must be 0 (no clipping) or a positive number", options.clip_norm));
  }
  recipe.clip_norm = options.clip_norm;
  return recipe;
}

cost::CostModel cost_model_of(const plan::Plan& plan) {
  return cost::CostModel(plan.cluster, plan.mesh);
}

Result<LoadedPlan> load_plan(const std::string& path, const LoadPlanOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string json, read_file(path));
  SHARDPLAN_ASSIGN_OR_RETURN(const plan::Plan header, plan::parse_header(json, path));
  SHARDPLAN_ASSIGN_OR_RETURN(
      const ir::Graph forward,
      load_model(find_model(header.model, path), header.binding, options.weights));
  LoadedPlan loaded;
  SHARDPLAN_ASSIGN_OR_RETURN(loaded.step, training::build_training_step(forward, header.recipe));
  SHARDPLAN_ASSIGN_OR_RETURN(loaded.plan, plan::from_json(json, loaded.step, path));
  if (loaded.plan.pipeline) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        loaded.pipeline,
        lower::lower_pipeline(
            loaded.step,
            loaded.plan,
            price_of,
            {.keep_gradients = options.keep_gradients && loaded.plan.pipeline->steps == 1}));
    return loaded;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(loaded.program,
                             lower::lower(loaded.step,
                                          loaded.plan,
                                          price_of(loaded.plan),
                                          {.keep_gradients = options.keep_gradients,
                                           .overlap = loaded.plan.cluster.local}));
  return loaded;
}

Result<Predicted> predict(const LoadedPlan& loaded, bool timeline) {
  const sim::SimOptions options{.timeline = timeline, .overlap = !loaded.plan.cluster.local};
  Predicted out;
  if (!loaded.pipeline || !loaded.plan.pipeline) {
    out.simulation =
        sim::simulate(loaded.program, loaded.step, cost_model_of(loaded.plan), options);
    out.peak_bytes = sim::rank_peaks(loaded.program, loaded.step);
    out.trace = timeline ? sim::chrome_trace(out.simulation) : "";
    return out;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(
      sim::PipelineSimulation simulated,
      sim::simulate_pipeline(
          *loaded.pipeline, loaded.plan.cluster, loaded.plan.pipeline->stages, options));
  for (std::int64_t rank = 0; rank < loaded.ranks(); ++rank) {
    out.peak_bytes.push_back(
        simulated.peak_bytes[static_cast<std::size_t>(loaded.pipeline->device_of_rank(rank))]);
  }
  out.trace = timeline ? sim::chrome_trace(simulated, *loaded.pipeline) : "";
  out.simulation = std::move(simulated.step);
  return out;
}

std::string shape_text(const plan::Plan& plan) {
  if (!plan.pipeline) {
    return cluster::to_string(plan.mesh);
  }
  const std::vector<plan::Plan>& stages = plan.pipeline->stages;
  const int pipelines = plan.pipeline->pipelines;
  const std::size_t of_one = stages.size() / static_cast<std::size_t>(pipelines);
  std::string text = fmt::format("{} stages", of_one);
  if (pipelines > 1) {
    text += fmt::format(" in {} pipelines", pipelines);
  }
  const bool equal = std::all_of(stages.begin(), stages.end(), [&](const plan::Plan& stage) {
    return stage.mesh == stages.front().mesh;
  });
  if (!equal) {
    text += " of several meshes";
  } else if (stages.front().mesh.size() > 1) {
    text += " of " + cluster::to_string(stages.front().mesh);
  }
  if (static_cast<int>(of_one) != plan.pipeline->devices) {
    text += fmt::format(" on {} groups", plan.pipeline->devices);
  }
  text += ", " + plan.pipeline->schedule;
  return plan.pipeline->steps == 1 ? text : text + ", stale weights";
}

}  // namespace shardplan::cli
