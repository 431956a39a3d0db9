#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/cli/command.h"
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

/// What the options name, read.
struct Run {
  MegatronModel model{};
  cluster::Cluster cluster{};
  MegatronConfig config{};
  cost::MegatronSoftware software{};
  Bytes memory = 0;
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

Result<Run> read_run(const Options& options) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.model, "predict", "a --model"));
  SHARDPLAN_RETURN_IF_ERROR(require(options.cluster, "predict", "a --cluster"));
  Run run;
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
  }
  SHARDPLAN_ASSIGN_OR_RETURN(run.software, read_software(options.software));
  run.config = options.config;
  SHARDPLAN_ASSIGN_OR_RETURN(run.config.recompute, read_recompute(options.recompute));
  run.config.batch = options.batch_option->count() > 0 ? options.batch : gpt.batch;
  return run;
}

/// Without --dp: the replicas that fill the cluster.
Status fill_data(const Options& options, Run& run) {
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

nlohmann::ordered_json to_object(const MegatronConfig& config) {
  return {{"tp", config.tensor},
          {"pp", config.pipeline},
          {"dp", config.data},
          {"microbatch", config.microbatch},
          {"batch", config.batch},
          {"microbatches", config.microbatches()},
          {"interleave", config.interleave},
          {"sequence_parallel", config.sequence_parallel},
          {"recompute", to_string(config.recompute)},
          {"distributed_optimizer", config.distributed_optimizer},
          {"overlap_gradients", config.overlap_gradients}};
}

using Part = std::pair<std::string_view, double>;

std::vector<Part> parts_of(const cost::MegatronTime& time) {
  return {{"forward", time.forward},
          {"backward", time.backward},
          {"recompute", time.recompute},
          {"tensor_communication", time.tensor},
          {"pipeline_communication", time.pipeline},
          {"embedding_and_head", time.head},
          {"bubble", time.bubble},
          {"data_communication", time.data},
          {"optimizer", time.optimizer}};
}

std::vector<Part> parts_of(const cost::MegatronMemory& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations},
          {"recomputed_layer", memory.recomputed},
          {"embedding_and_head", memory.head},
          {"optimizer_copies", memory.copies}};
}

Bytes whole_bytes(double bytes) {
  return std::llround(bytes);
}

Bytes bytes_of(const MegatronPrediction& prediction) {
  return whole_bytes(prediction.memory.total());
}

/// FLOP/s of one device.
double rate(Flops flops, const Run& run, const MegatronPrediction& prediction) {
  return flops / (prediction.time.total() * static_cast<double>(run.config.devices()));
}

double tokens_a_second(const Run& run, Seconds seconds) {
  return static_cast<double>(run.config.batch) * static_cast<double>(run.model.seq) / seconds;
}

void print_prediction_json(const Options& options,
                           const Run& run,
                           const MegatronPrediction& prediction) {
  const Seconds seconds = prediction.time.total();
  nlohmann::ordered_json object;
  object["model"] = options.model;
  object["cluster"] = run.cluster.name;
  object["parameters"] = whole(run.model.parameters());
  object["devices"] = run.config.devices();
  object["configuration"] = to_object(run.config);
  object["software"] = options.software;
  object["step_seconds"] = seconds;
  for (const auto& [name, value] : parts_of(prediction.time)) {
    object["seconds"][name] = value;
  }
  object["hidden_data_communication_seconds"] = prediction.time.hidden_data;
  object["bubble_part"] = prediction.time.bubble / seconds;
  object["tokens_per_second"] = tokens_a_second(run, seconds);
  object["model_flops"] = prediction.model_flops;
  object["hardware_flops"] = prediction.hardware_flops;
  object["model_flops_per_second_and_device"] = rate(prediction.model_flops, run, prediction);
  object["hardware_flops_per_second_and_device"] = rate(prediction.hardware_flops, run, prediction);
  object["mfu"] = prediction.model_utilization;
  object["hfu"] = prediction.hardware_utilization;
  object["memory_bytes"] = bytes_of(prediction);
  object["memory_stage"] = prediction.memory.first_stage ? "first" : "last";
  for (const auto& [name, value] : parts_of(prediction.memory)) {
    object["memory"][name] = whole_bytes(value);
  }
  object["memory_limit"] = run.memory;
  object["fits"] = bytes_of(prediction) <= run.memory;
  print_json(object);
}

std::string words(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    c = c == '_' ? ' ' : c;
  }
  return text;
}

std::string layout_text(const MegatronConfig& c) {
  return fmt::format("tp {} · pp {}{} · dp {}, {} microbatches of {}, recompute {}{}{}{}",
                     c.tensor,
                     c.pipeline,
                     c.interleave > 1 ? fmt::format(" in {} chunks each", c.interleave) : "",
                     c.data,
                     c.microbatches(),
                     c.microbatch,
                     to_string(c.recompute),
                     c.sequence_parallel ? ", sequence parallel" : "",
                     c.distributed_optimizer ? ", distributed optimizer" : "",
                     c.overlap_gradients ? ", gradients overlapped" : "");
}

void print_prediction(const Options& options,
                      const Run& run,
                      const MegatronPrediction& prediction) {
  const Seconds seconds = prediction.time.total();
  fmt::print("{}: {} parameters on {} of {} devices of {}\n{}\n\n",
             options.model,
             human_count(run.model.parameters()),
             run.config.devices(),
             run.cluster.device_count(),
             run.cluster.name,
             layout_text(run.config));
  fmt::print("step      {}, {} tokens/s\n",
             human_seconds(seconds),
             human_count(tokens_a_second(run, seconds)));
  fmt::print("model     {}/s a device, MFU {:.1f} %\n",
             human_flops(rate(prediction.model_flops, run, prediction)),
             100 * prediction.model_utilization);
  fmt::print("hardware  {}/s a device, HFU {:.1f} %\n",
             human_flops(rate(prediction.hardware_flops, run, prediction)),
             100 * prediction.hardware_utilization);
  fmt::print("memory    {} on the {} stage; {} a device: {}\n\n",
             human_bytes(bytes_of(prediction)),
             prediction.memory.first_stage ? "first" : "last",
             human_bytes(run.memory),
             bytes_of(prediction) <= run.memory ? "fits" : "does not fit");
  TextTable time({"time of a step", "seconds", "part"});
  for (const auto& [name, value] : parts_of(prediction.time)) {
    time.add({words(name), human_seconds(value), fmt::format("{:.1f} %", 100 * value / seconds)});
  }
  TextTable memory({"memory", "bytes"});
  for (const auto& [name, value] : parts_of(prediction.memory)) {
    memory.add({words(name), human_bytes(whole_bytes(value))});
  }
  fmt::print("{}\n{}", time.text(), memory.text());
  if (prediction.memory.copies > 0) {
    fmt::print("\nOptimizer copies take the place of activations.\n");
  }
}

nlohmann::ordered_json to_object(const MegatronCandidate& candidate) {
  return {{"configuration", to_object(candidate.config)},
          {"devices", candidate.config.devices()},
          {"step_seconds", candidate.seconds},
          {"memory_bytes", whole_bytes(candidate.bytes)}};
}

void print_sweep_json(const Options& options,
                      const Run& run,
                      const MegatronSweep& swept,
                      Seconds seconds) {
  nlohmann::ordered_json object;
  object["model"] = options.model;
  object["cluster"] = run.cluster.name;
  object["batch"] = run.config.batch;
  object["memory_limit"] = run.memory;
  object["examined"] = swept.examined;
  object["fitting"] = swept.fitting;
  object["search_seconds"] = seconds;
  object["best"] = nlohmann::ordered_json::array();
  for (const MegatronCandidate& candidate : swept.best) {
    object["best"].push_back(to_object(candidate));
  }
  object["smallest"] = to_object(swept.smallest);
  print_json(object);
}

std::string mark(bool is) {
  return is ? "yes" : "";
}

void print_sweep(const Options& options,
                 const Run& run,
                 const MegatronSweep& swept,
                 Seconds seconds) {
  fmt::print("{}: {} parameters, batch {}, at most {} devices of {}\n",
             options.model,
             human_count(run.model.parameters()),
             run.config.batch,
             run.cluster.device_count(),
             run.cluster.name);
  fmt::print("{} configurations examined in {}, {} fit in {}\n\n",
             swept.examined,
             human_seconds(seconds),
             swept.fitting,
             human_bytes(run.memory));
  TextTable table({"step",
                   "memory",
                   "MFU",
                   "devices",
                   "tp",
                   "pp",
                   "dp",
                   "chunks",
                   "microbatch",
                   "recompute",
                   "sequence",
                   "split"});
  const Flops flops = cost::model_flops(run.model, run.config.batch);
  const double peak = cost::half_rate(run.cluster.device);
  for (const MegatronCandidate& candidate : swept.best) {
    const MegatronConfig& c = candidate.config;
    const double utilization =
        flops / (static_cast<double>(c.devices()) * peak * candidate.seconds);
    table.add({human_seconds(candidate.seconds),
               human_bytes(whole_bytes(candidate.bytes)),
               fmt::format("{:.1f} %", 100 * utilization),
               fmt::format("{}", c.devices()),
               fmt::format("{}", c.tensor),
               fmt::format("{}", c.pipeline),
               fmt::format("{}", c.data),
               fmt::format("{}", c.interleave),
               fmt::format("{}", c.microbatch),
               std::string(to_string(c.recompute)),
               mark(c.sequence_parallel),
               mark(c.distributed_optimizer)});
  }
  fmt::print("{}\nsequence: sequence parallelism; split: distributed optimizer (ZeRO-1).\n",
             table.text());
}

Error nothing_fits(const Run& run, const MegatronSweep& swept) {
  const std::string where = "cluster " + run.cluster.name;
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

Result<int> sweep(const Options& options, const Run& run, const Session& session) {
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
  wanted.software = run.software;
  const Seconds start = now();
  SHARDPLAN_ASSIGN_OR_RETURN(const MegatronSweep swept,
                             cost::sweep_megatron(run.model, run.cluster, wanted));
  const Seconds seconds = now() - start;
  if (swept.best.empty()) {
    return nothing_fits(run, swept);
  }
  if (session.json) {
    print_sweep_json(options, run, swept, seconds);
  } else {
    print_sweep(options, run, swept, seconds);
  }
  return 0;
}

Result<int> predict(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(Run run, read_run(options));
  if (options.sweep) {
    return sweep(options, run, session);
  }
  SHARDPLAN_RETURN_IF_ERROR(fill_data(options, run));
  SHARDPLAN_ASSIGN_OR_RETURN(
      const MegatronPrediction prediction,
      cost::predict_megatron(run.model, run.cluster, run.config, run.software));
  if (session.json) {
    print_prediction_json(options, run, prediction);
  } else {
    print_prediction(options, run, prediction);
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
