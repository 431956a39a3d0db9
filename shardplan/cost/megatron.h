#pragma once

#include <cstdint>
#include <string_view>

#include "shardplan/cluster/cluster.h"
#include "shardplan/support/ids.h"
#include "shardplan/support/result.h"

/// A training run of Megatron-LM as formulas: memory of a device and seconds of an iteration from a
/// handful of integers, without a graph, a plan or a simulator. Sources, as the comments cite them:
///   SC'21  D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
///          Using Megatron-LM", SC 2021 (arXiv 2104.04473)
///   K22    V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
///          2022 (arXiv 2205.05198)
///   ZeRO   S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
///          Models", SC 2020 (arXiv 1910.02054)
/// docs/predict.md has the formulas in one piece, the constants, and the published numbers beside
/// what comes out here.
namespace shardplan::cost {

/// A GPT: `layers` blocks of attention and a feed-forward layer four times as wide, learned
/// positions, dropout; trained with 16-bit arithmetic and Adam in 32 bits.
struct MegatronModel {
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t seq = 1;
  std::int64_t vocab = 1;
  bool tied = true;  ///< the head shares the token embedding

  /// 12 l h² (1 + 13/(12h) + (V + s)/(12 l h)): SC'21, Eq. 2 (the last norm's 2h left out); V h
  /// more when the head is not tied.
  [[nodiscard]] double parameters() const;
};

enum class Recompute {
  kNone,
  kSelective,  ///< the core of attention: scores, softmax, dropout, product with V (K22, Sec. 5)
  kFull        ///< whole layers from their inputs
};
[[nodiscard]] std::string_view to_string(Recompute recompute);

/// What the training software does. The defaults are those of K22's measurements; those of SC'21
/// had neither.
struct MegatronSoftware {
  /// In the backward pass the tensor-parallel collective of an input's gradient runs beside the
  /// product that makes the weight's.
  bool overlap_tensor_parallel = true;
  /// Weight gradients are summed in 32 bits by the product itself. Else: kept in 16 bits, added by
  /// a pass of its own when there are several microbatches, copied to 32 bits by the optimizer.
  bool fused_accumulation = true;

  [[nodiscard]] double gradient_bytes() const { return fused_accumulation ? 4 : 2; }
  bool operator==(const MegatronSoftware&) const = default;
};

/// How the run is laid out. Ranks: tensor innermost, then data, pipeline outermost.
struct MegatronConfig {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 1;
  std::int64_t microbatch = 1;  ///< samples a microbatch and data-parallel replica
  std::int64_t batch = 1;       ///< samples an iteration, all replicas together
  std::int64_t interleave = 1;  ///< model chunks a stage (v of SC'21, Sec. 2.2.2); 1 = plain 1F1B
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  bool distributed_optimizer = false;  ///< optimizer state split over the replicas (ZeRO, P_os)
  bool overlap_gradients = false;      ///< reduced during the last microbatch's backward pass

  [[nodiscard]] std::int64_t devices() const { return tensor * pipeline * data; }
  [[nodiscard]] std::int64_t microbatches() const { return batch / data / microbatch; }
  bool operator==(const MegatronConfig&) const = default;
};

/// Seconds of one iteration on the busiest stage, by what they go to; `total` is their sum.
struct MegatronTime {
  Seconds forward = 0;      ///< kernels of the layers
  Seconds backward = 0;     ///< the same
  Seconds recompute = 0;    ///< the same, run again for the backward pass
  Seconds tensor = 0;       ///< tensor-parallel collectives that compute waits for
  Seconds pipeline = 0;     ///< sending to and receiving from the stages beside
  Seconds head = 0;         ///< embedding, logits and loss, of the slower of first and last stage
  Seconds bubble = 0;       ///< filling and draining: (p-1)/v microbatches (SC'21, Sec. 2.2)
  Seconds data = 0;         ///< gradients (and, split, parameters) that compute waits for
  Seconds optimizer = 0;    ///< the update
  Seconds hidden_data = 0;  ///< data-parallel collectives behind the backward pass; not in total

  [[nodiscard]] Seconds total() const {
    return forward + backward + recompute + tensor + pipeline + head + bubble + data + optimizer;
  }
};

/// Bytes of the fullest device (the first or the last stage), by what they hold. Doubles, as the
/// formulas divide. Not counted: the CUDA context, fragmentation, buffers of NCCL.
struct MegatronMemory {
  double parameters = 0;   ///< 2 a parameter
  double gradients = 0;    ///< 2 or 4 a parameter
  double optimizer = 0;    ///< 12 a parameter: master copy and two moments (ZeRO, Sec. 3.1)
  double activations = 0;  ///< of the layers, of all microbatches in flight (K22, Sec. 4 and 5)
  double recomputed = 0;   ///< of the one layer whose forward pass is being run again
  double head = 0;         ///< of the embedding, the last norm and the loss (K22, Sec. 4.3)
  double copies = 0;       ///< gradients in 32 bits, while the optimizer runs
  bool first_stage = true;

  /// Activations are gone when the optimizer makes its copies.
  [[nodiscard]] double total() const {
    const double passes = activations + recomputed + head;
    return parameters + gradients + optimizer + (passes > copies ? passes : copies);
  }
};

struct MegatronPrediction {
  MegatronTime time{};
  MegatronMemory memory{};
  Flops model_flops = 0;     ///< an iteration's: 72 B l s h² (1 + s/(6h) + V/(12 l h)): K22, Eq. 7
  Flops hardware_flops = 0;  ///< with recomputation: K22, Eq. 8; full: SC'21, Eq. 3
  double model_utilization = 0;     ///< model_flops over what the devices' peaks allow (MFU)
  double hardware_utilization = 0;  ///< the same of hardware_flops (HFU)
};

/// Errors: counts below 1, heads that do not divide hidden, sizes beyond what the formulas hold
/// exactly, a device without a 16-bit rate ("f16" or "bf16").
[[nodiscard]] Status check_megatron(const MegatronModel& model, const cluster::Cluster& cluster);

/// Errors, the first that applies: counts below 1, more devices than the cluster has, more stages
/// than layers, and what does not divide: heads by tensor, layers by pipeline · interleave, batch
/// by data · microbatch, the sequence by tensor (with sequence parallelism), microbatches by
/// pipeline (with interleaving, SC'21, Sec. 2.2.2); interleaving on one stage.
[[nodiscard]] Status check_megatron(const MegatronModel& model,
                                    const cluster::Cluster& cluster,
                                    const MegatronConfig& config);

/// Seconds, bytes and rates of one configuration, all from formulas. Constants: those of the
/// cluster (rates with their reachable parts, links with latencies, kernel overhead), and two of
/// the model itself, kHalfRateDimension and kPointToPointShare of megatron_terms.h. More memory
/// bandwidth, link bandwidth or FLOP/s never make a configuration slower. Takes some microseconds;
/// see megatron_sweep.h for many. Error: what check_megatron says.
[[nodiscard]] Result<MegatronPrediction> predict_megatron(const MegatronModel& model,
                                                          const cluster::Cluster& cluster,
                                                          const MegatronConfig& config,
                                                          const MegatronSoftware& software = {});

/// 72 B l s h² (1 + s/(6h) + V/(12 l h)).
[[nodiscard]] Flops model_flops(const MegatronModel& model, std::int64_t batch);

/// FLOPs that devices are said to do. K22, Eq. 8, counts the whole of attention a second time for
/// selective recomputation (s/(3h) in place of s/(6h)): kept, so that HFU is what the paper prints,
/// though only its forward third is run again.
[[nodiscard]] Flops hardware_flops(const MegatronModel& model,
                                   std::int64_t batch,
                                   Recompute recompute);

/// The faster 16-bit rate of the device, FLOP/s; 0 if it has none.
[[nodiscard]] double half_rate(const cluster::Device& device);

}  // namespace shardplan::cost
