#include "shardplan/cli/predict_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/cli/session.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

using cost::MegatronCandidate;
using cost::MegatronConfig;
using cost::MegatronPrediction;

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

Bytes bytes_of(const MegatronPrediction& prediction) {
  return whole_bytes(prediction.memory.total());
}

/// FLOP/s of one device.
double rate(Flops flops, const PredictedRun& run, const MegatronPrediction& prediction) {
  return flops / (prediction.time.total() * static_cast<double>(run.config.devices()));
}

double tokens_a_second(const PredictedRun& run, Seconds seconds) {
  return static_cast<double>(run.config.batch) * static_cast<double>(run.model.seq) / seconds;
}

std::string words(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    c = c == '_' ? ' ' : c;
  }
  return text;
}

nlohmann::ordered_json to_object(const MegatronCandidate& candidate) {
  return {{"configuration", to_object(candidate.config)},
          {"devices", candidate.config.devices()},
          {"step_seconds", candidate.seconds},
          {"memory_bytes", whole_bytes(candidate.bytes)}};
}

std::string mark(bool is) {
  return is ? "yes" : "";
}

}  // namespace

Bytes whole_bytes(double bytes) {
  constexpr double kMost = 9e18;
  return std::llround(std::min(bytes, kMost));
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

void print_prediction_json(const PredictedRun& run, const MegatronPrediction& prediction) {
  const Seconds seconds = prediction.time.total();
  nlohmann::ordered_json object;
  object["model"] = run.name;
  object["cluster"] = run.cluster.name;
  object["parameters"] = whole(run.model.parameters());
  object["devices"] = run.config.devices();
  object["configuration"] = to_object(run.config);
  object["software"] = run.software;
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

void print_prediction(const PredictedRun& run, const MegatronPrediction& prediction) {
  const Seconds seconds = prediction.time.total();
  fmt::print("{}: {} parameters on {} of {} devices of {}\n{}\n\n",
             run.name,
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

void print_sweep_json(const PredictedRun& run, const Swept& swept) {
  nlohmann::ordered_json object;
  object["model"] = run.name;
  object["cluster"] = run.cluster.name;
  object["batch"] = run.config.batch;
  object["memory_limit"] = run.memory;
  object["examined"] = swept.sweep.examined;
  object["fitting"] = swept.sweep.fitting;
  object["interrupted"] = swept.sweep.interrupted;
  object["search_seconds"] = swept.seconds;
  object["best"] = nlohmann::ordered_json::array();
  for (const MegatronCandidate& candidate : swept.sweep.best) {
    object["best"].push_back(to_object(candidate));
  }
  object["leanest_within_one_percent"] = to_object(swept.leanest);
  object["smallest"] = to_object(swept.sweep.smallest);
  print_json(object);
}

void print_sweep(const PredictedRun& run, const Swept& swept) {
  fmt::print("{}: {} parameters, batch {}, at most {} devices of {}\n",
             run.name,
             human_count(run.model.parameters()),
             run.config.batch,
             run.cluster.device_count(),
             run.cluster.name);
  fmt::print("{}{} configurations examined in {}, {} fit in {}\n\n",
             swept.sweep.interrupted ? "interrupted: " : "",
             swept.sweep.examined,
             human_seconds(swept.seconds),
             swept.sweep.fitting,
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
  for (const MegatronCandidate& candidate : swept.sweep.best) {
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
  fmt::print("Least memory within {:.0f} % of the best: {}, {} ({})\n",
             100 * kPlateau,
             human_bytes(whole_bytes(swept.leanest.bytes)),
             human_seconds(swept.leanest.seconds),
             layout_text(swept.leanest.config));
}

}  // namespace shardplan::cli
