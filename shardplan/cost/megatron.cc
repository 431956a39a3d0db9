#include "shardplan/cost/megatron.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/cost/megatron_terms.h"

namespace shardplan::cost {
namespace {

/// Sizes stay whole numbers of a double, also when some are multiplied.
constexpr std::int64_t kMost = std::int64_t{1} << 31;

Status divides(const std::string& what,
               std::int64_t whole,
               const std::string& by,
               std::int64_t part) {
  if (whole % part == 0) {
    return {};
  }
  return invalid_input(std::to_string(whole) + " " + what + " cannot be split evenly by " + by +
                       " = " + std::to_string(part));
}

std::string product_text(std::int64_t a, std::int64_t b) {
  return std::to_string(a) + " · " + std::to_string(b);
}

Status check_counts(const MegatronConfig& c) {
  for (const auto& [what, count] : {std::pair<const char*, std::int64_t>{"tp", c.tensor},
                                    {"pp", c.pipeline},
                                    {"dp", c.data},
                                    {"microbatch", c.microbatch},
                                    {"batch", c.batch},
                                    {"interleave", c.interleave}}) {
    SHARDPLAN_RETURN_IF_ERROR(count_in_range(what, count));
  }
  return {};
}

Status check_devices(const cluster::Cluster& cluster, const MegatronConfig& c) {
  const std::int64_t have = cluster.device_count();
  // Each factor alone first: the product of three could overflow.
  if (c.tensor <= have && c.pipeline <= have / c.tensor && c.data <= have / c.tensor / c.pipeline) {
    return {};
  }
  return Error{ErrorCode::kInvalidInput,
               "tp · pp · dp = " + product_text(c.tensor, c.pipeline) + " · " +
                   std::to_string(c.data) + " needs more devices than the " + std::to_string(have) +
                   " of " + cluster.name,
               "",
               {"name a larger cluster, or lower one of the three"}};
}

Status check_stages(const MegatronModel& model, const MegatronConfig& c) {
  if (c.pipeline > model.layers) {
    return invalid_input("more stages than layers: pp = " + std::to_string(c.pipeline) + ", " +
                         std::to_string(model.layers) + " layers");
  }
  if (c.interleave > 1 && c.pipeline == 1) {
    return invalid_input("interleave = " + std::to_string(c.interleave) +
                         " has nothing to interleave with on one stage; give pp of at least 2");
  }
  if (c.interleave > model.layers / c.pipeline) {
    return invalid_input(
        "more chunks than layers: pp · interleave = " + product_text(c.pipeline, c.interleave) +
        ", " + std::to_string(model.layers) + " layers");
  }
  return divides("layers",
                 model.layers,
                 c.interleave > 1 ? "pp · interleave" : "pp",
                 c.pipeline * c.interleave);
}

Status check_batch(const MegatronConfig& c) {
  if (c.data > c.batch || c.microbatch > c.batch / c.data ||
      c.batch % (c.data * c.microbatch) != 0) {
    return invalid_input(
        "a batch of " + std::to_string(c.batch) +
        " cannot be split evenly by dp · microbatch = " + product_text(c.data, c.microbatch));
  }
  if (c.interleave > 1 && c.microbatches() % c.pipeline != 0) {
    return Error{ErrorCode::kInvalidInput,
                 "interleaving needs microbatches in groups of pp = " + std::to_string(c.pipeline) +
                     ", found " + std::to_string(c.microbatches()),
                 "",
                 {"microbatches are batch / (dp · microbatch)"}};
  }
  return {};
}

/// One microbatch on a stage, by part, then all of them.
MegatronTime time_of(const MegatronTerms& terms,
                     const MegatronConfig& c,
                     const MegatronPlacement& placement) {
  const MegatronLayerTime layer =
      terms.layer_time(c.tensor, placement.tensor, c.microbatch, c.sequence_parallel);
  const double layers = number(terms.model().layers) / number(c.pipeline);
  const double m = number(c.microbatches());
  const double v = number(c.interleave);
  MegatronTime once;
  once.forward = layers * layer.forward;
  once.backward = layers * (layer.backward + (c.microbatches() > 1 ? layer.accumulate : 0));
  once.recompute = layers * layer.recomputed(c.recompute);
  const Seconds backward_tensor =
      layers * (layer.backward_tensor + layer.recomputed_tensor(c.recompute));
  once.tensor = layers * layer.forward_tensor + backward_tensor;
  if (c.pipeline > 1) {
    once.pipeline =
        2 * v *
        (terms.send(c.tensor, terms.links(placement.pipeline), c.microbatch) + layer.received);
  }
  MegatronTime time;
  time.bubble = (number(c.pipeline) - 1) / v * once.total();
  time.forward = m * once.forward;
  time.backward = m * once.backward;
  time.recompute = m * once.recompute;
  time.tensor = m * once.tensor;
  time.pipeline = m * once.pipeline;
  time.head =
      m * (c.pipeline == 1 ? layer.head + layer.embedding : std::max(layer.head, layer.embedding));
  const MegatronDataTime data = terms.data_time(
      terms.share(c.tensor, c.pipeline), placement, c.data, c.distributed_optimizer);
  if (c.overlap_gradients) {
    time.hidden_data = std::min(data.reduce, once.backward + once.recompute + backward_tensor);
  }
  time.data = data.reduce - time.hidden_data + data.gather + data.tie;
  time.optimizer = data.optimizer;
  return time;
}

MegatronMemory memory_of_stage(const MegatronTerms& terms, const MegatronConfig& c, bool first) {
  const MegatronShare share = terms.share(c.tensor, c.pipeline);
  const MegatronLayerBytes layer =
      terms.layer_bytes(c.tensor, c.microbatch, c.sequence_parallel, c.recompute);
  const MegatronInFlight in_flight = megatron_in_flight(c.pipeline, c.interleave, c.microbatches());
  const double parameters = first ? share.first : share.last;
  const double own = c.distributed_optimizer ? parameters / number(c.data) : parameters;
  MegatronMemory memory;
  memory.first_stage = first;
  memory.parameters = 2 * parameters;
  memory.gradients = terms.software().gradient_bytes() * parameters;
  memory.optimizer = 12 * own;
  memory.activations = (first ? in_flight.first : in_flight.last) *
                       (number(terms.model().layers) / number(c.pipeline)) * layer.kept;
  memory.recomputed = layer.recomputed;
  memory.head = (first ? in_flight.inputs * layer.embedding : 0) +
                (!first || c.pipeline == 1 ? layer.head : 0);
  memory.copies = terms.software().fused_accumulation ? 0 : 4 * own;
  return memory;
}

}  // namespace

Status count_in_range(const char* what, std::int64_t count) {
  if (count >= 1 && count <= kMost) {
    return {};
  }
  return invalid_input(std::string(what) + " must be a whole number from 1 to " +
                       std::to_string(kMost) + ", found " + std::to_string(count));
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      break;
  }
  return "full";
}

double MegatronModel::parameters() const {
  const double h = number(hidden);
  const double embeddings = tied ? number(vocab) + number(seq) : 2 * number(vocab) + number(seq);
  return number(layers) * (12 * h * h + 13 * h) + embeddings * h;
}

double half_rate(const cluster::Device& device) {
  double rate = 0;
  for (const char* const dtype : {"f16", "bf16"}) {
    if (const auto found = device.peak_flops.find(dtype); found != device.peak_flops.end()) {
      rate = std::max(rate, found->second);
    }
  }
  return rate;
}

Flops model_flops(const MegatronModel& model, std::int64_t batch) {
  const double h = number(model.hidden);
  const double l = number(model.layers);
  const double s = number(model.seq);
  return 72 * number(batch) * l * s * h * h *
         (1 + s / (6 * h) + number(model.vocab) / (12 * h * l));
}

Flops hardware_flops(const MegatronModel& model, std::int64_t batch, Recompute recompute) {
  const double h = number(model.hidden);
  const double l = number(model.layers);
  const double s = number(model.seq);
  const double tokens = number(batch) * s;
  switch (recompute) {
    case Recompute::kNone:
      break;
    case Recompute::kSelective:
      return 72 * tokens * l * h * h * (1 + s / (3 * h) + number(model.vocab) / (12 * h * l));
    case Recompute::kFull:
      return 96 * tokens * l * h * h * (1 + s / (6 * h) + number(model.vocab) / (16 * l * h));
  }
  return model_flops(model, batch);
}

Status check_megatron(const MegatronModel& model, const cluster::Cluster& cluster) {
  for (const auto& [what, count] : {std::pair<const char*, std::int64_t>{"layers", model.layers},
                                    {"hidden", model.hidden},
                                    {"heads", model.heads},
                                    {"seq", model.seq},
                                    {"vocab", model.vocab}}) {
    SHARDPLAN_RETURN_IF_ERROR(count_in_range(what, count));
  }
  if (half_rate(cluster.device) <= 0) {
    return Error{ErrorCode::kUnsupported,
                 "the device " + cluster.device.name +
                     " has no rate for f16 or bf16, in which Megatron-LM trains",
                 "cluster " + cluster.name,
                 {"add one to peak_flops in its file"}};
  }
  return divides("hidden units", model.hidden, "heads", model.heads);
}

Status check_megatron(const MegatronModel& model,
                      const cluster::Cluster& cluster,
                      const MegatronConfig& config) {
  SHARDPLAN_RETURN_IF_ERROR(check_megatron(model, cluster));
  SHARDPLAN_RETURN_IF_ERROR(check_counts(config));
  SHARDPLAN_RETURN_IF_ERROR(check_devices(cluster, config));
  SHARDPLAN_RETURN_IF_ERROR(divides("heads", model.heads, "tp", config.tensor));
  SHARDPLAN_RETURN_IF_ERROR(check_stages(model, config));
  SHARDPLAN_RETURN_IF_ERROR(check_batch(config));
  if (config.sequence_parallel) {
    return divides("positions of a sequence", model.seq, "tp", config.tensor);
  }
  return {};
}

Result<MegatronPrediction> predict_megatron(const MegatronModel& model,
                                            const cluster::Cluster& cluster,
                                            const MegatronConfig& config,
                                            const MegatronSoftware& software) {
  SHARDPLAN_RETURN_IF_ERROR(check_megatron(model, cluster, config));
  const MegatronTerms terms(model, cluster, software);
  MegatronPrediction prediction;
  prediction.time =
      time_of(terms, config, terms.place(config.tensor, config.pipeline, config.data));
  prediction.memory = memory_of_stage(terms, config, true);
  if (config.pipeline > 1) {
    const MegatronMemory last = memory_of_stage(terms, config, false);
    if (last.total() > prediction.memory.total()) {
      prediction.memory = last;
    }
  }
  prediction.model_flops = model_flops(model, config.batch);
  prediction.hardware_flops = hardware_flops(model, config.batch, config.recompute);
  const double allowed =
      number(config.devices()) * half_rate(cluster.device) * prediction.time.total();
  prediction.model_utilization = prediction.model_flops / allowed;
  prediction.hardware_utilization = prediction.hardware_flops / allowed;
  return prediction;
}

}  // namespace shardplan::cost
