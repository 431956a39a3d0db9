#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/cli/command.h"
#include "shardplan/cli/predict_report.h"
#include "shardplan/cli/session.h"
#include "shardplan/cluster/cluster.h"
#include "shardplan/cost/megatron.h"
#include "shardplan/cost/megatron_sweep.h"
#include "shardplan/frontends/zoo_models.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

using cost::MegatronCandidate;
using cost::MegatronConfig;
using cost::MegatronModel;
using cost::MegatronPrediction;
using cost::MegatronSweep;
using cost::Recompute;

struct Options {
  std::string model{};
  std::string cluster{};
  MegatronConfig config{};
  std::int64_t data = 0;   ///< 0: not given
  std::int64_t batch = 0;  ///< 0: not given
  std::string recompute = "none";
  std::string software = "2022";
  std::string memory{};
  double matmul_efficiency = 0;  ///< 0: the cluster's
  double memory_efficiency = 0;
  bool sweep = false;
  std::int64_t top = 10;
  std::int64_t most_tensor = 0;
  const CLI::Option* data_option = nullptr;
  const CLI::Option* batch_option = nullptr;
};

Result<Recompute> read_recompute(const std::string& text) {
  const std::array kinds{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  for (const Recompute kind : kinds) {
    if (text == to_string(kind)) {
      return kind;
    }
  }
  return invalid_input(fmt::format("is none, selective or full, found '{}'", text), "--recompute");
}

Result<cost::MegatronSoftware> read_software(const std::string& text) {
  if (text == "2021") {
    return cost::MegatronSoftware{.overlap_tensor_parallel = false, .fused_accumulation = false};
  }
  if (text == "2022") {
    return cost::MegatronSoftware{};
  }
  return invalid_input(
      fmt::format("is 2021 (neither overlaps tensor-parallel collectives nor fuses gradient "
                  "accumulation) or 2022 (both), found '{}'",
                  text),
      "--software");
}

/// A reachable part that the user sets in place of the cluster's.
Status set_part(double given, const char* option, double& part) {
  if (given == 0) {
    return {};
  }
  if (!(given > 0 && given <= 1)) {
    return invalid_input(fmt::format("is a part above 0 and at most 1, found {}", given), option);
  }
  part = given;
  return {};
}

Result<PredictedRun> read_run(const Options& options) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.model, "predict", "a --model"));
  SHARDPLAN_RETURN_IF_ERROR(require(options.cluster, "predict", "a --cluster"));
  PredictedRun run;
  run.name = options.model;
  run.software = options.software;
  SHARDPLAN_ASSIGN_OR_RETURN(const frontends::GptConfig gpt, frontends::zoo_gpt(options.model));
  run.model = {.layers = gpt.layers,
               .hidden = gpt.hidden,
               .heads = gpt.heads,
               .seq = gpt.seq,
               .vocab = gpt.vocab,
               .tied = gpt.tied};
  SHARDPLAN_ASSIGN_OR_RETURN(run.cluster, cluster::load_cluster(options.cluster));
  cluster::Device& device = run.cluster.device;
  SHARDPLAN_RETURN_IF_ERROR(
      set_part(options.matmul_efficiency, "--matmul-efficiency", device.matmul_efficiency));
  SHARDPLAN_RETURN_IF_ERROR(
      set_part(options.memory_efficiency, "--memory-efficiency", device.memory_efficiency));
  run.memory = device.memory;
  if (!options.memory.empty()) {
    SHARDPLAN_ASSIGN_OR_RETURN(run.memory, parse_bytes(options.memory));
    if (run.memory < 1) {
      return invalid_input("must be at least 1 byte", "--memory");
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(run.switches, read_software(options.software));
  run.config = options.config;
  SHARDPLAN_ASSIGN_OR_RETURN(run.config.recompute, read_recompute(options.recompute));
  run.config.batch = options.batch_option->count() > 0 ? options.batch : gpt.batch;
  return run;
}

/// Without --dp: the replicas that fill the cluster.
Status fill_data(const Options& options, PredictedRun& run) {
  MegatronConfig& config = run.config;
  if (options.data_option->count() > 0) {
    config.data = options.data;
    return {};
  }
  const std::int64_t devices = run.cluster.device_count();
  const std::int64_t tensor = config.tensor;
  const std::int64_t pipeline = config.pipeline;
  if (tensor < 1 || pipeline < 1 || tensor > devices || pipeline > devices / tensor) {
    return {};  // said when the configuration is checked
  }
  if (devices % (tensor * pipeline) != 0) {
    return Error{
        ErrorCode::kInvalidInput,
        fmt::format(
            "{} devices cannot be split evenly by tp · pp = {} · {}", devices, tensor, pipeline),
        "cluster " + run.cluster.name,
        {"say with --dp how many replicas to use"}};
  }
  config.data = devices / (tensor * pipeline);
  return {};
}

/// Goes through all configurations once more; those of the best are known by now.
Result<MegatronCandidate> leanest(const PredictedRun& run,
                                  const cost::MegatronSweepOptions& wanted,
                                  const MegatronCandidate& best) {
  MegatronCandidate found = best;
  const Seconds limit = best.seconds * (1 + kPlateau);
  const auto compare = [&](const MegatronCandidate& candidate) {
    if (candidate.seconds <= limit && candidate.bytes < found.bytes) {
      found = candidate;
    }
  };
  SHARDPLAN_RETURN_IF_ERROR(cost::sweep_megatron(run.model, run.cluster, wanted, compare));
  return found;
}

Error nothing_fits(const PredictedRun& run, const MegatronSweep& swept) {
  const std::string where = "cluster " + run.cluster.name;
  if (swept.interrupted) {
    return Error{ErrorCode::kInfeasible,
                 fmt::format("interrupted; none of the first {} configurations fits in {}",
                             swept.examined,
                             human_bytes(run.memory)),
                 where,
                 {}};
  }
  if (swept.examined == 0) {
    return invalid_input("no configuration divides the model and the batch", where);
  }
  return Error{ErrorCode::kInfeasible,
               fmt::format("none of {} configurations fits in {}; the smallest needs {} ({})",
                           swept.examined,
                           human_bytes(run.memory),
                           human_bytes(whole_bytes(swept.smallest.bytes)),
                           layout_text(swept.smallest.config)),
               where,
               {"name a larger cluster"}};
}

Result<int> sweep(const Options& options, const PredictedRun& run, const Session& session) {
  if (options.top < 1 || options.top > 1000) {
    return invalid_input(fmt::format("is a whole number from 1 to 1000, found {}", options.top),
                         "--top");
  }
  if (options.most_tensor < 0) {
    return invalid_input(fmt::format("must be at least 1, found {}", options.most_tensor),
                         "--max-tp");
  }
  cost::MegatronSweepOptions wanted;
  wanted.batch = run.config.batch;
  wanted.keep = static_cast<std::size_t>(options.top);
  wanted.most_tensor = options.most_tensor;
  wanted.memory = static_cast<double>(run.memory);
  wanted.overlap_gradients = run.config.overlap_gradients;
  wanted.software = run.switches;
  wanted.control = session.control;
  const Seconds start = now();
  Swept swept;
  SHARDPLAN_ASSIGN_OR_RETURN(swept.sweep, cost::sweep_megatron(run.model, run.cluster, wanted));
  swept.seconds = now() - start;
  if (swept.sweep.best.empty()) {
    return nothing_fits(run, swept.sweep);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(swept.leanest, leanest(run, wanted, swept.sweep.best.front()));
  if (session.json) {
    print_sweep_json(run, swept);
  } else {
    print_sweep(run, swept);
  }
  return 0;
}

Result<int> predict(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(PredictedRun run, read_run(options));
  if (options.sweep) {
    return sweep(options, run, session);
  }
  SHARDPLAN_RETURN_IF_ERROR(fill_data(options, run));
  SHARDPLAN_ASSIGN_OR_RETURN(
      const MegatronPrediction prediction,
      cost::predict_megatron(run.model, run.cluster, run.config, run.switches));
  if (session.json) {
    print_prediction_json(run, prediction);
  } else {
    print_prediction(run, prediction);
  }
  return 0;
}

}  // namespace

Action add_predict(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  MegatronConfig& config = options->config;
  app.add_option("--model,model", options->model, "a GPT of the zoo, such as gpt:layers=24,...");
  app.add_option("--cluster", options->cluster, "a preset or a YAML file");
  app.add_option("--tp", config.tensor, "tensor-parallel ranks")->capture_default_str();
  app.add_option("--pp", config.pipeline, "pipeline stages")->capture_default_str();
  options->data_option =
      app.add_option("--dp", options->data, "replicas (default: as many as fill the cluster)");
  app.add_option("--microbatch", config.microbatch, "samples a microbatch")->capture_default_str();
  options->batch_option = app.add_option(
      "--batch", options->batch, "samples an iteration, of all replicas (default: the model's)");
  app.add_option("--interleave", config.interleave, "model chunks a stage")->capture_default_str();
  app.add_flag("--sequence-parallel", config.sequence_parallel, "split norms and dropout too");
  app.add_option("--recompute", options->recompute, "none, selective or full")
      ->capture_default_str();
  app.add_flag("--distributed-optimizer",
               config.distributed_optimizer,
               "split the optimizer's state over the replicas (ZeRO-1)");
  app.add_flag("--overlap-gradients",
               config.overlap_gradients,
               "reduce gradients during the last backward pass");
  app.add_option("--software", options->software, "Megatron-LM of 2021 or 2022")
      ->capture_default_str();
  app.add_option("--memory", options->memory, "bytes a device may hold (default: all it has)");
  app.add_option("--matmul-efficiency",
                 options->matmul_efficiency,
                 "reachable part of the peak (default: the cluster's)");
  app.add_option("--memory-efficiency",
                 options->memory_efficiency,
                 "reachable part of the memory bandwidth (default: the cluster's)");
  app.add_flag("--sweep", options->sweep, "try every configuration, show the best");
  app.add_option("--top", options->top, "how many the sweep shows")->capture_default_str();
  app.add_option("--max-tp", options->most_tensor, "most tensor-parallel ranks of the sweep");
  return [options](const Session& session) { return predict(*options, session); };
}

}  // namespace shardplan::cli
