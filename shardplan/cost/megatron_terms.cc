#include "shardplan/cost/megatron_terms.h"

#include <algorithm>
#include <cmath>

// Seconds of a layer. T = b s tokens a microbatch, h hidden, t tensor-parallel ranks, a heads.
//
//   products      2 m n k / (peak · reachable part · ramp(m) ramp(n) ramp(k)) or the time of their
//                 operands' bytes, whichever is longer. A layer has four with weights
//                 (query-key-value h × 3h, projection h × h, up h × 4h, down 4h × h; SC'21,
//                 Appendix), cut by t in one dimension (SC'21, Fig. 5), each with two more in the
//                 backward pass, and two of attention for each of b a / t heads.
//   passes        what lies between the products is bound by memory: bytes / (bandwidth · reachable
//                 part). Counted with the fusions of Megatron-LM (SC'21, Sec. 4.2): scale with mask
//                 and softmax; bias with GELU; bias with dropout and residual.
//   collectives   two all-reduces of T h in each pass (SC'21, Fig. 5); with sequence parallelism an
//                 all-gather and a reduce-scatter in place of each, and in the backward pass two
//                 more all-gathers, of inputs that were kept in parts (K22, Sec. 4.2.2), which run
//                 beside products.

namespace shardplan::cost {
namespace {

using sharding::CollectiveKind;

constexpr double kHalf = 2;    ///< bytes of an activation
constexpr double kSingle = 4;  ///< bytes of an element of the optimizer

double ramp(double dimension) {
  return dimension / (dimension + kHalfRateDimension);
}

/// What is left of a collective that runs beside a product.
Seconds exposed(Seconds collective, Seconds product) {
  return std::max(0.0, collective - product);
}

}  // namespace

/// Forward, gradient of the input, and gradient of the weight of each product with weights.
struct MegatronTerms::Products {
  struct Three {
    Seconds forward;
    Seconds input;
    Seconds weight;
  };
  Three query_key_value;
  Three projection;
  Three up;
  Three down;
};

MegatronTerms::MegatronTerms(const MegatronModel& model,
                             const cluster::Cluster& cluster,
                             const MegatronSoftware& software)
    : model_(model),
      cluster_(cluster),
      software_(software),
      curves_(level_curves(cluster)),
      pricer_(cluster_, curves_),
      seconds_a_flop_(1 / (half_rate(cluster.device) * cluster.device.matmul_efficiency)),
      seconds_a_byte_(1 / (cluster.device.memory_bandwidth * cluster.device.memory_efficiency)) {}

double MegatronTerms::padded_vocab(double tensor) const {
  constexpr double kRows = 128;
  return std::ceil(number(model_.vocab) / (kRows * tensor)) * kRows * tensor;
}

MegatronPlacement MegatronTerms::place(std::int64_t tensor,
                                       std::int64_t pipeline,
                                       std::int64_t data) const {
  cluster::DeviceMesh mesh;
  mesh.axes = {{"pipeline", pipeline}, {"data", data}, {"tensor", tensor}};
  return {group_parts(cluster_, mesh, 4U),
          group_parts(cluster_, mesh, 2U),
          group_parts(cluster_, mesh, 1U)};
}

Seconds MegatronTerms::pass(double bytes, double kernels) const {
  return bytes * seconds_a_byte_ + kernels * cluster_.device.kernel_overhead;
}

Seconds MegatronTerms::time_of(const Product& product) const {
  const auto& [m, n, k, count, result_bytes] = product;
  const Seconds arithmetic =
      2 * count * m * n * k * seconds_a_flop_ / (ramp(m) * ramp(n) * ramp(k));
  const Seconds memory = count * (kHalf * (m * k + k * n) + result_bytes * m * n) * seconds_a_byte_;
  return std::max(arithmetic, memory) + cluster_.device.kernel_overhead;
}

MegatronTerms::TensorLinks MegatronTerms::tensor_links(const std::vector<GroupPart>& parts) const {
  return {pricer_.price(CollectiveKind::kAllReduce, parts),
          pricer_.price(CollectiveKind::kAllGather, parts),
          pricer_.price(CollectiveKind::kReduceScatter, parts)};
}

MegatronTerms::Products MegatronTerms::products(double tokens, double tensor) const {
  const double weight_bytes = software_.fused_accumulation ? 2 * kSingle : kHalf;
  const auto three = [&](double in, double out) -> Products::Three {
    return {time_of({tokens, out, in}),
            time_of({tokens, in, out}),
            time_of({in, out, tokens, 1, weight_bytes})};
  };
  const double h = number(model_.hidden);
  return {three(h, 3 * h / tensor),
          three(h / tensor, h),
          three(h, 4 * h / tensor),
          three(4 * h / tensor, h)};
}

void MegatronTerms::add_attention(MegatronLayerTime& time, double samples, double tensor) const {
  const double s = number(model_.seq);
  const double size = number(model_.hidden) / number(model_.heads);
  const double heads = samples * number(model_.heads) / tensor;
  const double scores = heads * s * s;
  const Seconds both = time_of({s, s, size, heads}) + time_of({s, size, s, heads});
  // Softmax in place of its input: read and write. Dropout: read, write and a mask of bytes.
  time.attention = both + pass(scores * 4) + pass(scores * 5);
  time.forward += time.attention;
  // Softmax reads its result too; dropout reads the mask.
  time.backward += 2 * both + pass(scores * 6) + pass(scores * 5);
}

/// Bytes an element of each pass. `split`: by what the tokens are divided outside the products.
void MegatronTerms::add_passes(MegatronLayerTime& time,
                               double tokens,
                               double tensor,
                               double split) const {
  const double inside = tokens * number(model_.hidden) / tensor;
  const double outside = tokens * number(model_.hidden) / split;
  time.forward += 2 * pass(4 * outside)       // norms
                  + 2 * pass(7 * outside)     // bias, dropout with its mask, residual
                  + pass(4 * 4 * inside)      // bias and GELU
                  + pass(4 * 3 * inside)      // bias of query, key and value
                  + pass(4 * inside);         // heads put side by side
  time.backward += 2 * pass(8 * outside)      // norms, with the residual's gradient
                   + 2 * pass(4 * outside)    // their weights
                   + 2 * pass(5 * outside)    // dropout
                   + 2 * pass(2 * outside)    // bias of projection and down: sums over tokens
                   + pass(6 * 4 * inside)     // GELU
                   + pass(2 * 7 * inside, 2)  // bias of up and of query, key and value
                   + pass(4 * 3 * inside)     // query, key and value put side by side
                   + pass(4 * inside);        // heads put apart
  if (!software_.fused_accumulation) {
    const double weights = 12 * number(model_.hidden) * number(model_.hidden) / tensor;
    time.accumulate = pass(3 * kHalf * weights, 8);
  }
}

void MegatronTerms::add_collectives(MegatronLayerTime& time,
                                    const TensorLinks& links,
                                    double tokens,
                                    double tensor,
                                    bool sequence_parallel) const {
  const Products layer = products(tokens, tensor);
  for (const Products::Three& three :
       {layer.query_key_value, layer.projection, layer.up, layer.down}) {
    time.forward += three.forward;
    time.backward += three.input + three.weight;
  }
  const double bytes = kHalf * tokens * number(model_.hidden);
  const bool beside = software_.overlap_tensor_parallel;
  // The products whose inputs are whole, and whose input gradients are partial sums.
  for (const Products::Three& column : {layer.query_key_value, layer.up}) {
    if (sequence_parallel) {
      const Seconds gather = links.all_gather(bytes);
      const Seconds scatter = links.reduce_scatter(bytes);
      time.forward_tensor += gather + scatter;
      time.backward_tensor += gather;
      time.backward_tensor += exposed(gather, beside ? column.input : 0);
      time.backward_tensor += exposed(scatter, beside ? column.weight : 0);
    } else {
      const Seconds reduce = links.all_reduce(bytes);
      time.forward_tensor += reduce;
      time.backward_tensor += exposed(reduce, beside ? column.weight : 0);
    }
  }
}

/// Embedding: lookup, position, dropout and back. Head: last norm and three products with the
/// embedding; the loss over logits that are cut by t needs three sums a token (SC'21's predecessor,
/// M. Shoeybi et al., "Megatron-LM", 2019, Sec. 3).
void MegatronTerms::add_ends(MegatronLayerTime& time,
                             const TensorLinks& links,
                             double tokens,
                             double tensor,
                             bool sequence_parallel) const {
  const double h = number(model_.hidden);
  const double outside = tokens * h / (sequence_parallel ? tensor : 1);
  const double rows = padded_vocab(tensor) / tensor;
  const double bytes = kHalf * tokens * h;
  time.embedding = pass(13 * outside, 5);
  time.head = pass(12 * outside, 2) + time_of({tokens, rows, h}) + time_of({tokens, h, rows}) +
              time_of({h, rows, tokens}) + 3 * links.all_reduce(kSingle * tokens);
  // Cast to 32 bits (6), maximum (4), exponentials (8), their sum (4), gradient (6).
  time.head += pass(28 * tokens * rows, 6);
  if (sequence_parallel) {
    time.embedding += links.reduce_scatter(bytes) + links.all_gather(bytes);
    time.head += 2 * links.all_gather(bytes) + links.reduce_scatter(bytes);
  } else {
    time.embedding += links.all_reduce(bytes);
    time.head += links.all_reduce(bytes);
    time.received = links.all_gather(bytes);
  }
}

MegatronLayerTime MegatronTerms::layer_time(std::int64_t tensor,
                                            const std::vector<GroupPart>& parts,
                                            std::int64_t microbatch,
                                            bool sequence_parallel) const {
  const double samples = number(microbatch);
  const double tokens = samples * number(model_.seq);
  const double t = number(tensor);
  const TensorLinks links = tensor_links(parts);
  MegatronLayerTime time;
  add_attention(time, samples, t);
  add_passes(time, tokens, t, sequence_parallel ? t : 1);
  add_collectives(time, links, tokens, t, sequence_parallel);
  add_ends(time, links, tokens, t, sequence_parallel);
  return time;
}

MegatronLayerBytes MegatronTerms::layer_bytes(std::int64_t tensor,
                                              std::int64_t microbatch,
                                              bool sequence_parallel,
                                              Recompute recompute) const {
  const double h = number(model_.hidden);
  const double s = number(model_.seq);
  const double t = number(tensor);
  const double sbh = s * number(microbatch) * h;
  const double split = sequence_parallel ? t : 1;
  const double attention = 5 * number(model_.heads) * s / (h * t) * sbh;
  const double linear = sbh * (10 / split + 24 / t);
  MegatronLayerBytes bytes;
  switch (recompute) {
    case Recompute::kNone:
      bytes.kept = linear + attention;
      break;
    case Recompute::kSelective:
      bytes.kept = linear;
      bytes.recomputed = attention;
      break;
    case Recompute::kFull:
      bytes.kept = 2 * sbh / split;
      bytes.recomputed = linear + attention - bytes.kept;
      break;
  }
  bytes.embedding = sbh / split;  // the mask of dropout
  // The inputs of the last norm and of the logits, and the logits in 32 bits.
  bytes.head = 4 * sbh / split + 4 * sbh / h * padded_vocab(t) / t;
  return bytes;
}

MegatronInFlight megatron_in_flight(std::int64_t pipeline,
                                    std::int64_t interleave,
                                    std::int64_t microbatches) {
  const double p = number(pipeline);
  const double v = number(interleave);
  const double m = number(microbatches);
  MegatronInFlight in_flight;
  in_flight.inputs = std::min(p, m);
  if (interleave == 1) {
    in_flight.first = std::min(p, m);
  } else {
    in_flight.first = std::min(m * v, p * v + p - 1) / v;
    in_flight.last = std::min(m * v, (v - 1) * p + 1) / v;
  }
  return in_flight;
}

MegatronShare MegatronTerms::share(std::int64_t tensor, std::int64_t pipeline) const {
  const double h = number(model_.hidden);
  const double t = number(tensor);
  const double layers = number(model_.layers) / number(pipeline);
  // Norms, and the biases of projection and down, are whole on every tensor rank.
  const double blocks = layers * (12 * h * h / t + 7 * h / t + 6 * h);
  MegatronShare share;
  share.embedding = padded_vocab(t) * h / t;
  const double first = share.embedding + number(model_.seq) * h;
  const double last = 2 * h;
  if (pipeline == 1) {
    share.first = blocks + first + last + (model_.tied ? 0 : share.embedding);
    share.last = share.first;
  } else {
    share.first = blocks + first;
    share.last = blocks + last + share.embedding;
  }
  return share;
}

std::vector<CollectivePrice> MegatronTerms::links(const std::vector<GroupPart>& parts) const {
  std::vector<CollectivePrice> links;
  links.reserve(parts.size());
  for (const GroupPart& part : parts) {
    links.push_back(pricer_.price(CollectiveKind::kCollectivePermute, {part}));
  }
  return links;
}

Seconds MegatronTerms::send(std::int64_t tensor,
                            const std::vector<CollectivePrice>& links,
                            std::int64_t microbatch) const {
  const double bytes =
      kHalf * number(microbatch) * number(model_.seq) * number(model_.hidden) / number(tensor);
  Seconds slowest = 0;
  for (const CollectivePrice& price : links) {
    slowest = std::max(slowest, price(bytes / kPointToPointShare) + price(0));
  }
  return slowest;
}

MegatronDataTime MegatronTerms::data_time(const MegatronShare& share,
                                          const MegatronPlacement& placement,
                                          std::int64_t data,
                                          bool distributed_optimizer) const {
  const double gradient = software_.gradient_bytes();
  const double bytes = gradient * share.most();
  MegatronDataTime time;
  if (distributed_optimizer) {
    time.reduce = pricer_.price(CollectiveKind::kReduceScatter, placement.data)(bytes);
    time.gather = pricer_.price(CollectiveKind::kAllGather, placement.data)(kHalf * share.most());
  } else {
    time.reduce = pricer_.price(CollectiveKind::kAllReduce, placement.data)(bytes);
  }
  if (model_.tied && !placement.pipeline.empty()) {
    const GroupPart ends{placement.pipeline.back().level, 2};
    time.tie = pricer_.price(CollectiveKind::kAllReduce, {ends})(gradient * share.embedding);
  }
  // Adam reads the gradient and reads and writes three numbers of 4 bytes, and writes the 16-bit
  // parameter (30); the norm of the gradients reads them (4), clipping reads and writes them (8).
  // Then they are set to zero; 16-bit ones were copied before (6).
  const double updated = distributed_optimizer ? share.most() / number(data) : share.most();
  const double cleared = software_.fused_accumulation ? gradient : gradient + 6;
  time.optimizer = pass(42 * updated + cleared * share.most(), 50);
  return time;
}

}  // namespace shardplan::cost
