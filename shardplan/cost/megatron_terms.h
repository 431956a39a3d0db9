#pragma once

#include <cstdint>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/cost/collectives.h"
#include "shardplan/cost/megatron.h"

/// The terms that the prediction of a Megatron-style run is made of, each as its own function of
/// the few integers that it depends on. predict_megatron computes the terms of one configuration;
/// sweep_megatron computes each once and combines them.
namespace shardplan::cost {

/// A count as the formulas compute with it.
inline double number(std::int64_t count) {
  return static_cast<double>(count);
}

/// Error: a count below 1, or above 2^31, whose products doubles would not hold exactly.
[[nodiscard]] Status count_in_range(const char* what, std::int64_t count);

/// A matrix product whose dimension is this long runs at half the rate of a long one: d / (d + 150)
/// for each of its three dimensions. Chosen once by hand, not fitted.
inline constexpr double kHalfRateDimension = 150;

/// Two stages that exchange in pairs, and wait for it, reach this part of a level's bandwidth for
/// collectives, and pay its latency twice. Chosen once by hand, not fitted.
inline constexpr double kPointToPointShare = 2.0 / 3.0;

/// Where the groups of a configuration lie on the cluster's levels.
struct MegatronPlacement {
  std::vector<GroupPart> tensor{};
  std::vector<GroupPart> data{};
  std::vector<GroupPart> pipeline{};
};

/// Seconds of one layer, and of the model's ends, for one microbatch.
struct MegatronLayerTime {
  Seconds forward = 0;
  Seconds backward = 0;
  Seconds attention = 0;        ///< the forward pass of attention's core, a part of `forward`
  Seconds forward_tensor = 0;   ///< collectives
  Seconds backward_tensor = 0;  ///< the part that compute waits for
  Seconds accumulate = 0;       ///< adding to the weight gradients, if not fused
  Seconds embedding = 0;        ///< first stage, both passes, with collectives
  Seconds head = 0;             ///< last stage: last norm, logits and loss, both passes
  Seconds received = 0;         ///< gathering what the tensor ranks received in parts

  /// Kernels run again in the backward pass, and collectives run again.
  [[nodiscard]] Seconds recomputed(Recompute recompute) const {
    return recompute == Recompute::kFull        ? forward
           : recompute == Recompute::kSelective ? attention
                                                : 0;
  }
  [[nodiscard]] Seconds recomputed_tensor(Recompute recompute) const {
    return recompute == Recompute::kFull ? forward_tensor : 0;
  }
};

/// Bytes of one layer, and of the model's ends, for one microbatch in flight.
struct MegatronLayerBytes {
  double kept = 0;        ///< by a layer until its backward pass
  double recomputed = 0;  ///< by a layer whose forward pass is run again, beyond `kept`
  double embedding = 0;   ///< first stage
  double head = 0;        ///< last stage
};

/// Parameters of one device, by stage.
struct MegatronShare {
  double first = 0;
  double last = 0;       ///< equal to `first` with one stage
  double embedding = 0;  ///< of the token embedding, which first and last stage hold alike

  [[nodiscard]] double most() const { return first > last ? first : last; }
};

/// Microbatches whose activations a stage holds at most, in units of all the stage's layers.
/// Plain 1F1B: p on the first of p stages, 1 on the last. Interleaved: the first starts p v + p - 1
/// chunks of 1/v of its layers before one is done, 1 + (p-1)/(p v) times p (K22, Sec. 4.2.3); the
/// last (v-1) p + 1. Never more than there are.
struct MegatronInFlight {
  double first = 1;
  double last = 1;
  double inputs = 1;  ///< microbatches that have entered the first stage
};
[[nodiscard]] MegatronInFlight megatron_in_flight(std::int64_t pipeline,
                                                  std::int64_t interleave,
                                                  std::int64_t microbatches);

/// Seconds after the last microbatch.
struct MegatronDataTime {
  Seconds reduce = 0;     ///< gradients, over the replicas
  Seconds gather = 0;     ///< parameters, with a distributed optimizer
  Seconds tie = 0;        ///< gradients of the embedding, between first and last stage
  Seconds optimizer = 0;  ///< the update
};

class MegatronTerms {
 public:
  /// Precondition: check_megatron(model, cluster).
  MegatronTerms(const MegatronModel& model,
                const cluster::Cluster& cluster,
                const MegatronSoftware& software);
  MegatronTerms(const MegatronTerms&) = delete;
  MegatronTerms& operator=(const MegatronTerms&) = delete;

  [[nodiscard]] MegatronPlacement place(std::int64_t tensor,
                                        std::int64_t pipeline,
                                        std::int64_t data) const;

  /// `parts`: of the tensor group.
  [[nodiscard]] MegatronLayerTime layer_time(std::int64_t tensor,
                                             const std::vector<GroupPart>& parts,
                                             std::int64_t microbatch,
                                             bool sequence_parallel) const;

  /// K22, Table 2, and Sec. 4.3 for the ends.
  [[nodiscard]] MegatronLayerBytes layer_bytes(std::int64_t tensor,
                                               std::int64_t microbatch,
                                               bool sequence_parallel,
                                               Recompute recompute) const;

  [[nodiscard]] MegatronShare share(std::int64_t tensor, std::int64_t pipeline) const;

  /// Of one message between neighbours of the pipeline, by level that the group reaches. `parts`:
  /// of the pipeline group.
  [[nodiscard]] std::vector<CollectivePrice> links(const std::vector<GroupPart>& parts) const;

  /// One microbatch's tensor from a stage to the next over the slowest of the `links`; every tensor
  /// rank sends its part of it (scatter and gather of SC'21, Sec. 4.1).
  [[nodiscard]] Seconds send(std::int64_t tensor,
                             const std::vector<CollectivePrice>& links,
                             std::int64_t microbatch) const;

  [[nodiscard]] MegatronDataTime data_time(const MegatronShare& share,
                                           const MegatronPlacement& placement,
                                           std::int64_t data,
                                           bool distributed_optimizer) const;

  [[nodiscard]] const MegatronModel& model() const { return model_; }
  [[nodiscard]] const MegatronSoftware& software() const { return software_; }

 private:
  struct Product {
    double m;
    double n;
    double k;
    double count = 1;  ///< of equal products in one kernel
    double result_bytes =
        2;  ///< an element of the result; 8 where 32-bit sums are read and written
  };
  struct TensorLinks {
    CollectivePrice all_reduce;
    CollectivePrice all_gather;
    CollectivePrice reduce_scatter;
  };
  struct Products;
  [[nodiscard]] Products products(double tokens, double tensor) const;
  [[nodiscard]] Seconds time_of(const Product& product) const;
  /// A kernel bound by memory.
  [[nodiscard]] Seconds pass(double bytes, double kernels = 1) const;
  [[nodiscard]] TensorLinks tensor_links(const std::vector<GroupPart>& parts) const;
  void add_attention(MegatronLayerTime& time, double samples, double tensor) const;
  void add_passes(MegatronLayerTime& time, double tokens, double tensor, double split) const;
  void add_collectives(MegatronLayerTime& time,
                       const TensorLinks& links,
                       double tokens,
                       double tensor,
                       bool sequence_parallel) const;
  void add_ends(MegatronLayerTime& time,
                const TensorLinks& links,
                double tokens,
                double tensor,
                bool sequence_parallel) const;
  /// The vocabulary, padded so that every tensor rank holds a multiple of 128 rows.
  [[nodiscard]] double padded_vocab(double tensor) const;

  MegatronModel model_;
  cluster::Cluster cluster_;
  MegatronSoftware software_;
  std::vector<LevelCurves> curves_;
  CollectivePricer pricer_;
  double seconds_a_flop_;
  double seconds_a_byte_;
};

}  // namespace shardplan::cost
